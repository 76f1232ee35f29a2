#!/usr/bin/env python3
"""When scripts/setup configures a build with CUDA. Usage: setup_test.py SOURCE"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = None
# Instead of CMake: writes what a configured folder has, and in `calls` what it was called with.
CMAKE = """#!/bin/sh
echo "$@" >> calls
preset=$2; cuda=ON
case "$3" in -DINVAR_CUDA=*) cuda=${3#-DINVAR_CUDA=} ;; esac
mkdir -p build/$preset; touch build/$preset/build.ninja
echo "INVAR_CUDA:BOOL=$cuda" > build/$preset/CMakeCache.txt
"""
INSTALLED = "#!/bin/sh\necho 'install ok installed'\n"  # dpkg-query
NO_GPU, GPU = "#!/bin/sh\nexit 9\n", "#!/bin/sh\necho 'GPU 0: H100'\n"  # nvidia-smi


class SetupTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="invar-setup-")
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        (self.root / "scripts").mkdir()
        shutil.copy2(SOURCE / "scripts/setup", self.root / "scripts/setup")
        for name, text in (("cmake", CMAKE), ("dpkg-query", INSTALLED), ("nvidia-smi", NO_GPU), ("node", INSTALLED)):
            self.program(name, text)

    def program(self, name, text):
        path = self.root / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def setup(self, preset="release", **environment):
        """What the build is configured with after scripts/setup, and how often it was configured."""
        plain = {name: value for name, value in os.environ.items() if name not in ("CI", "INVAR_CUDA", "INVAR_FULL_TESTS")}
        subprocess.run([self.root / "scripts/setup", preset], check=True, capture_output=True,
                       env={**plain, "PATH": f"{self.root / 'bin'}:{plain['PATH']}", **environment})
        calls = len((self.root / "calls").read_text().splitlines())
        return (self.root / "build" / preset / "CMakeCache.txt").read_text().strip().removeprefix("INVAR_CUDA:BOOL="), calls

    def test_without_a_gpu_it_is_the_cpu_program(self):
        self.assertEqual(self.setup(), ("ON" if os.path.exists("/dev/nvidia0") else "OFF", 1))
        _, calls = self.setup(INVAR_CUDA="OFF")
        self.assertEqual(self.setup(), ("OFF", calls))
        self.assertEqual(self.setup(INVAR_CUDA="ON"), ("ON", calls + 1))
        self.assertEqual(self.setup(), ("ON", calls + 1))  # what is there stays
        self.assertEqual(self.setup(CI="true"), ("ON", calls + 1))
        self.assertEqual(self.setup(INVAR_CUDA="OFF"), ("OFF", calls + 2))

    def test_a_gpu_gets_its_kernels(self):
        self.program("nvidia-smi", GPU)
        self.assertEqual(self.setup(), ("ON", 1))
        self.program("nvidia-smi", NO_GPU)
        self.assertEqual(self.setup(), ("ON", 1))

    def test_continuous_integration_compiles_everything(self):
        self.assertEqual(self.setup(CI="true"), ("ON", 1))
        self.assertEqual(self.setup(CI="true"), ("ON", 1))
        self.assertEqual(self.setup(CI="true", INVAR_CUDA="OFF"), ("OFF", 2))
        self.assertEqual(self.setup(CI="true"), ("ON", 3))

    def test_other_presets_keep_their_own_choice(self):
        for preset in ("tsan", "package"):
            self.setup(preset, CI="true", INVAR_CUDA="ON")
            self.assertNotIn("-DINVAR_CUDA", (self.root / "calls").read_text())


if __name__ == "__main__":
    SOURCE = pathlib.Path(sys.argv.pop(1))
    unittest.main()
