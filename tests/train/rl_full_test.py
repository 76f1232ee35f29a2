#!/usr/bin/env python3
"""recipes/rl.toml from its first weights on, three seeds: each gains at least 25 points of reward on
problems held out, every token's log-probability is the same at sampler and trainer, and a rerun on
one thread gives the same weights. Usage: rl_full_test.py INVAR RECIPES [DIRECTORY]

With DIRECTORY, which is kept, a test of the same program that was interrupted goes on from its
checkpoints. Runs of up to four threads go side by side as far as there are cores."""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

INVAR, RECIPES, DIRECTORY = None, None, None  # set by main
CORES = len(os.sched_getaffinity(0))
EXACTLY_0 = ["k1", "k2", "k3", "largest_difference", "different_tokens", "ratio_deviation",
             "clip_fraction"]
EXACTLY_1 = ["smallest_ratio", "largest_ratio"]


class RlFullTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = None if DIRECTORY else tempfile.TemporaryDirectory(prefix="invar-rl-")
        cls.root = pathlib.Path(DIRECTORY or cls.directory.name)
        program = hashlib.sha256(pathlib.Path(INVAR).read_bytes()).hexdigest()
        mark = cls.root / "program"
        if mark.exists():
            assert mark.read_text() == program, f"{cls.root}: expected the runs of this program, found another's"
        shutil.copytree(RECIPES, cls.root / "recipes", dirs_exist_ok=True)
        mark.write_text(program)
        cls.invar("train", "recipes/rl_start.toml", "--output", "out/rl_start")

    @classmethod
    def tearDownClass(cls):
        if cls.directory:
            cls.directory.cleanup()

    @classmethod
    def invar(cls, *args):
        done = subprocess.run([INVAR, *args], cwd=cls.root, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1].split()[-1]  # the digest of the weights

    def run_seed(self, seed, name, threads):
        digest = self.invar("rl", "recipes/rl.toml", "--seed", str(seed), "--output", name, "--threads", str(threads))
        metrics = (self.root / name / "metrics.jsonl").read_text().splitlines()
        return digest, [json.loads(line) for line in metrics]

    def model_bytes(self, name):
        return (self.root / name / "model" / "model.safetensors").read_bytes()

    def test_three_seeds(self):
        runs = [(1, "out/again", 1)] + [(seed, f"out/rl-{seed}", min(4, CORES)) for seed in (1, 2, 3)]
        with concurrent.futures.ThreadPoolExecutor(max(1, CORES // 4)) as pool:
            again, *done = pool.map(lambda run: self.run_seed(*run), runs)
        for seed, (digest, lines) in zip((1, 2, 3), done):
            for line in lines[1:]:
                self.assertEqual([line[key] for key in EXACTLY_0], [0] * len(EXACTLY_0))
                self.assertEqual([line[key] for key in EXACTLY_1], [1, 1])
            first, last = lines[0]["evaluation"], lines[-1]["evaluation"]
            print(f"seed {seed}: {first:.3f} -> {last:.3f}, weights {digest}", flush=True)
            self.assertGreaterEqual(first, 0.2)
            self.assertLessEqual(first, 0.6)
            self.assertGreaterEqual(last - first, 0.25)
        self.assertEqual(len({digest for digest, _ in done}), 3)
        self.assertEqual(again[0], done[0][0])
        self.assertEqual(*(self.model_bytes(name) for name in ("out/rl-1", "out/again")))
        print(f"seed 1 again on one thread: weights {again[0]}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    paths = [str(pathlib.Path(path).resolve()) for path in sys.argv[1:4]]
    INVAR, RECIPES, DIRECTORY = paths if len(paths) == 3 else (*paths, None)
    unittest.main(argv=sys.argv[:1], verbosity=2)
