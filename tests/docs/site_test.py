#!/usr/bin/env python3
"""The documentation as a site (tools/site): it is built without a warning, and a link to nothing fails.

Needs a Python with mkdocs-material (INVAR_WITNESS, or /opt/witness/bin/python), else it is skipped (77).
Usage: site_test.py [unittest arguments]"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
WITNESS = os.environ.get("INVAR_WITNESS", "/opt/witness/bin/python")


class Site(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="invar-site-test-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        shutil.copytree(ROOT / "docs", self.root / "docs")
        for name in ("README.md", "CHANGELOG.md", "SECURITY.md", "mkdocs.yml", "tools/site"):
            (self.root / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)

    def built(self):
        done = subprocess.run([WITNESS, self.root / "tools/site", "--out", self.root / "out"], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def test_every_page_is_there(self):
        status, said = self.built()
        self.assertEqual(status, 0, said)
        pages = {page.relative_to(self.root / "docs").with_suffix("") for page in (self.root / "docs").rglob("*.md")}
        pages = pages - {pathlib.Path("index")} | {pathlib.Path("contents")}
        missing = [page for page in pages if not (self.root / "out" / page / "index.html").exists()]
        self.assertEqual(missing, [])
        first = (self.root / "out/index.html").read_text()
        self.assertIn('href="numerics/"', first)
        self.assertNotIn("fonts.googleapis.com", first)

    def test_a_page_that_leads_nowhere_fails(self):
        page = self.root / "docs/faq.md"
        whole = page.read_text()
        for link in ("[x](nowhere.md)", "[x](models.md#no-such-heading)"):
            page.write_text(f"{whole}\n{link}\n")
            status, said = self.built()
            self.assertNotEqual(status, 0, link)
            self.assertIn("faq.md", said)

    def test_a_page_in_no_menu_fails(self):
        (self.root / "docs/forgotten.md").write_text("# Forgotten\n")
        status, said = self.built()
        self.assertNotEqual(status, 0)
        self.assertIn("forgotten.md", said)


if __name__ == "__main__":
    if subprocess.run([WITNESS, "-c", "import material"], capture_output=True).returncode != 0:
        print(f"skipped: {WITNESS} has no mkdocs-material")
        sys.exit(77)
    unittest.main()
