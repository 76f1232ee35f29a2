#!/usr/bin/env python3
"""The models that Invar brings along: the bytes and the bits that their cards name, and that they can do something.
Usage: bundled_models_test.py INVAR SOURCE_DIRECTORY [unittest arguments]"""
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

INVAR, SOURCE = None, None
GREEDY = ["-p", "Once upon a time", "--temperature", "0", "--max-tokens", "48"]
SUMS = [(3, 4), (2, 5), (12, 7), (21, 8), (30, 9), (14, 5), (25, 31), (42, 16)]


def run_generate(*args, home=None, folder=None):
    env = dict(os.environ, INVAR_HOME=str(home)) if home else None
    return subprocess.run([INVAR, "generate", *map(str, args), "--json"], capture_output=True, timeout=60, env=env, cwd=folder)


def generate(*args, home=None, folder=None):
    done = run_generate(*args, home=home, folder=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def drafting(drafter, **more):
    """What drafts on stories do. Fails if an answer changes."""
    config = json.dumps({"method": "eagle3", "model": str(drafter), "adaptive": False, **more})
    done = subprocess.run([INVAR, "bench", "speculate", SOURCE / "models" / "story", "--json", "--tasks", "story", "--rounds", "1",
                           "--tokens", "16", "--speculative-config", config], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)[1]


def card(model):
    """(SHA-256 of the weights, logits hash) that a card names."""
    text = (model / "README.md").read_text()
    sha = re.search(r"SHA-256 of model.safetensors \| `([0-9a-f]{64})`", text)
    logits = re.search(r"logits hash of 48 greedy tokens[^|]* \| `([0-9a-f]{64})`", text)
    return sha[1], logits[1]


def sha_of(model):
    return hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()


class Bundled(unittest.TestCase):
    def setUp(self):
        self.models = [SOURCE / "models" / name for name in ("story", "draft")]

    def test_bytes_and_bits_are_those_of_the_card(self):
        for model in self.models:
            sha, logits = card(model)
            self.assertEqual(sha_of(model), sha, model)
            for variant in [[], ["--threads", "1", "--max-num-batched-tokens", "3", "--max-num-seqs", "1"], ["--isa", "avx2"]]:
                self.assertEqual(generate(model, *GREEDY, *variant)["logits_hash"], logits, (model, variant))

    def test_one_bit_shows(self):
        with tempfile.TemporaryDirectory() as directory:
            copy = pathlib.Path(directory) / "copy"
            shutil.copytree(self.models[0], copy)
            weights = copy / "model.safetensors"
            data = bytearray(weights.read_bytes())
            # A bit of a norm: far from it, a weight may be one that this prompt never meets.
            size = int.from_bytes(data[:8], "little")
            begin = json.loads(data[8:8 + size])["model.norm.weight"]["data_offsets"][0]
            data[8 + size + begin] ^= 0x20
            weights.write_bytes(data)
            sha, logits = card(copy)
            self.assertNotEqual(sha_of(copy), sha)
            self.assertNotEqual(generate(copy, *GREEDY)["logits_hash"], logits)

    def test_the_drafter_drafts_and_changes_no_bit(self):
        drafter = SOURCE / "models" / "eagle3"
        sha = re.search(r"SHA-256 of model.safetensors \| `([0-9a-f]{64})`", (drafter / "README.md").read_text())[1]
        self.assertEqual(sha_of(drafter), sha)
        _, logits = card(self.models[0])
        config = json.dumps({"method": "eagle3", "model": str(drafter)})
        self.assertEqual(generate(self.models[0], *GREEDY, "--speculative-config", config)["logits_hash"], logits)
        drafts = drafting(drafter)
        self.assertGreater(drafts["accepted_length"], 2)
        sure = drafting(drafter, draft_confidence=0.5)  # fewer tokens are drafted, more of them accepted
        self.assertGreater(sure["acceptance"], drafts["acceptance"] + 0.1)
        self.assertLess(sure["rows_per_step"], drafts["rows_per_step"])

    def test_bundled_drafters_are_found_from_anywhere(self):
        _, logits = card(self.models[0])
        with tempfile.TemporaryDirectory() as folder:
            for method, model in (("eagle3", "models/eagle3"), ("draft_model", "models/draft")):
                drafts = [*GREEDY, "--speculative-config", json.dumps({"method": method, "model": model})]
                self.assertEqual(generate(*drafts, home=SOURCE, folder=folder)["logits_hash"], logits)
                elsewhere = run_generate(self.models[0], *drafts, home="/nowhere", folder=folder)
                self.assertNotEqual(elsewhere.returncode, 0)
                self.assertIn(model, elsewhere.stderr.decode())

    def test_a_drafter_without_its_weights_drafts_nothing_right(self):
        with tempfile.TemporaryDirectory() as directory:
            copy = pathlib.Path(directory) / "copy"
            shutil.copytree(SOURCE / "models" / "eagle3", copy)
            weights = copy / "model.safetensors"
            data = bytearray(weights.read_bytes())
            size = int.from_bytes(data[:8], "little")
            begin, end = json.loads(data[8:8 + size])["lm_head.weight"]["data_offsets"]
            data[8 + size + begin:8 + size + end] = bytes(end - begin)
            weights.write_bytes(data)
            self.assertLess(drafting(copy)["accepted_length"], 1.2)

    def test_they_are_small(self):
        size = sum(f.stat().st_size for f in (SOURCE / "models").rglob("*") if f.is_file())
        self.assertLess(size, 40e6)

    def test_it_is_what_generate_takes_without_a_model(self):
        _, logits = card(self.models[0])
        self.assertEqual(generate(*GREEDY, home=SOURCE)["logits_hash"], logits)
        self.assertEqual(run_generate(*GREEDY, home="/nowhere").returncode, 2)

    def test_it_works_out_sums(self):
        right = 0
        for a, b in SUMS:
            prompt = f"<|im_start|>user\nWhat is {a} + {b}?<|im_end|>\n<|im_start|>assistant\n"
            text = generate(self.models[0], "-p", prompt, "--temperature", "0", "--max-tokens", "100")["text"]
            right += text.rstrip().endswith(f"The answer is {a + b}.")
        print(f"{right} of {len(SUMS)} sums")
        self.assertGreaterEqual(right, len(SUMS) // 2)


if __name__ == "__main__":
    INVAR, SOURCE = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2]).resolve()
    del sys.argv[1:3]
    unittest.main()
