#!/usr/bin/env python3
"""packaging/release: what it makes here, and what it refuses. Usage: release_test.py SOURCE BUILD [unittest arguments]"""
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

SOURCE = BUILD = None  # set by main
NAMED = ("CMakeLists.txt", "pyproject.toml", "python/invar/__init__.py", "README.md", "docs/installation.md", "CHANGELOG.md")

MADE = ["invar_0.1.0_amd64.deb", "libinvar-dev_0.1.0_amd64.deb", "invar-0.1.0-linux-x86_64.tar.xz", "invar-0.1.0-cp311-cp311-manylinux_2_36_x86_64.whl",
        "invar-0.1.0-1cuda-cp311-cp311-manylinux_2_36_x86_64.whl", "invar-0.1.0-image.tar"]


def release_module():
    loader = importlib.machinery.SourceFileLoader("release", str(SOURCE / "packaging/release"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("release", loader))
    loader.exec_module(module)
    return module


class Release(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="invar-release-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_every_file_names_the_same_version(self):
        release = release_module()
        self.assertRegex(release.version(), r"^\d+\.\d+\.\d+$")
        for name in NAMED:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / name, self.folder / name)
        self.assertEqual(release.version(self.folder), release.version())
        for name in NAMED[1:]:
            whole = (self.folder / name).read_text()
            (self.folder / name).write_text(whole.replace(release.version(), "9.8.7"))
            with self.assertRaisesRegex(SystemExit, f"in {name}.*found 9.8.7"):
                release.version(self.folder)
            (self.folder / name).write_text(whole)
        undated = re.sub(r"(?m)^(## [\d.]+), \d{4}.*$", r"\1", (self.folder / "CHANGELOG.md").read_text())
        (self.folder / "CHANGELOG.md").write_text(undated)
        with self.assertRaisesRegex(SystemExit, "with a date, found none"):
            release.version(self.folder)

    def test_another_answer_is_no_release(self):
        release = release_module()
        release.try_out("tarball", f'"logits_hash": "{release.card_hash()}"')
        with self.assertRaisesRegex(SystemExit, "expected the card's logits hash"):
            release.try_out("tarball", '"logits_hash": "' + "0" * 64)

    def asked(self, *arguments):
        done = subprocess.run([SOURCE / "packaging/release", *arguments, "--build", BUILD, "--out", self.folder / "out"], capture_output=True, text=True,
                              env={**os.environ, "XZ_OPT": "-0"})
        return done.returncode, done.stdout + done.stderr

    @unittest.skipUnless(shutil.which("git"), "git is not installed")
    def test_a_release_is_a_clean_tree_with_its_tag(self):
        release = release_module()
        git = lambda *words: subprocess.run(["git", "-C", self.folder, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True)
        git("init", "-q")
        git("commit", "-q", "--allow-empty", "-m", "one")
        with self.assertRaisesRegex(SystemExit, "expected the tag v1.2.3"):
            release.check_tree("1.2.3", self.folder)
        git("tag", "v1.2.3")
        release.check_tree("1.2.3", self.folder)
        (self.folder / "more").write_text("more")
        with self.assertRaisesRegex(SystemExit, "expected a clean tree"):
            release.check_tree("1.2.3", self.folder)

    def test_other_kinds_are_refused(self):
        status, said = self.asked("--dry-run", "--only", "deb,floppy")
        self.assertTrue(status and "found floppy" in said, said)

    def test_the_workflow_makes_each_kind_once_and_publishes_all_sums(self):
        release = release_module()
        release.check_workflow()
        place = ".github/workflows/release.yml"
        text = (SOURCE / place).read_text()
        self.assertIn('tags: ["v*"]', text)
        for script in re.findall(r"(?:scripts|packaging)/\w+", text):
            self.assertTrue(os.access(SOURCE / script, os.X_OK), script)
        self.assertNotIn("docker build", text, "an image that nothing tries")
        made = {name for name in re.findall(r"(?m)^  (\S+):$", text.split("jobs:")[1])} - {"publish"}
        self.assertEqual(set(re.search(r"publish:\n    needs: \[(.*)\]", text)[1].split(", ")), made, "all jobs that make something")
        (self.folder / place).parent.mkdir(parents=True)
        for line, words in (("packaging/release --only container", "each once"), ("packaging/release --only cuda-wheel", "each once"), ("packaging/release --sums", "the sums"),
                            ("docker push", "to push the image"), ("gh release", "to publish the files")):
            (self.folder / place).write_text(text.replace(line, "true"))
            with self.assertRaisesRegex(SystemExit, words):
                release.check_workflow(self.folder)

        *rest, image, files = re.split(r"(?m)^(?=      - )", text)
        self.assertIn("--clobber", files, "publishing can be repeated")
        (self.folder / place).write_text("".join([*rest, files, image]))
        with self.assertRaisesRegex(SystemExit, "to push the image and then"):
            release.check_workflow(self.folder)

    @unittest.skipUnless(importlib.util.find_spec("yaml"), "PyYAML is not installed")
    def test_the_job_that_publishes(self):
        """Its commands as bash runs them there, with words of docker and gh that are written down: nothing is published yet, then it is."""
        import yaml

        shutil.copytree(SOURCE, self.folder / "tree", ignore=lambda folder, names: [name for name in names if name in (".git", "build", "out", "shared")
                        or pathlib.Path(folder) == SOURCE and name in ("src", "tests", "models")])
        out, tools, said = self.folder / "tree/out/release", self.folder / "tools", self.folder / "said"
        for folder in (out, tools):
            folder.mkdir(parents=True)
        for name in MADE:
            (out / name).write_text(name)
        for tool in ("docker", "gh"):
            (tools / tool).write_text(f'#!/bin/bash\necho {tool} "$@" >>{said}\n[ "$1 $2" != "release view" ]\n')
            (tools / tool).chmod(0o755)
        job = yaml.safe_load((SOURCE / ".github/workflows/release.yml").read_text())["jobs"]["publish"]
        names = {"GITHUB_ACTOR": "me", "GITHUB_REPOSITORY": "Own/Invar", "GITHUB_REF_NAME": "v0.1.0", "TOKEN": "t", "GH_TOKEN": "t"}
        for step in job["steps"]:
            if "run" in step:
                subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]], cwd=self.folder / "tree", check=True, capture_output=True,
                               env={**os.environ, **names, "PATH": f"{tools}:{os.environ['PATH']}"})
        *_, pushed, viewed, created, uploaded = said.read_text().splitlines()
        self.assertEqual(pushed, "docker push ghcr.io/own/invar:0.1.0")
        self.assertEqual((viewed, created), ("gh release view v0.1.0", "gh release create v0.1.0 --verify-tag --notes-file CHANGELOG.md"))
        self.assertEqual({pathlib.PurePath(word).name for word in uploaded.split()[5:]}, {"SHA256SUMS", *MADE})

    def test_sums_are_of_all_kinds(self):
        release, out = release_module(), self.folder / "out"
        out.mkdir()
        for name in MADE:
            (out / name).write_text(name)
        sums = lambda: subprocess.run([SOURCE / "packaging/release", "--sums", "--out", out], capture_output=True, text=True)
        self.assertEqual(sums().returncode, 0, sums().stderr)
        self.assertEqual([line.split()[1] for line in (out / "SHA256SUMS").read_text().splitlines()], sorted(MADE))
        (out / MADE[4]).unlink()
        self.assertIn("none of the kind cuda-wheel", sums().stderr)
        (out / MADE[4]).write_text("again")
        (out / "core").write_text("dumped")
        self.assertIn("found core", sums().stderr)
        self.assertEqual(set(release.NAMES), set(release.KINDS))

    def test_a_tarball_brings_its_libraries_and_is_tried(self):
        (self.folder / "out").mkdir()
        (self.folder / "out/earlier.whl").write_bytes(b"made by an earlier call")
        status, said = self.asked("--dry-run", "--only", "tarball")
        self.assertEqual(status, 0, said)
        if not shutil.which("patchelf"):
            return self.assertIn("not made  tarball: patchelf is not installed", said)
        [made] = (self.folder / "out").glob("invar-*.tar.xz")
        sums = (self.folder / "out/SHA256SUMS").read_text()
        self.assertEqual([line.split()[1] for line in sums.splitlines()], ["earlier.whl", made.name])
        names = {pathlib.PurePath(name).name: name for name in tarfile.open(made).getnames()}
        self.assertTrue({"invar", "libcurl.so.4", "config.json", "README.md"} <= set(names), sorted(names))
        self.assertFalse({"libc.so.6", "libstdc++.so.6"} & set(names), "those of every Linux are not brought")


if __name__ == "__main__":
    SOURCE, BUILD = (pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(2))
    unittest.main()
