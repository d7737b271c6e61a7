# shellcheck shell=sh
# Sourced by the journeys: Debian systems in folders, each with nothing but what its release calls minimal.
# Needs root and debootstrap; takes the release, the mirror and the network settings of this machine.

[ "$(id -u)" = 0 ] || { echo "$0: needs root (chroot, mounts)" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "$0: needs debootstrap" >&2; exit 1; }

# The first entry of apt's sources, in either of its formats: "<mirror> <release>".
first_source() {
  cat /etc/apt/sources.list.d/*.sources 2>/dev/null | awk '
    /^URIs:/ && !uri { uri = $2 } /^Suites:/ && !suite { suite = $2 } END { if (uri && suite) print uri, suite }'
  cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null | awk '
    $1 == "deb" { for (i = 2; i <= NF; ++i) if ($i ~ /^[a-z]+:\//) { print $i, $(i + 1); exit } }'
}

# bare_system FOLDER [PACKAGE]: makes the system there unless an earlier run has, and mounts what programs expect.
bare_system() {
  if [ ! -e "$1/.bare" ]; then
    entry=$(first_source | head -n 1)
    [ -n "$entry" ] || { echo "$0: no source in this machine's /etc/apt" >&2; exit 1; }
    echo "installing ${entry#* } into $1"
    if ! debootstrap --variant=minbase --include="ca-certificates${2:+,$2}" "${entry#* }" "$1" "${entry% *}" \
        >"$1.log" 2>&1; then
      tail -n 20 "$1.log" >&2
      exit 1
    fi
    rm -f "$1.log" "$1/etc/apt/sources.list"
    # How this machine reaches the network: sources, proxies, certificates, pip's settings.
    for path in /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/apt.conf.d /etc/apt/auth.conf.d \
        /etc/resolv.conf /etc/hosts /etc/pip.conf /root/.config/pip /root/.pip /etc/ssl/certs \
        /usr/local/share/ca-certificates; do
      [ -e "$path" ] || continue
      mkdir -p "$1$(dirname "$path")"
      cp -RL "$path" "$1$(dirname "$path")/" 2>/dev/null || true
    done
    env | grep -E '(CERT|CA_BUNDLE|CAINFO)[A-Z_]*=/' | cut -d= -f2- | sort -u | while read -r path; do
      [ -e "$path" ] || continue
      mkdir -p "$1$(dirname "$path")"
      cp -RL "$path" "$1$(dirname "$path")/" 2>/dev/null || true
    done
    touch "$1/.bare"
  fi
  mountpoint -q "$1/proc" || mount -t proc proc "$1/proc"
  # What is unmounted there stays mounted here.
  mountpoint -q "$1/dev" || mount --rbind --make-rslave /dev "$1/dev"
}

# inside FOLDER COMMAND...: with an environment of its own.
inside() {
  root=$1
  shift
  # shellcheck disable=SC2046
  chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    $(env | grep -E '^(PIP_[A-Z_]*|SSL_CERT_[A-Z]*|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|[a-z]+_proxy|[A-Z]+_PROXY)=[^ ]*$') \
    "$@"
}

# leave FOLDER: ends what bare_system mounted.
leave() {
  for mount in dev/shm dev/pts dev proc; do
    mountpoint -q "$1/$mount" && umount -l "$1/$mount"
  done
  return 0
}
