#!/usr/bin/env python3
"""What the docs claim, beside docs/claims.toml: sources and their dates, questions and where they are found, the table of what fits where.
Usage: claims_test.py INVAR [unittest arguments]"""
import datetime
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
import unittest

INVAR = None  # the program; set by main
ROOT = pathlib.Path(__file__).resolve().parents[2]
CLAIMS = tomllib.loads((ROOT / "docs/claims.toml").read_text())
PAGES = {page.relative_to(ROOT).as_posix(): page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]}
COMPARISON, GIB = "docs/comparison.md", 1 << 30
ROOMS = {"24 GiB": 24, "80 GiB": 80, "one H200": 139, "two H200": 278}  # GiB; a tenth of it is left for a step
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"]


def months(text):
    """A month, "2026-11", as a number."""
    year, month = text.split("-")[:2]
    return 12 * int(year) + int(month)


def faults_of_sources(text, sources, newest, keeps):
    """What of the comparison has no source, or an old one. `newest`: the version's date."""
    body, listed = text.split("## Sources")
    cited = {int(number) for number in re.findall(r"\[(\d+)\]", body)}
    numbered = {int(number) for number in re.findall(r"(?<![\w.#])(\d{1,2})\.\s+(?=[a-zA-Z`*])", listed)}
    known = {source["number"] for source in sources}
    for number in sorted(cited ^ known | numbered ^ known):
        yield f"source {number}: expected it in the text, under Sources and in claims.toml"
    for source in sources:
        mark = f"[{source['number']}]"
        if not any(mark in line and source["claim"] in line for line in body.splitlines()):
            yield f"source {source['number']}: expected \"{source['claim']}\" in a line with {mark}"
        if re.sub(r"\s+", "", source["cites"]) not in re.sub(r"\s+", "", listed):
            yield f"source {source['number']}: expected {source['cites']} under Sources"
        if not 0 <= months(newest) - months(source["read"]) <= keeps:
            yield f"source {source['number']}: expected it read in the {keeps} months before {newest}, found {source['read']}"


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def table(text, first):
    """{first cell: cells} of the table whose head begins so."""
    lines = text[text.index(first):].splitlines()
    rows = [cells(line) for line in lines[:next((n for n, line in enumerate(lines) if not line.startswith("|")), len(lines))]]
    return {row[0]: row[1:] for row in [rows[0], *rows[2:]]}


def sizes(shape):
    """Parameters, bytes of bf16 weights and bytes of the cache for a token, as inspect says them."""
    with tempfile.TemporaryDirectory() as folder:
        if "config" in shape:
            pathlib.Path(folder, "config.json").write_text(json.dumps(shape["config"]))
        told = json.loads(subprocess.run([INVAR, "inspect", folder if "config" in shape else shape["name"], "--load-format", "dummy:1", "--json"],
                                         check=True, capture_output=True, text=True).stdout)
    return told["parameters"], told["weight_bytes"], told["kv_bytes_per_token"]


