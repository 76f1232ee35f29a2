#!/usr/bin/env python3
"""recipes/rl.toml from its first weights on, three seeds: each gains at least 25 points of reward on
problems held out, every token's log-probability is the same at sampler and trainer, and a rerun on
one thread gives the same weights. Usage: rl_full_test.py INVAR RECIPES"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

INVAR, RECIPES = None, None  # set by main
EXACTLY_0 = ["k1", "k2", "k3", "largest_difference", "different_tokens", "ratio_deviation",
             "clip_fraction"]
EXACTLY_1 = ["smallest_ratio", "largest_ratio"]


class RlFullTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="invar-rl-")
        cls.root = pathlib.Path(cls.directory.name)
        shutil.copytree(RECIPES, cls.root / "recipes")
        cls.invar("train", "recipes/rl_start.toml", "--output", "out/rl_start")

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    @classmethod
    def invar(cls, *args):
        done = subprocess.run([INVAR, *args], cwd=cls.root, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1].split()[-1]  # the digest of the weights

    def run_seed(self, seed, name, *args):
        digest = self.invar("rl", "recipes/rl.toml", "--seed", str(seed), "--output", name, *args)
        metrics = (self.root / name / "metrics.jsonl").read_text().splitlines()
        return digest, [json.loads(line) for line in metrics]

    def model_bytes(self, name):
        return (self.root / name / "model" / "model.safetensors").read_bytes()

    def test_three_seeds(self):
        digests = {}
        for seed in 1, 2, 3:
            digests[seed], lines = self.run_seed(seed, f"out/rl-{seed}")
            for line in lines[1:]:
                self.assertEqual([line[key] for key in EXACTLY_0], [0] * len(EXACTLY_0))
                self.assertEqual([line[key] for key in EXACTLY_1], [1, 1])
            first, last = lines[0]["evaluation"], lines[-1]["evaluation"]
            print(f"seed {seed}: {first:.3f} -> {last:.3f}, weights {digests[seed]}", flush=True)
            self.assertGreaterEqual(first, 0.2)
            self.assertLessEqual(first, 0.6)
            self.assertGreaterEqual(last - first, 0.25)
        self.assertEqual(len(set(digests.values())), 3)
        again, _ = self.run_seed(1, "out/again", "--threads", "1")
        self.assertEqual(again, digests[1])
        self.assertEqual(*(self.model_bytes(name) for name in ("out/rl-1", "out/again")))


if __name__ == "__main__":
    INVAR, RECIPES = (str(pathlib.Path(path).resolve()) for path in sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
