"""What deploy/ says is true of this build: flags, probes, libraries, unit, manifest."""
import configparser
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import yaml
from server import SOURCE, ZIPAGE, Server

DEPLOY = SOURCE / "deploy"


def flags_of_serve():
    text = subprocess.run([ZIPAGE, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"--[a-z-]+", text))


def output(*words):
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


class Kubernetes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
        cls.deployment, cls.service = documents
        cls.pod = cls.deployment["spec"]["template"]
        (cls.container,) = cls.pod["spec"]["containers"]

    def test_the_kinds_and_their_selectors(self):
        self.assertEqual((self.deployment["apiVersion"], self.deployment["kind"]), ("apps/v1", "Deployment"))
        self.assertEqual((self.service["apiVersion"], self.service["kind"]), ("v1", "Service"))
        labels = self.pod["metadata"]["labels"].items()
        self.assertLessEqual(self.deployment["spec"]["selector"]["matchLabels"].items(), labels)
        self.assertLessEqual(self.service["spec"]["selector"].items(), labels)
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        self.assertIn(self.service["spec"]["ports"][0]["targetPort"], ports)
        annotations = self.pod["metadata"]["annotations"]
        self.assertEqual(annotations["prometheus.io/port"], str(ports["http"]))
        volumes = {volume["name"] for volume in self.pod["spec"]["volumes"]}
        self.assertLessEqual({mount["name"] for mount in self.container["volumeMounts"]}, volumes)

    def test_arguments_are_text_and_flags_of_serve(self):
        self.assertTrue(all(isinstance(word, str) for word in self.container["args"]))
        self.assertLessEqual({word for word in self.container["args"] if word.startswith("--")}, flags_of_serve())
        self.assertTrue(all(isinstance(value, str) for value in self.pod["metadata"]["annotations"].values()))

    def test_probes_are_answered(self):
        with Server("--api-key", "secret") as server:
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                asked = self.container[probe]["httpGet"]
                self.assertIn(asked["port"], [port["name"] for port in self.container["ports"]])
                server.get(asked["path"])
            server.get(self.pod["metadata"]["annotations"]["prometheus.io/path"])

    def test_there_is_time_to_end(self):
        found = re.search(r"--shutdown-timeout.*?\[(\d+)\]", output(ZIPAGE, "serve", "--help"), re.S)
        self.assertGreater(self.pod["spec"]["terminationGracePeriodSeconds"], int(found.group(1)))


class Systemd(unittest.TestCase):
    unit = (DEPLOY / "zipage.service").read_text()

    def test_it_starts_serve(self):
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        parser.optionxform = str
        parser.read_string(self.unit)
        words = parser["Service"]["ExecStart"].split()
        self.assertEqual(words[:2], ["/usr/local/bin/zipage", "serve"])
        self.assertLessEqual({word for word in words if word.startswith("--")}, flags_of_serve())

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not installed")
    def test_systemd_accepts_it(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "zipage.service"
            path.write_text(self.unit.replace("/usr/local/bin/zipage", ZIPAGE))
            result = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, check=False)
        complaints = [line for line in (result.stdout + result.stderr).splitlines() if "zipage.service" in line]
        self.assertEqual((result.returncode, complaints), (0, []), result.stderr)


class Docker(unittest.TestCase):
    stages = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").split("FROM ")[1:]

    def packages(self):
        words = re.search(r"apt-get install ([^&]*)", self.stages[-1]).group(1).split()
        return [word for word in words if not word.startswith("-")]

    def test_the_stages_fit_together(self):
        self.assertIn(" AS build", self.stages[0])
        self.assertIn("--prefix /out", self.stages[0])
        self.assertIn("COPY --from=build /out /usr/local", self.stages[-1])
        self.assertIn('ENTRYPOINT ["zipage", "serve"]', self.stages[-1])

    @unittest.skipUnless(shutil.which("apt-cache") and "bookworm" in Path("/etc/os-release").read_text(), "this is no Debian 12")
    def test_the_packages_exist_and_hold_every_library_that_the_binary_needs(self):
        for package in self.packages():
            self.assertTrue(output("apt-cache", "show", package), f"Debian has no {package}")
        # What a slim image has for apt itself.
        present = {"libc6", "libgcc-s1", "libstdc++6", *self.packages()}
        for path in re.findall(r"=> (/\S+)", output("ldd", ZIPAGE)):
            found = output("dpkg", "-S", path) or output("dpkg", "-S", str(Path("/usr" + path)))
            owner = found.split(":")[0]
            self.assertIn(owner, present, f"{path} is in {owner}")


if __name__ == "__main__":
    unittest.main()
