#!/usr/bin/env python3
"""What the kernels of a decoding step add to it, from a trace of libkernel_trace.so.

    bench/trace/timeline.py TRACE [--step embedding]

A step begins with the kernel whose name has the word after --step in it. Kernels start before the one ahead of them has
ended, so what counts is how much later than that one a kernel ends. Prints the last whole step but one: each kind of
kernel, how often it ran, the median of what it added and the sum.
"""
import argparse
import collections
import gzip
import re
import statistics


def read(path):
    opened = gzip.open(path, "rt") if path.endswith(".gz") else open(path, encoding="utf-8")
    with opened as lines:
        for number, line in enumerate(lines, 1):
            try:
                begin, end, blocks, name = line.rstrip("\n").split(" ", 3)
                yield int(begin), int(end), int(blocks), name
            except ValueError:
                raise ValueError(f"line {number} is no kernel's: {line.rstrip()!r}") from None


def plain(name):
    """Without namespaces, template arguments and parameters."""
    found = re.match(r"(?:\w+ )?(?:\w+::)*(\w+)[<(]", name.replace("(anonymous namespace)::", ""))
    return (found.group(1) if found else name)[:44]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--step", default="embedding")
    options = parser.parse_args()
    try:
        kernels = sorted(read(options.trace))
    except (OSError, EOFError, ValueError) as error:
        parser.error(f"{options.trace}: {error}")
    begins = [i for i, kernel in enumerate(kernels) if options.step in kernel[3]]
    if len(begins) < 3:
        parser.error(f"fewer than three steps begin with a kernel named {options.step}")
    first, behind = begins[-3], begins[-2]
    added = collections.OrderedDict()
    for i in range(first, behind):
        _, end, blocks, name = kernels[i]
        before = kernels[i - 1][1] if i > first else kernels[i][0]
        added.setdefault(f"{plain(name)} [{blocks}]", []).append((end - before) / 1000)
    print(f"step of {(kernels[behind - 1][1] - kernels[first][0]) / 1000:.0f} us, {behind - first} kernels")
    for name, values in added.items():
        print(f"{name:<48} {len(values):>4} x {statistics.median(values):8.2f} us  {sum(values):10.1f} us")


if __name__ == "__main__":
    main()
