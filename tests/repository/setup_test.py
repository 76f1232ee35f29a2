#!/usr/bin/env python3
"""When scripts/setup configures a build with CUDA, and what scripts/build says of one. Usage: setup_test.py SOURCE"""
import json
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
# Twenty steps, of which the last may go wrong; as ninja shows them.
NINJA = """#!/bin/bash
[ "${!#}" != build.ninja ] || exit 0
case " $* " in *" -n "*) dry=1; NINJA_STATUS='[%f/%t] ' ;; esac
for i in $(seq 1 20); do
  status=${NINJA_STATUS/\\%f/$i}; status=${status/\\%t/20}; status=${status/\\%e/$((i * 6)).125}
  echo "${status}Building CXX object $i"
  [ "$dry" ] || [ $i != 20 ] || [ -z "$BREAKS" ] || { echo "FAILED: 20.cc"; echo "20.cc:1: error: wrong"; exit 1; }
done
"""
INSTALLED = "#!/bin/sh\necho 'install ok installed'\n"  # dpkg-query
NO_GPU, GPU = "#!/bin/sh\nexit 9\n", "#!/bin/sh\necho 'GPU 0: H100'\n"  # nvidia-smi


class SetupTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="invar-setup-")
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        (self.root / "scripts").mkdir()
        for script in ("setup", "build"):
            shutil.copy2(SOURCE / "scripts" / script, self.root / "scripts" / script)
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

    def build(self, **environment):
        return subprocess.run([self.root / "scripts/build", "release", "invar"], capture_output=True, text=True,
                              env={**os.environ, "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}", **environment})

    def test_a_build_says_how_long_it_takes_and_how_far_it_is(self):
        self.program("cmake", NINJA)
        self.program("ninja", NINJA)
        (self.root / "build/release").mkdir(parents=True)
        (self.root / "build/release/build.ninja").touch()
        done = self.build()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        first, *lines = done.stdout.splitlines()
        self.assertRegex(first, r"^Building release: 20 steps on \d+ cores, about \d+ minutes")
        self.assertEqual(len(lines), 10)
        self.assertEqual(lines[4].split(), "50 % 1:00 so far, about 1:00 to go".split())
        done = self.build(BREAKS="1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("20.cc:1: error: wrong", done.stdout)

    def test_steps_are_counted_where_folders_are_looked_through(self):
        """By CMake and Ninja themselves. Ninja's dry run of a build that looks for new files ends before the first step."""
        (self.root / "bin" / "cmake").unlink()
        for i in range(5):
            (self.root / f"{i}.cc").write_text(f"int f{i}() {{ return {i}; }}\n")
        (self.root / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(steps CXX)\n"
                                                  "file(GLOB files CONFIGURE_DEPENDS *.cc)\nadd_library(invar STATIC ${files})\n")
        (self.root / "CMakePresets.json").write_text(json.dumps({
            "version": 6, "configurePresets": [{"name": "release", "generator": "Ninja", "binaryDir": "${sourceDir}/build/release"}],
            "buildPresets": [{"name": "release", "configurePreset": "release"}]}))
        subprocess.run(["cmake", "--preset", "release"], cwd=self.root, check=True, capture_output=True)
        self.assertRegex(self.build().stdout, r"^Building release: 6 steps on ")
        self.assertRegex(self.build().stdout, r"^Building release: 0 steps on ")

    def test_other_presets_keep_their_own_choice(self):
        for preset in ("tsan", "package"):
            self.setup(preset, CI="true", INVAR_CUDA="ON")
            self.assertNotIn("-DINVAR_CUDA", (self.root / "calls").read_text())


if __name__ == "__main__":
    SOURCE = pathlib.Path(sys.argv.pop(1))
    unittest.main()