class Sources(unittest.TestCase):
    newest = re.search(r"(?m)^## [\d.]+, (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text())[1]

    def faults(self, text=PAGES[COMPARISON], newest=None, sources=CLAIMS["source"]):
        return list(faults_of_sources(text, sources, newest or self.newest, CLAIMS["keeps_months"]))

    def test_every_claim_has_a_source_that_was_read(self):
        self.assertEqual(self.faults(), [])

    def test_what_is_wrong_is_found(self):
        text, sources = PAGES[COMPARISON], CLAIMS["source"]
        self.assertIn("source 1: expected it in", self.faults(text.replace(" [1]", ""))[0])
        self.assertIn("source 99: expected it in", self.faults(text.replace("no [4]", "no [4] [99]"))[0])
        self.assertIn("expected \"mostly\" in a line", self.faults(text.replace("| mostly", "| yes"))[0])
        self.assertIn("under Sources", self.faults(text.replace("vllm#51902", "vllm#1"))[0])
        later = self.faults(newest=f"{int(self.newest[:4]) + 1}{self.newest[4:]}")
        self.assertEqual(len(later), len(sources), "a year later all are old")

    def test_dates_of_the_pages_are_those_of_the_sources(self):
        year, month = max(source["read"] for source in CLAIMS["source"]).split("-")
        said = f"{MONTHS[int(month) - 1]} {year}"
        self.assertIn(f"read in\n{said}", PAGES[COMPARISON])
        self.assertIn(f"As of {said}", PAGES["README.md"])
        self.assertLessEqual(datetime.date.fromisoformat(self.newest), datetime.date.today())

    def test_readme_and_comparison_agree(self):
        """The table of README is the comparison's, in fewer words: yes stays yes, and no stays no."""
        of = {"neighbours in the batch": "neighbours in the batch", "chunks of the prompt": "chunks of the prompt", "prefix cache hit or miss": "prefix cache, hit or miss",
              "preemption and recomputation": "preemption and recomputation", "number of tensor-parallel ranks": "tensor-parallel size", "written specification of every bit": "written specification of the bits"}
        short, long = table(PAGES["README.md"], "| | Invar | vLLM"), table(PAGES[COMPARISON], "| Does an answer keep its bits")
        for one, other in of.items():
            for column, (a, b) in enumerate(zip(short[one], long[other])):
                if column == 3 or "1 = 2" in b or b.startswith(("[", "off", "no;", "proof", "FlashAttention", "Qwen3 dense")):
                    continue  # said in other words
                words = [re.match(r"\w+", cell)[0] for cell in (a, b)]
                if {"yes", "no"} & set(words):
                    self.assertEqual(words[0], words[1], (one, column))

    def test_what_is_no_longer_so_is_nowhere(self):
        for name, text in PAGES.items():
            for gone in CLAIMS["gone"]:
                self.assertNotIn(gone, re.sub(r"\s+", " ", text), name)


class Questions(unittest.TestCase):
    def test_each_is_a_heading_and_in_the_index(self):
        index = PAGES["docs/index.md"]
        for question in CLAIMS["question"]:
            heading = question["heading"]
            pages = [name for name, text in PAGES.items() if re.search(rf"(?m)^#+ {re.escape(heading)}$", text)]
            self.assertEqual(len(pages), 1, heading)
            self.assertIn(f"- [{heading}]({pages[0].removeprefix('docs/')}#", index)
            for word in question["words"]:
                self.assertIn(word.lower(), heading.lower(), "what somebody looks for stands in the heading")
        self.assertEqual(len(CLAIMS["question"]), 10)
        self.assertIn("(docs/index.md)", PAGES["README.md"])

    def test_links_of_the_index_lead_somewhere(self):
        name = lambda heading: re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        links = re.findall(r"\]\(([\w/]+\.md)(?:#([^)]*))?\)", PAGES["docs/index.md"])
        self.assertGreater(len(links), 60)
        for page, anchor in links:
            text = PAGES[f"docs/{page}"]
            self.assertTrue(not anchor or anchor in [name(heading) for heading in re.findall(r"(?m)^#+ (.*)$", text)], (page, anchor))
        linked = {page for page, _ in links}
        self.assertEqual([name for name in PAGES if re.fullmatch(r"docs/\w+\.md", name) and name.removeprefix("docs/") not in linked and name not in
                          ("docs/index.md", "docs/architecture.md", "docs/contributing.md", "docs/tests.md", "docs/bugs_elsewhere.md")], [])


class Fits(unittest.TestCase):
    def test_what_fits_where(self):
        rows = table(PAGES["docs/faq.md"], "| shape |")
        self.assertEqual(rows["shape"][4:], list(ROOMS))
        self.assertEqual([name.strip("`") for name in rows if name != "shape"], [shape["name"] for shape in CLAIMS["shape"]])
        for shape in CLAIMS["shape"]:
            parameters, weights, token = sizes(shape)
            expected = [f"{parameters / 1e9:.2f}", f"{weights / GIB:.1f}", f"{token / 1024:.0f}", f"{8192 * token / GIB:.2f}"]
            expected += ["yes" if weights + 8192 * token <= 0.9 * room * GIB else "no" for room in ROOMS.values()]
            self.assertEqual(next(cells for name, cells in rows.items() if name.strip("`") == shape["name"]), expected, shape["name"])
        self.assertEqual({answer for row in list(rows.values())[1:] for answer in row[4:]}, {"yes", "no"}, "the control: not all fits everywhere")


if __name__ == "__main__":
    INVAR = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
