#!/usr/bin/env python3
"""The steps of the Dockerfile, without a container engine: what it copies and runs is there, the server that its command starts is healthy by
its own check, and one that is not there is not. install.chroot runs the steps. Usage: container_test.py INVAR SOURCE [unittest arguments]"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/server"))
from served import ask_once, free_port

INVAR = SOURCE = None  # set by main


def instructions(text):
    """(instruction, rest) of each line, with lines that go on joined."""
    lines = re.sub(r"\\\n\s*", " ", re.sub(r"(?m)^#.*\n", "", text)).splitlines()
    return [tuple(line.split(" ", 1)) for line in lines if line.strip()]


class Container(unittest.TestCase):
    def setUp(self):
        self.steps = instructions((SOURCE / "Dockerfile").read_text())
        self.of = lambda name: [rest for instruction, rest in self.steps if instruction == name]

    def test_what_it_runs_is_there(self):
        self.assertEqual([base.split()[0] for base in self.of("FROM")], ["debian:12", "debian:12"], "the Debian of scripts/setup, twice")
        build, install = self.of("RUN")
        presets = {preset["name"] for preset in json.loads((SOURCE / "CMakePresets.json").read_text())["configurePresets"]}
        self.assertLessEqual(set(re.findall(r"--preset (\w+)|scripts/setup (\w+)", build)[0]) - {""}, presets)
        self.assertTrue(os.access(SOURCE / re.match(r"(\S+)", build)[1], os.X_OK))
        self.assertIn("/tmp/invar_*.deb", install)
        self.assertIn("adduser", (SOURCE / "packaging/debian/postinst").read_text(), "who USER is")
        self.assertEqual(self.of("USER"), ["invar"])
        ignored = (SOURCE / ".dockerignore").read_text().split()
        self.assertTrue({"build", ".git"} <= set(ignored) and not {"models", "packaging", "python"} & set(ignored))

    def health(self, port):
        """The exit status of the image's own check, of a server at this port."""
        [check] = self.of("HEALTHCHECK")
        command = json.loads(check[check.index("CMD ") + 4:])
        return subprocess.run([word.replace("8000", str(port)) for word in command], capture_output=True, timeout=60).returncode

    def test_its_command_is_healthy(self):
        port = free_port()
        self.assertNotEqual(self.health(port), 0, "the control: nobody listens")
        [entry], [command], [exposed] = self.of("ENTRYPOINT"), self.of("CMD"), self.of("EXPOSE")
        self.assertEqual(json.loads(entry), ["/usr/bin/invar"])
        words = [word.replace(exposed, str(port)) for word in json.loads(command)]
        with tempfile.TemporaryDirectory() as home, tempfile.TemporaryFile("w+") as log:
            served = subprocess.Popen([INVAR, *words, "--threads", "1"], env={**os.environ, "INVAR_HOME": str(SOURCE)}, cwd=home, stdout=log, stderr=log)
            try:
                end = time.monotonic() + 100
                while not ask_once(port, "GET", "/health") and served.poll() is None and time.monotonic() < end:
                    time.sleep(0.1)
                log.seek(0)
                self.assertIsNone(served.poll(), served.poll() is not None and log.read())
                self.assertEqual(self.health(port), 0)
            finally:
                served.terminate()
                served.wait(90)
        self.assertNotEqual(self.health(port), 0, "it has ended")


if __name__ == "__main__":
    INVAR, SOURCE = str(pathlib.Path(sys.argv.pop(1)).resolve()), pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
