#!/usr/bin/env python3
"""The command line as a user calls it. Usage: cli_test.py INVAR [unittest arguments]"""
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

INVAR = None  # the program; set by main
PROMPT = "The bits of an answer depend on the request alone."
FAST = ["--threads", "1", "--max-model-len", "256", "--kv-cache-memory", "0.05"]


def invar(*args, home=None, address_space=resource.RLIM_INFINITY):
    """Without MODEL it is a small made one, or the one bundled in `home`: what is tested here does not depend on the one of this
    repository."""
    limit = (address_space, resource.getrlimit(resource.RLIMIT_AS)[1])
    return subprocess.run([INVAR, *args], capture_output=True, stdin=subprocess.DEVNULL, timeout=60,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
                          env=dict(os.environ, INVAR_HOME=str(home or os.environ["INVAR_HOME"])))


def header_of(path):
    """(start of the data, header) of a safetensors file."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    return 8 + size, json.loads(data[8:8 + size])


STORY = pathlib.Path(__file__).resolve().parents[2] / "models/story"


class CliTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="invar-cli-")
        cls.root = pathlib.Path(cls.directory.name)
        cls.model = cls.root / "model"
        os.environ["INVAR_HOME"] = str(cls.root / "home")
        for model, seed in (cls.model, "3"), (cls.root / "home/models/story", "1"):
            done = invar("make-model", str(model), "--seed", seed)
            assert done.returncode == 0, done.stderr

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def succeed(self, *args):
        done = invar(*map(str, args))
        self.assertEqual(done.returncode, 0, (args, done.stderr))
        return done.stdout

    def generate(self, *args, prompt=PROMPT):
        """What `generate --json` says of 8 tokens."""
        done = self.succeed("generate", "-p", prompt, "--json", "--max-tokens", "8", "--ignore-eos",
                            "--max-model-len", "256", "--max-num-seqs", "4", *args)
        return json.loads(done)

    def refuse(self, status, text, *args, **limits):
        """One sentence that has `text` on the error stream, nothing else, and the exit status."""
        done = invar(*args, **limits)
        stderr = done.stderr.decode()
        with self.subTest(args=args, stderr=stderr, status=done.returncode):
            self.assertEqual(done.returncode, status)
            self.assertEqual(done.stdout, b"")
            self.assertTrue(stderr.startswith("invar: ") and stderr.endswith("\n"))
            self.assertEqual(stderr.count("\n"), 1)
            self.assertIn(text, stderr)
            self.assertLess(len(stderr), 600)

    def copy_of_model(self, name):
        copy = self.root / name
        shutil.copytree(self.model, copy)
        return copy


class Help(CliTest):
    def test_every_subcommand_explains_itself(self):
        listing = self.succeed("--help").decode()
        commands = re.findall(r"^  (\S+)", listing.split("Subcommands:")[1], re.M)
        self.assertTrue({"generate", "chat", "score", "diff", "make-model", "inspect", "doctor"} <= set(commands))
        for command in commands:
            text = self.succeed(command, "--help").decode()
            self.assertIn(f"Usage: invar {command}", text)
            self.assertLessEqual(max(map(len, text.splitlines())), 120, command)
            for inner in ["{false}", "INT:INT", "FLOAT:FLOAT", "TEXT:{"]:  # how CLI11 puts it
                self.assertNotIn(inner, text, command)
        self.assertIn("--port INT=8000 (0 to 65535)", self.succeed("serve", "--help").decode())
        self.assertIn("eagle3", self.succeed("generate", "--help-all").decode())
        self.assertRegex(self.succeed("--version").decode(), r"^\d+\.\d+\.\d+\n$")

    def test_a_help_is_a_screen_and_help_all_has_the_rest(self):
        options = re.compile(r"^  ((?:-\w,)?--[a-z].*?)(?:  |$)", re.M)
        benches = re.findall(r"^  ([a-z]\S*) ", self.succeed("bench", "--help").decode().split("Subcommands:")[1], re.M)
        commands = re.findall(r"^  ([a-z]\S*) ", self.succeed("--help").decode().split("Subcommands:")[1], re.M)
        short_ones = set()
        for words in [*([name] for name in commands), *(["bench", name] for name in benches)]:
            short = self.succeed(*words, "--help").decode()
            with self.subTest(words=words):
                self.assertLessEqual(len(short.splitlines()), 60)
                if "--help-all" not in short:
                    self.assertEqual(self.succeed(*words, "--help-all").decode(), short)
                    continue
                short_ones.add(" ".join(words))
                whole = self.succeed(*words, "--help-all").decode()
                shown, listed = options.findall(short), options.findall(whole)
                self.assertLessEqual(len(shown), 17)
                self.assertEqual([name for name in shown if name not in listed], [])
                self.assertEqual(len(listed), len(set(listed)))
                self.assertIn(f"--help-all lists all {len(listed)} options.", short)
        self.assertLess({"serve", "generate", "chat", "score", "verify", "inspect", "audit", "evaluate", "bench model"}, short_ones)
        self.assertIn("\nSampling:\n", self.succeed("chat", "--help").decode())
        self.assertIn("\nOther options:\n", self.succeed("chat", "--help-all").decode())

    def test_doctor_and_inspect_print_json(self):
        doctor = json.loads(self.succeed("doctor", "--json"))
        self.assertIn(doctor["chosen"], [s["name"] for s in doctor["instruction_sets"] if s["supported"]])
        inspect = json.loads(self.succeed("inspect", self.model, "--json"))
        self.assertEqual(inspect["layers"], 4)
        self.assertNotIn("weights_digest", inspect)
        drafts = {method: json.loads(self.succeed("inspect", self.model, "--json", "--digest", "--speculative-config", json.dumps({"method": method, **more})))
                  for method, more in (("ngram", {"num_speculative_tokens": 4}), ("lookahead", {}))}
        self.assertEqual(len({one["weights_digest"] for one in drafts.values()}), 1)
        self.assertEqual(len(drafts["ngram"]["weights_digest"]), 64)
        self.assertEqual(drafts["ngram"]["draft_branch_bytes"], 0)  # chains have no branches
        self.assertGreater(drafts["lookahead"]["draft_branch_bytes"], 0)
        self.assertEqual(inspect["memory_bytes"], inspect["weight_bytes"] + inspect["kv_bytes"])
        twice = json.loads(self.succeed("inspect", self.model, "--json", "--max-num-seqs", "2"))
        self.assertEqual((twice["kv_bytes"], twice["weight_bytes"]), (2 * inspect["kv_bytes"], inspect["weight_bytes"]))
        exact = json.loads(self.succeed("inspect", self.model, "--json", "--weights", "exact"))
        self.assertEqual((inspect["rounding"], exact["rounding"]), ("inputs of products and the cache to bf16", "none: f32 throughout"))
        # A preset of eight billion parameters is described at once.
        large = json.loads(self.succeed("inspect", "llama-3.1-8b", "--load-format", "dummy:1", "--json"))
        norms = 2 * 65 * 4096  # f32 in memory
        self.assertEqual((large["parameters"], large["weight_bytes"]), (8030261248, 2 * 8030261248 + norms))
        named = json.loads(self.succeed("inspect", "llama-3.1-8b", "--json"))  # weights that are not read need no seed
        moment = "free_memory_bytes"
        self.assertEqual({**named, moment: 0}, {**large, moment: 0})
        self.refuse(2, "--load-format dummy:1 makes it", "score", "llama-3.1-8b", "--text", "x")


    def test_bench_text(self):
        report = json.loads(self.succeed("bench", "text", "--vocab", "600", "--kib", "8", "--rounds", "1", "--json"))
        self.assertEqual(report["vocabulary"], 600)
        self.assertTrue(all(value > 0 for value in report.values()))
        self.refuse(1, "/nowhere", "bench", "text", "/nowhere")
        self.refuse(1, "expected a regular file", "bench", "text", "--text", "/dev/null")
        with tempfile.NamedTemporaryFile() as empty:
            self.refuse(1, "found none", "bench", "text", "--text", empty.name)
        self.refuse(2, "rounds", "bench", "text", "--rounds", "0")


class Train(CliTest):
    def test_negative_threads_are_refused(self):
        for command in ["train"], ["rl"], ["bench", "train"]:
            self.refuse(2, 'found "-3"', *command, "recipe.toml", "--threads", "-3")


class BenchLoad(CliTest):
    def test_bench_schedule(self):
        report = json.loads(self.succeed("bench", "schedule", "--live", "20", "--steps", "100", "--json"))
        self.assertGreaterEqual(len(report), 5)  # and whichever policies joined
        self.assertGreater(report["sarathi"]["sequences_per_step"], 10)
        slow = invar("bench", "schedule", "--live", "50", "--steps", "100", "--limit-us", "1e-9")
        self.assertEqual(slow.returncode, 1)
        self.assertIn(b"medians of at most", slow.stderr)
        self.refuse(2, "found 0", "bench", "schedule", "--live", "0")

    def test_bench_model_measures_single_steps(self):
        few = ("bench", "model", "tiny", "--load-format", "dummy:1", "--threads", "1", "--rounds", "1")
        self.assertRegex(self.succeed(*few, "--contexts", "3,70,130").decode(), r"3 these +130 +[0-9.]+ +[0-9.]+")
        self.assertIn(b"16 exponential", self.succeed(*few, "--ragged", "--batches", "16", "--mean", "20"))
        self.assertIn(b"mixed step over the sum", self.succeed(*few, "--mixed", "40,3,100"))
        self.refuse(2, "three numbers", *few, "--mixed", "1,2")
        self.assertIn(b"as fast, shared", self.succeed(*few, "--shared", "3,128,20"))
        self.refuse(2, "SEQUENCES,PREFIX,OWN", *few, "--shared", "3,128")
        self.refuse(2, "found 0", *few, "--contexts", "3,0")
        self.refuse(2, "leave out --sweep and --json", *few, "--contexts", "3", "--json")

    def test_bench_model_sweeps_large_batches(self):
        rows = self.succeed("bench", "model", "tiny", "--load-format", "dummy:1", "--threads", "1", "--rounds", "1", "--sweep",
                            "--alone", "--batches", "1,128", "--prompts", "32,1000000").decode()
        for what in ("decode, batch 1", "decode, batch 128", "prefill 32"):
            self.assertRegex(rows, what + r" +[0-9]+\.[0-9]\n")
        self.assertRegex(rows, r"prefill 1000000 +left out: 1000001 tokens, where the model has [0-9]+ positions")
        few = ("bench", "model", "tiny", "--load-format", "dummy:1", "--threads", "1", "--rounds", "1", "--sweep", "--alone")
        alone = self.succeed(*few, "--batches", "2", "--behind", "40").decode()
        self.assertIn("decode, batch 2", alone)
        self.assertNotIn("prefill", alone)
        self.assertNotIn("decode", self.succeed(*few, "--prompts", "32").decode())
        self.assertRegex(self.succeed(*few, "--batches", "1", "--behind", "100000").decode(), "decode, batch 1 +left out: ")
        self.refuse(2, "expected --behind of 1 or more tokens, found 0", *few, "--behind", "0")

    def test_bench_divergence(self):
        few = ("bench", "divergence", "tiny", "--load-format", "dummy:1", "--completions", "20", "--tokens", "16",
               "--max-num-seqs", "8", "--json")
        report = json.loads(self.succeed(*few))
        self.assertEqual((report["unique_answers"], report["unique_logits"]), (1, 1))
        self.assertIsNone(report["logits_differ"]["first_difference"])
        control = json.loads(self.succeed(*few, "--arith", "control"))
        self.assertGreater(control["unique_logits"], 1)
        self.assertEqual(sum(control["logits_differ"]["branches"]), 20)
        self.refuse(2, "found 1, 1000", "bench", "divergence", "--completions", "1")

    def test_bench_speculate(self):
        rows = json.loads(self.succeed("bench", "speculate", str(self.model), "--rounds", "1", "--tokens", "12", "--json",
                                       "--speculative-config", '{"method": "suffix"}'))
        self.assertEqual([row["task"] for row in rows], ["story", "story", "copy", "copy"])
        for row in rows:
            self.assertGreater(row["tokens_per_second"], 0)
        # The model is loaded with its module where one of the methods needs it.
        rows = json.loads(self.succeed("bench", "speculate", str(STORY), "--rounds", "1", "--tokens", "12", "--json", "--tasks", "story",
                                       "--speculative-config", '{"method": "mtp"}', "--speculative-config", '{"method": "suffix"}'))
        self.assertEqual([(row["config"], row["changed_answers"]) for row in rows], [("", 0), ('{"method": "mtp"}', 0), ('{"method": "suffix"}', 0)])
        self.refuse(2, "batches", "bench", "speculate", "--batches", "0")
        # Acceptance is each method's own: by rejection sampled answers change, whatever stands beside.
        rejecting = [json.dumps({"method": method, "adaptive": False, "acceptance": "rejection"}) for method in ("lookahead", "early_exit")]
        coupled = json.dumps({"method": "early_exit", "adaptive": False})
        rows = json.loads(self.succeed("bench", "speculate", str(self.model), "--rounds", "1", "--tokens", "12", "--json", "--tasks", "story",
                                       "--temperature", "1", *(word for config in (*rejecting, coupled) for word in ("--speculative-config", config))))
        changed = {row["config"]: row["changed_answers"] for row in rows}
        self.assertEqual((changed[""], changed[coupled]), (0, 0))
        self.assertTrue(all(changed[config] > 0 for config in rejecting), changed)
        said = self.succeed("bench", "speculate", str(self.model), "--undrafted", "2", "--batches", "3", "--rounds", "1", "--tokens", "8",
                            "--speculative-config", '{"method": "early_exit", "adaptive": false}').decode()
        self.assertIn("2 without drafts beside 3 sequences that speculate", said)
        self.assertRegex(said, r"(?m)^ +[\d.]+ +[\d.]+ +[\d.]+ +[1-9]\d*   \{\"method\": \"early_exit\", \"adaptive\": false\}$")

    def test_bench_load(self):
        load, page = self.root / "load.toml", self.root / "load.html"
        text = """
            name = "small"
            requests = 12
            arrivals = {kind = "gamma", variation = 2.0, rate = 300.0}
            prompts = {low = 16, high = 100}
            answers = {kind = "zipf", low = 2, high = 12}
            limits = {search_requests = 20}
            engine = {max_num_seqs = 8, kv_cache_memory_gib = 0.05}
            policies = [{name = "sarathi", budgets = [24, 48]}, {name = "vllm", budgets = [128]}]
            """
        load.write_text(text)
        run = ["bench", "load", str(load), "tiny", "--load-format", "dummy:1", "--threads", "1"]
        for clock in ("real", "cpu", "model"):
            report = json.loads(self.succeed(*run, "--clock", clock, "--report", page, "--json"))
            self.assertEqual(report["clock"], clock)
            self.assertEqual([p["budget"] for p in report["policies"]], [24, 128])
            for policy in report["policies"]:
                measured = policy["run"]
                self.assertGreater(measured["ttft"]["p50"], 0)
                self.assertGreaterEqual(measured["tbt"]["p99"], measured["tbt"]["p50"])
                self.assertGreater(measured["requests_per_second"], 0)
            self.assertIn("<svg", page.read_text())
        # A share of the capacity needs a search, on any clock.
        load.write_text(text.replace("rate = 300.0", "share_of_capacity = 0.5").replace("search_requests", "tbt_p99 = 1e-5, search_requests"))
        self.refuse(1, "beyond the limits at every rate", *run, "--search-clock", "model", "--no-check-cost", "--json")
        load.write_text(text.replace("rate = 300.0", "share_of_capacity = 0.5"))
        for clock in ("model", "cpu"):
            report = json.loads(self.succeed(*run, "--clock", "cpu", "--search-clock", clock, "--policies", "vllm", "--no-check-cost", "--json"))
            (policy,) = report["policies"]
            self.assertAlmostEqual(report["rate"], 0.5 * policy["searches"][0]["capacity"]["rate"])
        # The cost model is checked at three rates, and a capacity is searched for every SLO.
        report = json.loads(self.succeed(*run, "--clock", "model", "--slo", "0.5,auto", "--cost-seconds", "0.02", "--policies", "vllm", "--sides", "--run-seconds", "0.1", "--json"))
        self.assertEqual(len(report["slos"]), 3)
        self.assertAlmostEqual(report["slos"][2]["tbt_p99"], 5 * report["slos"][1]["tbt_p99"])
        self.assertEqual(len(report["cost_check"]["points"]), 3)
        agrees = all(point["agrees"] for point in report["cost_check"]["points"])
        self.assertEqual(report["search_clock"], "model" if agrees else "cpu")
        self.assertEqual(any("cost model is not within" in w for w in report["warnings"]), not agrees)
        for policy in report["policies"]:
            self.assertEqual({s["slo"] for s in policy["searches"]}, {0, 1, 2})
            self.assertEqual([len(s["sides"]) for s in policy["searches"] if s["sides"]], [2, 2, 2])
        # What was measured is kept: another run needs neither the time nor the device, and checks itself by the runs in the file.
        kept = self.root / "kept.json"
        given = ["--policies", "sarathi", "--clock", "model", "--json"]
        load.write_text(text.replace("[24, 48]", "[24]"))
        report = json.loads(self.succeed(*run, *given, "--cost-seconds", "0.02", "--check-rates", "100,200", "--run-seconds", "0.1", "--save-cost", str(kept)))
        self.assertEqual([p["rate"] for p in report["cost_check"]["points"]], [100, 200])
        load.write_text(text.replace("[24, 48]", "[24]").replace("rate = 300.0", "share_of_capacity = 0.5"))
        again = json.loads(self.succeed("bench", "load", str(load), "tiny", "--load-format", "dummy:1", "--device", "cuda", *given, "--slo", "auto", "--cost", str(kept)))
        self.assertIn("steps were measured before, on ", again["machine"])
        self.assertEqual(again["search_clock"], "model")
        for old, new in zip(report["cost_check"]["points"], again["cost_check"]["points"]):
            self.assertEqual(old["measured"]["tbt"]["p99"], new["measured"]["tbt"]["p99"])
            self.assertEqual(old["model"], new["model"])
        self.refuse(2, "expected measurements of bench-100m, found those of tiny", "bench", "load", str(load), "bench-100m", "--load-format", "dummy:1", "--cost", str(kept))
        self.refuse(1, "none.json", *run, "--cost", str(self.root / "none.json"))
        self.refuse(2, "--check-rates", *run, "--check-rates", "0")
        load.write_text(text.replace("rate = 300.0", "share_of_capacity = 0.5"))
        table = self.succeed(*run, "--clock", "model", "--requests", "5", "--no-check-cost").decode()
        self.assertIn("P99 TBT of sarathi", table)
        self.assertIn("is not in balance", table)
        self.refuse(2, "found \"soon\"", *run, "--slo", "soon")
        self.refuse(2, "this one has none", *run, "--trace", "x.csv")
        self.refuse(2, "--cost-seconds", *run, "--cost-seconds", "0")

        self.refuse(2, "real, cpu or model", *run, "--clock", "sundial")
        self.refuse(2, "add --threads 1", *run[:-2], "--clock", "cpu")
        self.refuse(2, "no policy \"orca\" in this load", *run, "--policies", "orca")
        self.refuse(2, "found -1", *run, "--requests", "-1")
        self.refuse(2, "found -2", *run, "--rate", "-2")
        self.refuse(1, "/no/such", *run, "--report", "/no/such/page.html")
        self.refuse(1, "/none.toml", "bench", "load", "/none.toml")
        load.write_text(text.replace("[128]", "[64]"))
        self.refuse(2, "computes prompts whole", *run)
        load.write_text(text.replace("high = 100", "high = 5000"))
        self.refuse(2, "positions", *run)


class Generate(CliTest):
    def test_it_says_what_it_sampled_with_and_what_drafts_gave(self):
        run = ["generate", self.model, "-p", "Once upon a time", "--max-tokens", "40", "--max-model-len", "256"]
        told = lambda *more: invar(*run, *more).stderr.decode()
        self.assertRegex(told("--temperature", "0.5", "--top-k", "7", "--top-p", "0.9", "--seed", "3"), r"(?m)^sampling    temperature 0.5, top_k 7, top_p 0.9, seed 3; what no option says is of generation_config.json$")
        plain = told("--temperature", "0")
        self.assertRegex(plain, r"(?m)^sampling    the most likely token \(temperature 0\)$")
        self.assertNotIn("drafts", plain)
        drafting = ["--temperature", "0", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3, "adaptive": false}']
        self.assertRegex(told(*drafting), r"(?m)^drafts      \d+ of [1-9]\d* tokens accepted \(\d+ %\), [1-4]\.\d\d tokens a step$")
        found, alone = [json.loads(self.succeed(*run, "--json", *more)) for more in (drafting, ["--temperature", "0"])]
        self.assertEqual(found["logits_hash"], alone["logits_hash"])
        self.assertLessEqual(found["accepted_tokens"], found["draft_tokens"])
        self.assertNotIn("draft_tokens", alone)
        self.assertRegex(invar(*run[:4], "--max-tokens", "2", "--max-model-len", "256", "--spec-method", "ngram").stderr.decode(), r"(?m)^drafts      none was proposed$")
        self.assertEqual((alone["sampling"]["temperature"], alone["sampling"]["seed"]), (0, 0))
        self.assertNotIn("presence_penalty", alone["sampling"])
        penalised = json.loads(invar(*run, "--seed", str(2 ** 64 - 1), "--presence-penalty", "1.5", "--json").stdout)
        self.assertEqual((penalised["sampling"]["presence_penalty"], penalised["sampling"]["seed"]), (1.5, str(2 ** 64 - 1)))
        self.assertIn("presence_penalty 1.5", told("--presence-penalty", "1.5", "--temperature", "1"))

    @unittest.skipIf(pathlib.Path("/dev/nvidia0").exists(), "there is a GPU")
    def test_layers_for_a_gpu_that_there_is_not_are_a_warning(self):
        run = ["generate", self.model, "-p", "Once upon a time", "--max-tokens", "4", "--max-model-len", "256", "--json"]
        done = invar(*run, "-ngl", "99")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--gpu-layers changes nothing: this machine has no GPU", done.stderr.decode())
        self.assertEqual(json.loads(done.stdout)["logits_hash"], json.loads(self.succeed(*run))["logits_hash"])

    def test_schedules_do_not_show_in_the_hash(self):
        expected = self.generate(self.model)
        self.assertEqual(expected["completion_tokens"], 8)
        self.assertRegex(expected["logits_hash"], "^[0-9a-f]{64}$")
        sets = json.loads(self.succeed("doctor", "--json"))["instruction_sets"]
        variants = [["--isa", s["name"]] for s in sets if s["supported"]]
        variants += [["--threads", "1"], ["--threads", "3"], ["--block-size", "32"], ["--block-size", "128"],
                     ["--max-num-batched-tokens", "7"], ["--tensor-parallel-size", "2"],
                     ["--layer-cuts", "1,3"], ["--pipeline-parallel-size", "3"],
                     ["--pipeline-parallel-size", "2", "--tensor-parallel-size", "2"], ["--kv-cache-memory", "0.01"]]
        for variant in variants:
            with self.subTest(variant=variant):
                found = self.generate(self.model, *variant)
                for key in ("logits_hash", "text", "identity"):
                    self.assertEqual(found[key], expected[key])
        for config in ('{"method": "ngram", "prompt_lookup_min": 1}', '{"method": "lookahead"}',
                       '{"method": "early_exit", "adaptive": true}', '{"model": "dummy:5", "num_speculative_tokens": 3}'):
            with self.subTest(drafts=config):
                found = self.generate(self.model, "--speculative-config", config)
                self.assertEqual(found["logits_hash"], expected["logits_hash"])
        self.refuse(2, "expected a \"method\" of ngram", "generate", "-p", "x", "--spec-method", "magic")
        self.refuse(2, "is given there and by a flag", "generate", "-p", "x", "--spec-method", "mtp",
                    "--speculative-config", '{"method": "ngram"}')
        # Controls: other weights, another prompt, another arithmetic.
        self.assertEqual(self.generate("tiny", "--load-format", "dummy:3")["logits_hash"], expected["logits_hash"])
        self.assertNotEqual(self.generate("tiny", "--load-format", "dummy:4")["logits_hash"], expected["logits_hash"])
        self.assertNotEqual(self.generate(self.model, prompt=PROMPT + "!")["logits_hash"], expected["logits_hash"])
        self.assertNotEqual(self.generate(self.model, "--arith", "hopper")["logits_hash"], expected["logits_hash"])

    def test_the_start_says_what_branches_take_of_the_cache(self):
        ask = ["generate", self.model, "-p", PROMPT, "--max-tokens", "2", "--max-model-len", "256", "--max-num-seqs", "4", "--speculative-config"]
        said = lambda method, *flags: invar(*ask, json.dumps({"method": method}), *flags).stderr.decode()
        kept = re.search(r"invar: of the KV cache's (\d+) blocks (\d+) \(([\d.]+) MiB\) are kept for side branches of drafts \(--kv-cache-memory\)",
                         said("lookahead", "--kv-cache-memory", "0.1"))
        self.assertIsNotNone(kept)
        blocks, branches, mib = int(kept[1]), int(kept[2]), float(kept[3])
        self.assertAlmostEqual(mib / branches * blocks, 0.1 * 1024, delta=1)
        taken = json.loads(self.succeed("inspect", self.model, "--json", "--speculative-config", '{"method": "lookahead"}'))["draft_branch_bytes"]
        self.assertAlmostEqual(mib, taken / 2**20, delta=0.01)  # of one sequence, which is more than a sixteenth of that cache
        # The controls: drafts without branches, and memory that nobody gave.
        for other in (said("ngram", "--kv-cache-memory", "0.1"), said("lookahead")):
            self.assertNotIn("branches", other)

    def test_weights_are_in_memory_once(self):
        model = self.root / "larger"
        self.succeed("make-model", str(model), "--preset", "bench-100m")
        weights = (model / "model.safetensors").stat().st_size

        def peak(*args):
            process = subprocess.Popen([INVAR, *map(str, args)], stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            self.assertEqual(status, 0)
            return usage.ru_maxrss * 1024

        flags = ["--text", "a", "--max-num-seqs", "1", "--max-num-batched-tokens", "16",
                 "--max-model-len", "64", "--threads", "1"]
        base = peak("score", self.model, *flags)  # the program itself, beside a small model
        self.assertLess(peak("score", model, *flags) - base, 1.15 * weights)
        # The control: what is measured is the weights.
        self.assertGreater(peak("score", model, *flags) - base, 0.9 * weights)
        shutil.rmtree(model)

    def test_without_a_model_the_bundled_one_is_taken(self):
        home = self.root / "other home"
        shutil.copytree(self.model, home / "models" / "story")
        args = ["generate", "-p", PROMPT, "--json", "--max-tokens", "8", "--ignore-eos", *FAST]
        found = [json.loads(invar(*args, home=where).stdout)["logits_hash"] for where in (home, None)]
        named = json.loads(self.succeed(*args[:1], self.model, *args[1:]))["logits_hash"]
        self.assertEqual(found[0], named)
        self.assertNotEqual(found[1], named)
        shutil.rmtree(home)

    def test_without_a_bundled_model_nothing_is_answered(self):
        """A program that was copied away from its models, or whose INVAR_HOME is wrong."""
        alone = self.root / "alone/bin"
        alone.mkdir(parents=True)
        shutil.copy2(INVAR, alone / "invar")
        without = {name: value for name, value in os.environ.items() if name != "INVAR_HOME"}
        run = lambda *words, **home: subprocess.run([alone / "invar", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                                                    timeout=60, env={**without, **home})
        for words in (["generate", "-p", "x"], ["serve", "--port", "0"], ["chat"], ["score", "--text", "x"], ["inspect"], ["audit"],
                      ["evaluate"]):
            for home, places in (({}, f"{self.root}/models/story or {self.root}/alone/share/invar/models/story"),
                                 ({"INVAR_HOME": "/nowhere"}, "/nowhere/models/story")):
                done = run(*words, **home)
                self.assertEqual((done.returncode, done.stdout), (2, ""), (words, done.stderr))
                self.assertEqual(done.stderr, f"invar: expected the bundled model in {places}, found none: name a MODEL, set INVAR_HOME to "
                                              "the directory of models/, or ask for random weights with --load-format dummy:1\n")
        # The control: who asks for random weights gets them, and who names a model gets its own.
        self.assertEqual(run("generate", "-p", "x", "--load-format", "dummy:1", "--max-tokens", "2", *FAST).returncode, 0)
        self.assertEqual(run("generate", self.model, "-p", "x", "--max-tokens", "2", *FAST).returncode, 0)

    def test_the_seed_decides_what_is_drawn(self):
        drawn = {self.generate("--temperature", "1", "--seed", str(seed))["text"] for seed in range(4)}
        self.assertGreater(len(drawn), 1)
        again = [self.generate("--temperature", "1", "--seed", "2", *more)["logits_hash"]
                 for more in ([], ["--threads", "1", "--max-num-batched-tokens", "5"])]
        self.assertEqual(again[0], again[1])

    def test_text_goes_out_and_the_report_beside_it(self):
        done = invar("generate", str(self.model), "-p", PROMPT, "--temperature", "0", "--max-tokens", "8", *FAST)
        self.assertEqual(done.returncode, 0)
        report = self.generate(self.model, "--temperature", "0")
        self.assertEqual(done.stdout.decode().strip("\n"), report["text"].strip("\n"))
        self.assertIn(report["logits_hash"], done.stderr.decode())


class Score(CliTest):
    def test_log_probabilities_do_not_depend_on_the_schedule(self):
        args = ["score", self.model, "--text", PROMPT, "--json", "--max-model-len", "256",
                "--max-num-seqs", "4"]
        expected = json.loads(self.succeed(*args))
        self.assertEqual(len(expected["logprobs"]), len(expected["tokens"]))
        self.assertTrue(all(p < 0 for p in expected["logprobs"][1:]))
        self.assertEqual(json.loads(self.succeed(*args, "--max-num-batched-tokens", "5", "--threads", "1")), expected)
        ids = ",".join(map(str, expected["tokens"]))
        by_id = json.loads(self.succeed("score", self.model, "--tokens", ids, "--json"))
        self.assertEqual(by_id, expected)


class Diff(CliTest):
    def trace(self, name, *args):
        path = self.root / name
        self.generate("--trace", path, *args)
        return path

    def test_equal_runs_different_runs_and_other_files(self):
        a = self.trace("a", self.model)
        b = self.trace("b", self.model, "--threads", "1", "--isa", "scalar", "--max-num-batched-tokens", "6")
        self.assertIn(b"no difference", self.succeed("diff", a, b))
        report = json.loads(self.succeed("diff", a, b, "--json"))
        self.assertIsNone(report["first_difference"])
        self.assertGreater(report["records_equal"], 500)

        changed = self.copy_of_model("changed")  # the control: one weight of one layer
        weights = changed / "model.safetensors"
        start, header = header_of(weights)
        data = bytearray(weights.read_bytes())
        at = start + header["model.layers.2.mlp.down_proj.weight"]["data_offsets"][0]
        data[at + 1] ^= 0x80  # the sign
        weights.write_bytes(data)
        c = self.trace("c", changed)
        done = invar("diff", str(a), str(c))
        self.assertEqual(done.returncode, 1)
        self.assertIn("first difference   request 1, position 0, layer 2, down", done.stdout.decode())
        done = invar("diff", str(a), str(c), "--json")
        self.assertEqual(done.returncode, 1)
        first = json.loads(done.stdout)["first_difference"]
        self.assertEqual((first["layer"], first["operation"], first["index"], first["differing_values"]),
                         (2, "down", 0, 1))
        self.assertEqual(float.fromhex(first["a_hex"]), first["a"], "the f32's own double")
        self.assertNotEqual(first["a"], first["b"])
        self.assertGreater(first["ulps"], 0)

        self.refuse(2, "expected a recording", "diff", str(a), str(weights))
        self.refuse(2, "none", "diff", str(a), str(self.root / "none"))

    def test_the_limit_of_values(self):
        full = self.trace("full", self.model)
        hashes = self.trace("hashes", self.model, "--trace-values", "0")
        self.assertLess(hashes.stat().st_size, full.stat().st_size / 4)
        self.succeed("diff", full, hashes)
        self.refuse(1, "cannot be created", "generate", "-p", "x", "--trace", str(self.root / "no" / "such"), *FAST)


class Chat(CliTest):
    def chat(self, text, *args, status=0):
        done = subprocess.run([INVAR, "chat", *FAST, "--max-tokens", "8", "--ignore-eos", *map(str, args)],
                              input=text if isinstance(text, bytes) else text.encode(), capture_output=True, timeout=60)
        self.assertEqual(done.returncode, status, done.stderr)
        return done

    def test_the_conversation_goes_into_the_next_prompt(self):
        both = json.loads(self.chat("Hello\nAnd then?\n", self.model, "--json", "--temperature", "0").stdout)
        self.assertEqual([m["role"] for m in both["messages"]], ["user", "assistant"] * 2)
        first, second = both["answers"]
        self.assertEqual(first["completion_tokens"], 8)
        # What generate says to the text that the made template gives.
        said = both["messages"][1]["content"]
        text = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
        args = ["--temperature", "0"]
        self.assertEqual(self.generate(self.model, *args, prompt=text)["logits_hash"], first["logits_hash"])
        text += said + "<|im_end|>\n<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n"
        self.assertEqual(self.generate(self.model, *args, prompt=text)["logits_hash"], second["logits_hash"])
        again = json.loads(self.chat("x\n/reset\nHello\n/exit\nlost\n", self.model, "--json", "--temperature", "0").stdout)
        self.assertEqual([a["logits_hash"] for a in again["answers"]][1:], [first["logits_hash"]])
        self.assertEqual(again["messages"], both["messages"][:2])
        told = json.loads(self.chat("Hello\n", self.model, "--json", "--temperature", "0", "--system", "Be brief.").stdout)
        self.assertEqual(told["messages"][0], {"role": "system", "content": "Be brief."})
        self.assertNotEqual(told["answers"][0]["logits_hash"], first["logits_hash"])

    def test_answers_go_out_and_the_report_beside_them(self):
        done = self.chat("Hello\nAgain", self.model)
        report = json.loads(self.chat("Hello\nAgain\n", self.model, "--json").stdout)
        answers = [m["content"] for m in report["messages"][1::2]]
        self.assertEqual(done.stdout.decode(), "".join(a + "\n" for a in answers))
        self.assertIn("2 answers, 16 tokens", done.stderr.decode())
        self.assertIn(report["answers"][1]["logits_hash"], done.stderr.decode())
        self.assertIn(b"random weights", self.chat("Hello\n", "--load-format", "dummy:1").stderr)
        self.assertIn(b"0 answers", self.chat("").stderr)

    def test_a_turn_that_cannot_be_answered_loses_nothing_else(self):
        done = self.chat("\n".join(["Hello", "x " * 2000, "Again", ""]), self.model, "--json", status=1)
        self.assertIn(b"the conversation has", done.stderr)
        self.assertEqual([m["content"] for m in json.loads(done.stdout)["messages"][::2]], ["Hello", "Again"])
        self.assertIn(b"UTF-8", self.chat(b"caf\xe9\nHello\n", self.model, status=1).stderr)

    def test_templates(self):
        refuses = self.root / "refuses.jinja"
        refuses.write_text("{% if messages | length > 1 %}\n{{ raise_exception('one turn only') }}{% endif %}Q")
        done = self.chat("a\nb\n", self.model, "--chat-template", refuses, status=1)
        self.assertIn(b"refuses.jinja refuses the conversation on line 2: one turn only", done.stderr)
        refuses.write_text("{% if %}")
        self.refuse(1, "refuses.jinja, line 1", "chat", str(self.model), "--chat-template", str(refuses))
        self.refuse(1, "none.jinja", "chat", str(self.model), "--chat-template", str(self.root / "none.jinja"))
        mute = self.copy_of_model("mute")
        (mute / "tokenizer_config.json").write_text("{}")
        self.refuse(1, "no chat template", "chat", str(mute))
        self.refuse(2, "UTF-8", "chat", str(self.model), "--system", b"\xff")

    def test_what_no_turn_could_be_answered_with(self):
        for text, args in [("temperature", ["--temperature", "-1"]), ("max_tokens", ["--max-tokens", "0"]),
                           ("top_p", ["--top-p", "1.5"]), ("min_tokens", ["--min-tokens", "-1"]), ("stop", ["--stop", ""])]:
            self.refuse(2, text, "chat", str(self.model), *FAST, *args)

    def test_an_interrupt_stops_the_answer_only(self):
        run = subprocess.Popen([INVAR, "chat", str(self.model), "--threads", "1", "--max-tokens", "3000", "--ignore-eos"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            run.stdin.write(b"Hello\n")
            run.stdin.flush()
            run.stdout.read(1)  # the answer has begun
            run.send_signal(signal.SIGINT)
            out, err = run.communicate(b"/reset\n/exit\n", timeout=60)
        finally:
            run.kill()
        self.assertEqual(run.returncode, 0, err)
        self.assertRegex(err.decode(), r"1 answers, \d{1,4} tokens")
        self.assertLess(int(err.decode().split(" answers, ")[1].split()[0]), 3000)


RECIPE = """
name = "tiny"
seed = 3
[corpus]
seed = 5
[tokenizer]
documents = 20
[model]
hidden = 32
layers = 2
heads = 2
kv_heads = 1
head_dim = 16
ffn = 64
vocab = 700
[training]
context = 64
rows = 4
groups = 2
batch_rows = 2
[optimizer]
steps = 300
warmup = 2
rate = 1e-2
[evaluation]
documents = 3
every = 300
[checkpoint]
every = 300
"""


class Train(CliTest):
    def test_a_signal_stops_with_a_checkpoint_and_the_same_command_goes_on(self):
        recipe = self.root / "tiny.toml"
        recipe.write_text(RECIPE)
        command = ["train", str(recipe), "--threads", "1", "--output"]
        expected = self.succeed(*command, self.root / "whole").decode().split("weights ")[1]
        stopped = self.root / "stopped"
        for sent in signal.SIGTERM, signal.SIGINT:
            run = subprocess.Popen([INVAR, *command, str(stopped)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            first = run.stdout.readline()  # into a pipe goes a plain line at once
            run.send_signal(sent)
            out, err = run.communicate(timeout=60)
            self.assertRegex(first.decode(), r"^step \d+ of 300, loss ")
            self.assertEqual(run.returncode, 128 + sent, err)
            self.assertIn(b"stopping with a checkpoint after this step", err)
            self.assertRegex(out.decode(), rf"stopped by {sent.name} after step \d+; its checkpoint is written")
            step = int(out.decode().split("after step ")[1].split(";")[0])
            self.assertTrue((stopped / f"checkpoints/step-{step:06}/training.json").exists())
            self.assertLess(out.count(b"\n"), 10)  # not a line for every step
        self.assertEqual(self.succeed(*command, stopped).decode().split("weights ")[1], expected)


class Output(CliTest):
    def test_a_full_disk_is_an_error(self):
        """Text that fits in a buffer is found unwritten at the end, streamed text at once."""
        asks = (["generate", self.model, "-p", PROMPT, "--max-tokens", "4", *FAST],
                ["generate", self.model, "-p", PROMPT, "--max-tokens", "4", "--json", *FAST],
                ["score", self.model, "--text", PROMPT, *FAST], ["inspect", self.model], ["doctor"], ["--version"],
                ["inspect", "--help"], ["make-model", self.root / "full"], ["corpus", "--count", "1"], ["corpus", "--count", "500"])
        for ask in asks:
            with open("/dev/full", "w") as full, self.subTest(ask=ask):
                done = subprocess.run([INVAR, *map(str, ask)], stdout=full, stderr=subprocess.PIPE, timeout=60)
                self.assertEqual(done.returncode, 1)
                self.assertRegex(done.stderr.decode().splitlines()[-1], "^invar: the standard output cannot be written: "
                                 "(No space left on device|an earlier write failed)$")
        closed = subprocess.run([INVAR, "inspect", str(self.model)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                preexec_fn=lambda: os.close(1))
        self.assertEqual(closed.returncode, 1)
        self.assertIn(b"the standard output cannot be written: Bad file descriptor", closed.stderr)
        lines = self.root / "full.jsonl"
        lines.write_text(json.dumps({"custom_id": "a", "body": {"prompt": "x"}}))
        self.refuse(1, "/dev/full", "generate", str(self.model), "--input", str(lines), "--output", "/dev/full", *FAST)

    def test_random_weights_are_said_to_be_random(self):
        for args in ["inspect"], ["score", "--tokens", "1,2,3", *FAST]:
            made = [*args, "--load-format", "dummy:1"]
            self.assertIn("random (dummy:1 of tiny)", self.succeed(*made).decode())
            self.assertIn("random", json.loads(self.succeed(*made, "--json"))["weights"])
            named = [args[0], self.model, *args[1:]]
            self.assertNotIn("random", self.succeed(*named).decode())
            self.assertNotIn("weights", json.loads(self.succeed(*named, "--json")))


class BadInput(CliTest):
    def test_wrong_calls(self):
        run = ["generate", "-p", "x"]
        self.refuse(2, "expected a subcommand of invar; see invar --help")
        self.refuse(2, 'expected a subcommand of invar, found "frobnicate"', "frobnicate")
        self.refuse(2, 'expected a subcommand of invar bench, found "nothing"; see invar bench --help', "bench", "nothing")
        self.refuse(2, "expected an option of invar generate, found --frobnicate; see invar generate --help", *run, "--frobnicate")
        self.refuse(2, "expected an option of invar, found --bogus; see invar --help", "--bogus", *run)
        self.refuse(2, "found --temprature (did you mean --temperature?); see", *run, "--temprature", "1")
        self.refuse(2, "found --max-token (did you mean --max-tokens?); see", *run, "--max-token=3")
        self.refuse(1, "expected a model directory", "chat", "--model", "x")  # as llama.cpp names it
        self.refuse(2, 'expected nothing more after invar doctor, found "now"', "doctor", "now")
        self.refuse(2, "--text: expected a value, found none; see invar score --help", "score", "--text")
        self.refuse(2, "expected a device", *run, "--device", "gpu")
        self.refuse(2, "expected a device", *run, "--device", "cuda:1x")
        self.refuse(1, "cuda:99", *run, "--device", "cuda:99")  # with CUDA and without
        self.refuse(2, "either --prompt TEXT or --input FILE", "generate")
        self.refuse(2, "either --prompt TEXT or --input FILE", *run, "--input", "a", "--output", "b")
        self.refuse(2, "--output", "generate", "--input", "a")
        self.refuse(2, "either --text or --tokens, found neither", "score")
        self.refuse(2, "--prompt of at least one character, found an empty one", "generate", "-p", "")
        self.refuse(2, "--text of at least one character, found an empty one", "score", "--text", "")
        self.refuse(2, "511", "score", "--tokens", "1,512", *FAST)
        self.refuse(2, "511", "score", "--tokens", "-1,1", *FAST)
        self.refuse(2, "--tokens", "score", "--tokens", "1,99999999999")
        self.refuse(2, 'expected an integer, found ""', "score", "--tokens", "")

    def test_numbers_that_are_none(self):
        """CLI11 alone takes an empty text for 0, 010 for 8, the largest number for larger ones, and nan."""
        for text, args in [("an integer, found", ["generate", "-p", "x", "--top-k", ""]),
                           ("a number, found", ["generate", "-p", "x", "--temperature", "warm"]),
                           ("a number, found", ["generate", "-p", "x", "--temperature", "1e999"]),
                           ("a number, found", ["serve", "--port", "0", "--target-tbt-ms", "nan"]),
                           ("a number, found", ["serve", "--port", "0", "--request-timeout", "-nan"]),
                           ("an integer, found", ["make-model", str(self.root / "m"), "--hidden", "1.5"]),
                           ("--hidden", ["make-model", str(self.root / "m"), "--hidden", "99999999999"]),
                           ("of 0 or more, found", ["make-model", str(self.root / "m"), "--seed", "-1"]),
                           ("of 0 or more, found", ["make-model", str(self.root / "m"), "--seed", "99999999999999999999"]),
                           ("an integer, found", ["bench", "schedule", "--live", "0x10"]),
                           ("limit-us", ["bench", "schedule", "--limit-us", "-1"]),
                           ("an integer, found", ["bench", "load", "x.toml", "--requests", "many"]),
                           ("of 0 or more, found", ["corpus", "--first", "-1"]),
                           ("of 1 or more, found", ["evaluate", "--stories", "0"])]:
            self.refuse(2, text, *args)
        self.assertFalse((self.root / "m").exists())

    def test_absurd_parameters(self):
        run = ["generate", "-p", "x"]
        cases = [
            ("threads", ["--threads", "-1"]), ("threads", ["--threads", "100000"]), ("--threads", ["--threads", "two"]),
            ("16", ["--block-size", "16"]), ("block", ["--block-size", "0"]), ("block", ["--block-size", "-64"]),
            ("3", ["--tensor-parallel-size", "3"]), ("0", ["--tensor-parallel-size", "0"]),
            ("-2", ["--tensor-parallel-size", "-2"]), ("1024", ["--tensor-parallel-size", "1024"]),
            ("kv-cache-memory", ["--kv-cache-memory", "-1"]), ("kv-cache-memory", ["--kv-cache-memory", "nan"]),
            ("kv-cache-memory", ["--kv-cache-memory", "inf"]),
            ("max-model-len", ["--max-model-len", "-5"]), ("4096", ["--max-model-len", "4097"]),
            ("--max-model-len", ["--max-model-len", "99999999999"]),
            ("0", ["--max-num-seqs", "0"]), ("-1", ["--max-num-seqs", "-1"]),
            ("0", ["--max-num-batched-tokens", "0"]), ("-7", ["--max-num-batched-tokens", "-7"]),
            ("0", ["--max-tokens", "0"]), ("-1", ["--max-tokens", "-1"]),
            ("temperature", ["--temperature", "-1"]), ("temperature", ["--temperature", "nan"]),
            ("--seed", ["--seed", "-1"]), ("stop", ["--stop", ""]),
            ("fastest", ["--scheduling-policy", "fastest"]), ("mmx", ["--isa", "mmx"]), ("exact", ["--arith", "exact"]),
            ("small", ["--weights", "small"]), ("dummy:x", ["--load-format", "dummy:x"]),
            ("found 0", ["--pipeline-parallel-size", "0"]), ("found 99", ["--pipeline-parallel-size", "99"]),
            ("for 2 pipeline", ["--pipeline-parallel-size", "2", "--layer-cuts", "1,3"]),
            ("99", ["--layer-cuts", "99"]), ("3,1", ["--layer-cuts", "3,1"]), ("2,2", ["--layer-cuts", "2,2"]),
            ("n must be", ["-n", "0"]), ("n must be", ["-n", "100000000"]),
            ("trace-values", ["--trace", "/tmp/x", "--trace-values", "-1"]),
        ]
        for text, args in cases:
            self.refuse(2, text, *run, *args)
        self.refuse(1, "memory", *run, "--kv-cache-memory", "0.0000001")
        self.refuse(1, "memory", *run, "--kv-cache-memory", "0.001", "--max-model-len", "4096")
        self.refuse(2, "--max-model-len", *run, "--max-model-len", "all")

    def test_chunks_that_shrink_change_nothing(self):
        run = ["generate", "-p", "x " * 600, "--json", "--threads", "1", "--max-tokens", "4", "--ignore-eos"]
        shrink = ["--enable-dynamic-chunking-schedule", "--high-chunk-size", "96", "--low-chunk-size", "32",
                  "--chunk-schedule-max-tokens", "400", "--chunk-schedule-stages", "3"]
        self.assertEqual(self.read(*run)["logits_hash"], self.read(*run, *shrink)["logits_hash"])
        self.refuse(2, "low <= high", *run, *(("128" if word == "32" else word) for word in shrink))

    def test_memory_never_shortens_an_answer(self):
        run = ["generate", "-p", PROMPT, "--json", "--ignore-eos", "--threads", "1", "--max-num-seqs", "1"]
        small, large = ["--kv-cache-memory", "0.0005"], ["--kv-cache-memory", "0.02"]
        self.refuse(1, "--max-model-len 256 or auto", *run, *small)  # the made model's context is 4096
        named = [self.read(*run, "--max-model-len", "256", *cache) for cache in (small, large)]
        self.assertEqual(named[0]["text"], named[1]["text"])
        self.assertEqual(named[0]["logits_hash"], named[1]["logits_hash"])
        fitted = invar(*run, *small, "--max-model-len", "auto")
        self.assertIn(b"context 256 of the model's 4096 tokens", fitted.stderr)
        # Where no length is asked for it is what the prompt leaves of the context, and it is said.
        prompt = named[0]["prompt_tokens"]
        self.assertEqual(named[0]["max_tokens"], min(128, 256 - prompt))
        self.assertEqual(named[0]["completion_tokens"], named[0]["max_tokens"])
        short = self.read(*run, "--max-model-len", str(prompt + 9), *small)
        self.assertEqual((short["max_tokens"], short["completion_tokens"]), (9, 9))
        self.refuse(2, "exceed the context", *run, "--max-model-len", str(prompt + 9), "--max-tokens", "10")

    def read(self, *args):
        return json.loads(self.succeed(*args))

    def test_little_address_space(self):
        """What the system refuses ends the program: nobody waits for a thread that never began."""
        run = ["generate", "-p", "x"]
        self.refuse(1, "threads", *run, "--threads", "64", address_space=1 << 29)
        self.refuse(1, "memory", *run, "--tensor-parallel-size", "2", "--kv-cache-memory", "40", "--max-num-seqs", "500",
                    "--distributed-executor-backend", "threads", address_space=3 << 30)

    def test_the_trainer_has_the_samplers_whole_distribution(self):
        """Beside others: a function and a directory of logits that are zeros."""
        (self.root / "trainer.py").write_text("def zeros(tokens):\n    return [[0.0] * 512 for _ in tokens]\n")
        folder = self.root / "logits"
        words = ["audit", self.model, "--trainer", "--texts", "2", "--threads", "1", "--json"]
        self.refuse(1, "texts.jsonl is written", *words, "--against", folder)
        texts = [json.loads(line) for line in (folder / "texts.jsonl").read_text().splitlines()]
        vocab = json.loads((self.model / "config.json").read_text())["vocab_size"]
        for i, text in enumerate(texts):
            shape = f"({len(text['tokens'])}, {vocab})"
            head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
            (folder / f"{i}.npy").write_bytes(b"\x93NUMPY\x01\0" + struct.pack("<H", len(head)) + head.encode() +
                                              bytes(4 * vocab * len(text["tokens"])))
        function = f"{self.root}/trainer.py:zeros"
        (self.root / "trainer.py").write_text((self.root / "trainer.py").read_text().replace("512", str(vocab)))
        said = json.loads(self.succeed(*words, "--against", folder, "--against", function))
        own, *others = said["trainers"]
        self.assertTrue(said["passed"])
        self.assertEqual([own["equal_positions"], own["equal_hashes"], own["largest_kl"]], [own["positions"], 2, 0])
        self.assertEqual(own["positions"], 96)
        for other in others:  # the control
            self.assertEqual([other["equal_positions"], other["equal_hashes"], other["different_tokens"]], [0, 0, 96])
            self.assertGreater(other["mean_kl"], 0)
        self.refuse(2, "expected --trainer", "audit", self.model, "--against", folder)

    def test_odd_files(self):
        run = ["generate", "-p", "x", *FAST]
        self.refuse(1, "/dev/zero", *run, "--guided-json", "/dev/zero")
        for odd in ("/", "/dev/zero"):
            self.refuse(1, "regular file", "generate", "--input", odd, "--output", str(self.root / "o"), *FAST)
            self.refuse(1, "regular file", "bench", "load", odd)
        self.refuse(1, "none.toml", "bench", "load", str(self.root / "none.toml"))
        self.refuse(1, "/dev/zero", "chat", "--chat-template", "/dev/zero", *FAST)
        self.refuse(2, "completions", "audit", "--completions", "-4")

    def test_prompts(self):
        self.refuse(2, "the prompt has", "generate", "-p", "x " * 2000, *FAST)
        self.refuse(2, "UTF-8", "generate", "-p", b"caf\xe9 \xff", *FAST)
        self.refuse(2, "UTF-8", "score", "--text", b"\xc3\x28", *FAST)

    def test_what_is_no_model(self):
        plain = self.root / "plain.txt"
        plain.write_text("no model\n")
        (self.root / "empty").mkdir()
        for what in (plain, self.root / "empty", self.root / "nowhere"):
            self.refuse(1, str(what), "generate", str(what), "-p", "x")
            self.refuse(1, str(what), "inspect", str(what))
        self.refuse(2, "nameless", "generate", "nameless", "--load-format", "dummy:1", "-p", "x")

    def test_what_is_meant_is_named(self):
        self.refuse(2, 'found "sevre" (did you mean serve?)', "sevre")
        self.refuse(2, 'found "run" (did you mean chat?)', "run", "model")  # Ollama's word, and no misspelling of rm
        self.refuse(2, 'found "rus"; see', "rus", "model")
        self.refuse(2, 'to continue that text, say -p "Once upon a time"', "generate", "Once upon a time")
        gguf = self.root / "gguf"
        gguf.mkdir()
        (gguf / "model.gguf").write_text("GGUF")
        self.refuse(1, "name the GGUF file in it", "inspect", str(gguf))
        self.refuse(1, "the file is cut short", "inspect", str(gguf / "model.gguf"))
        pointer = self.copy_of_model("pointer")
        (pointer / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
        self.refuse(1, "git lfs pull", "inspect", str(pointer))
        for words in (("help",), ("help", "generate"), ("version",)):
            self.assertTrue(self.succeed(*words))
        self.assertEqual(self.succeed("help", "generate"), self.succeed("generate", "--help"))
        self.assertEqual(self.succeed("version"), self.succeed("--version"))
        many = invar("inspect", str(self.model), "--threads", "1000")
        self.assertEqual(many.returncode, 0, many.stderr)
        self.assertIn(b"--threads 1000: 64 are used", many.stderr)

    def test_a_model_with_a_key_that_changes_nothing_is_converted(self):
        noted = self.copy_of_model("noted")
        config = json.loads((noted / "config.json").read_text())
        (noted / "config.json").write_text(json.dumps(config | {"my_note": 3}))
        for flags in (["--w8a8"], ["--fp8"], ["--fp8-row"], ["--gguf", "q8_0"]):
            to = self.root / ("noted" + flags[0] + ".gguf"[:5 * (flags[0] == "--gguf")])
            self.refuse(1, "--ignore-config-keys my_note", "convert", noted, to, *flags)
            self.refuse(2, 'found "hidden_size"', "convert", noted, to, *flags, "--ignore-config-keys", "my_note,hidden_size")
            self.succeed("convert", noted, to, *flags, "--ignore-config-keys", "my_note")
            if flags[0] == "--gguf":
                self.succeed("inspect", to)
            else:
                self.refuse(1, "--ignore-config-keys my_note", "inspect", to)
                self.succeed("inspect", to, "--ignore-config-keys", "my_note")
        self.refuse(1, "--ignore-config-keys my_note", "convert", self.root / "noted--fp8", self.root / "twin", "--dequantize")
        self.succeed("convert", self.root / "noted--fp8", self.root / "twin", "--dequantize", "--ignore-config-keys", "my_note")

    def test_a_prompt_from_the_standard_input(self):
        run = ["generate", self.model, "--json", "--max-tokens", "4", *FAST]
        piped = subprocess.run([INVAR, *map(str, run), "-p", "-"], input=PROMPT.encode() + b"\n", capture_output=True, timeout=60)
        self.assertEqual(json.loads(piped.stdout)["logits_hash"],
                         json.loads(self.succeed(*run, "-p", PROMPT))["logits_hash"])

    def test_a_directory_of_the_hubs_cache_is_its_snapshot(self):
        cache = self.root / "models--owner--name"
        (cache / "snapshots").mkdir(parents=True)
        (cache / "refs").mkdir()
        self.refuse(2, "expected one snapshot", "inspect", str(cache))
        (cache / "snapshots" / "abc").symlink_to(self.model)
        shown = lambda: {name: value for name, value in json.loads(self.succeed("inspect", cache, "--json")).items() if name != "free_memory_bytes"}
        said = shown()
        self.assertEqual(said["model"], str(cache / "snapshots" / "abc"))
        (cache / "snapshots" / "def").symlink_to(self.root / "nowhere")
        self.refuse(2, "expected one snapshot", "inspect", str(cache))
        (cache / "refs" / "main").write_text("abc\n")
        self.assertEqual(shown(), said)

    def test_the_models_own_sampling_counts(self):
        copy = self.copy_of_model("greedy")
        path = copy / "generation_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "temperature": 0.0}))
        hash_of = lambda model, *flags: json.loads(self.succeed(
            "generate", model, "-p", PROMPT, "--json", "--max-tokens", "8", "--ignore-eos", *FAST, *flags))["logits_hash"]
        greedy = hash_of(self.model, "--temperature", "0")
        self.assertEqual(hash_of(copy), greedy)
        self.assertNotEqual(hash_of(self.model), greedy)
        self.assertEqual(hash_of(copy, "--temperature", "1"), hash_of(self.model))

    def test_inspect_names_the_options_that_are_fastest_here(self):
        fastest = json.loads(self.succeed("inspect", self.model, "--json"))["fastest_here"]
        gpus = json.loads(self.succeed("doctor", "--json"))["gpus"]
        self.assertEqual(fastest, "--device cuda --arith hopper" if any(gpu["supported"] for gpu in gpus) else "--device cpu --arith portable")
        self.assertEqual(self.generate(self.model, *fastest.split())["completion_tokens"], 8)

    def test_a_model_that_says_nothing_has_its_familys_sampling(self):
        """The family's where there is neither generation_config.json nor metadata; the control is a file that is there."""
        said = lambda model: json.loads(self.succeed("inspect", model, "--json"))
        hash_of = lambda model, *flags: json.loads(self.succeed(
            "generate", model, "-p", PROMPT, "--json", "--max-tokens", "8", "--ignore-eos", *FAST, *flags))["logits_hash"]
        family = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "repetition_penalty": 1.0}
        plain = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
        silent, file, loud = self.root / "silent", self.root / "silent.gguf", self.root / "loud.gguf"
        self.succeed("make-model", silent, "--seed", "3", "--family", "qwen3")
        spoken = hash_of(silent)
        self.assertEqual((said(silent)["sampling"], said(silent)["sampling_from"]), (plain, "generation_config.json"))
        self.succeed("convert", silent, loud, "--gguf", "q8_0")
        self.assertEqual((said(loud)["sampling"], said(loud)["sampling_from"]), (plain, "GGUF"))
        (silent / "generation_config.json").unlink()
        self.succeed("convert", silent, file, "--gguf", "q8_0")
        self.refuse(2, "--gguf: expected bf16, q8_0, q4_0, q4_k, found", "convert", "--gguf", silent, file)
        self.succeed("convert", file, self.root / "silent-twin", "--dequantize")
        self.assertEqual(said(self.root / "silent-twin")["sampling"], family)
        for model in (silent, file):
            self.assertEqual((said(model)["sampling"], said(model)["sampling_from"]), (family, "the family qwen3"))
        explicit = hash_of(silent, "--temperature", "0.6", "--top-p", "0.95", "--top-k", "20")
        self.assertEqual(hash_of(silent), explicit)
        self.assertNotEqual(explicit, spoken)
        self.assertEqual(hash_of(silent, "--temperature", "1", "--top-p", "1", "--top-k", "0"), spoken)
        config = json.loads((silent / "tokenizer_config.json").read_text())  # without a chat template it is no model that chats
        del config["chat_template"]
        (silent / "tokenizer_config.json").write_text(json.dumps(config))
        self.assertEqual((said(silent)["sampling"], said(silent)["sampling_from"]), (plain, "none"))

    def test_ranks_that_the_model_cannot_have_are_one_sentence(self):
        done = invar("generate", str(self.model), "-p", "x", "--tensor-parallel-size", "64",
                     "--distributed-executor-backend", "mp", *FAST)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr.count(b"\n"), 1, done.stderr)
        self.assertIn(b"64 ranks were asked for", done.stderr)

    def change_config(self, name, **changes):
        copy = self.copy_of_model(name)
        config = json.loads((copy / "config.json").read_text())
        config.update(changes)
        (copy / "config.json").write_text(json.dumps(config))
        return str(copy)

    def test_models_that_mean_what_is_not_implemented(self):
        dynamic = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 1024}
        for name, text, changes in [("dynamic", "dynamic", {"rope_scaling": dynamic}),
                                    ("quantized", "quantization_config", {"quantization_config": {"bits": 4}}),
                                    ("architecture", "MambaForCausalLM", {"architectures": ["MambaForCausalLM"]}),
                                    ("heads", "heads", {"num_attention_heads": -8}),
                                    ("hidden", "hidden_size", {"hidden_size": "many"}),
                                    ("vocabulary", "vocab", {"vocab_size": 513})]:
            self.refuse(1, text, "generate", self.change_config(name, **changes), "-p", "x")

    def test_a_module_that_is_announced_and_not_there_is_left_out(self):
        """As save_pretrained of transformers writes it."""
        model, announced = self.root / "glm", self.root / "announced"
        self.succeed("make-model", str(model), "--family", "glm4_moe", "--preset", "tiny-moe")
        shutil.copytree(model, announced)
        config = json.loads((model / "config.json").read_text())
        (announced / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
        run = ["-p", "x", "--max-tokens", "4", "--json", *FAST]
        plain, found = (invar("generate", str(one), *run) for one in (model, announced))
        self.assertEqual((plain.returncode, found.returncode), (0, 0), found.stderr)
        self.assertEqual(json.loads(found.stdout)["logits_hash"], json.loads(plain.stdout)["logits_hash"])
        self.assertIn(b"announces a module of multi-token prediction", found.stderr)
        self.assertNotIn(b"announces", plain.stderr)
        drafting = invar("generate", str(announced), *run, "--spec-method", "mtp")
        self.assertEqual(drafting.returncode, 2)
        self.assertIn(b"has none (num_nextn_predict_layers or mtp_num_hidden_layers in config.json, and its tensors)", drafting.stderr)
        # The control: a part of a module is no module.
        data = bytearray((announced / "model.safetensors").read_bytes())
        start, header = header_of(announced / "model.safetensors")
        norm, at = header["model.norm.weight"], len(data) - start
        size = norm["data_offsets"][1] - norm["data_offsets"][0]
        header["model.layers.%d.enorm.weight" % config["num_hidden_layers"]] = {**norm, "data_offsets": [at, at + size]}
        text = json.dumps(header).encode()
        (announced / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data[start:] + bytes(size))
        self.refuse(1, "model.layers.%d" % config["num_hidden_layers"], "generate", str(announced), *run)

    def test_token_ids_need_no_tokenizer(self):
        bare = self.copy_of_model("bare")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (bare / name).unlink()
        missing = "has no tokenizer (tokenizer.json, tokenizer.model or tekken.json): expected token ids"
        self.refuse(2, missing, "generate", str(bare), "-p", "x", *FAST)
        self.refuse(2, missing, "score", str(bare), "--text", "x", *FAST)
        ids = json.loads(self.succeed("score", self.model, "--text", PROMPT, "--json", *FAST))["tokens"]
        self.assertEqual(json.loads(self.succeed("score", bare, "--tokens", ",".join(map(str, ids)), "--json", *FAST)),
                         json.loads(self.succeed("score", self.model, "--tokens", ",".join(map(str, ids)), "--json", *FAST)))
        lines, out = self.root / "ids.jsonl", self.root / "ids.out"
        body = {"prompt": ids, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "logits_hash": True}
        lines.write_text("".join(json.dumps({"custom_id": name, "body": {**body, **more}}) + "\n" for name, more in (
            ("ids", {}), ("text", {"prompt": "x"}), ("stop", {"stop": "x"}), ("form", {"structured_outputs": {"regex": "a"}}))))
        found = {}
        for model, status in (self.model, 0), (bare, 1):
            done = invar("generate", str(model), "--input", str(lines), "--output", str(out), *FAST)
            self.assertEqual(done.returncode, status, done.stderr)
            found[model] = [json.loads(line) for line in out.read_text().splitlines()]
        answer, *refused = found[bare]
        self.assertEqual(answer["response"]["body"]["choices"][0]["logits_hash"],
                         found[self.model][0]["response"]["body"]["choices"][0]["logits_hash"])
        self.assertEqual(answer["response"]["body"]["choices"][0]["text"], "")
        for line in refused:
            self.assertIn(missing, line["error"]["message"], line["custom_id"])

    def test_broken_files_of_a_model(self):
        cut = self.copy_of_model("cut")
        weights = cut / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1000])
        self.refuse(1, "model.safetensors", "generate", str(cut), "-p", "x")
        weights.write_bytes(b"")
        self.refuse(1, "model.safetensors", "generate", str(cut), "-p", "x")
        weights.unlink()
        self.refuse(1, "safetensors", "generate", str(cut), "-p", "x")
        (cut / "config.json").write_text('{"model_type": ')
        self.refuse(1, "config.json", "generate", str(cut), "-p", "x")

        words = self.copy_of_model("words")
        (words / "tokenizer.json").write_text("{}")
        self.refuse(1, "tokenizer.json", "generate", str(words), "-p", "x")

        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            for kind, make in [("pipe", os.mkfifo), ("device", lambda path: path.symlink_to("/dev/zero")), ("folder", os.mkdir)]:
                odd = self.copy_of_model(f"{name}.{kind}")
                (odd / name).unlink()
                make(odd / name)
                self.refuse(1, name, "generate", str(odd), "-p", "x")

        nan = self.copy_of_model("nan")
        start, header = header_of(nan / "model.safetensors")
        data = bytearray((nan / "model.safetensors").read_bytes())
        at = start + header["model.layers.1.self_attn.k_proj.weight"]["data_offsets"][0]
        data[at:at + 2] = b"\xc0\x7f"
        (nan / "model.safetensors").write_bytes(data)
        self.refuse(1, "expected finite weights", "generate", str(nan), "-p", "x")

    def test_make_model(self):
        self.refuse(1, "safetensors", "make-model", str(self.model))
        self.refuse(2, "huge", "make-model", str(self.root / "new"), "--preset", "huge")
        self.refuse(2, "heads", "make-model", str(self.root / "new"), "--heads", "7", "--kv-heads", "4")
        self.refuse(2, "a window from 0", "make-model", str(self.root / "new"), "--window", "-1")
        self.refuse(2, "an empty name", "make-model", "")
        self.refuse(1, "/proc/none", "make-model", "/proc/none/model")
        self.assertFalse((self.root / "new").exists())


class Batch(CliTest):
    def request(self, name, **body):
        return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body})

    def run_lines(self, lines, *args, length=("--max-tokens", "6")):
        source, target = self.root / "in.jsonl", self.root / "out.jsonl"
        target.unlink(missing_ok=True)
        source.write_bytes(b"\n".join(x if isinstance(x, bytes) else x.encode() for x in lines))
        done = invar("generate", str(self.model), "--input", str(source), "--output", str(target),
                     *length, *FAST, *args)
        answers = [json.loads(line) for line in target.read_text().splitlines()] if target.exists() else None
        return done, answers

    def test_good_and_bad_lines_lose_nothing(self):
        ask = self.request
        lines = [
            (ask("one", prompt=PROMPT), None),
            ("this is no JSON", "line 2"),
            (ask("two", prompt=[1, 2, 3], max_tokens=3, temperature=0), None),
            (json.dumps({"custom_id": "no body"}), "body"),
            (ask("no prompt"), "prompt"),
            (ask("number", prompt=7), "prompt"),
            (ask("nested", prompt=[[1, "x"]]), "integer"),
            (ask("no such token", prompt=[1, 512]), "511"),
            (ask("large token", prompt=[2**32 + 1]), "4294967297"),
            (ask("long", prompt="x " * 2000), "the prompt has"),
            (ask("nothing", prompt=[]), "at least one token"),
            (ask("tokens", prompt="x", max_tokens=0), "max_tokens"),
            (ask("many tokens", prompt="x", max_tokens=2**32 + 1), "4294967297"),
            (ask("cold", prompt="x", temperature=-1), "temperature"),
            (ask("text", prompt="x", temperature="hot"), "temperature"),
            (ask("seed", prompt="x", seed=-1.5), "seed"),
            (ask("stop", prompt="x", stop=[""]), "stop"),
            (ask("stop", prompt="x", stop=[5]), "expected a stop string in stop as a text"),
            (ask("ids", prompt="x", stop_token_ids=5), "expected stop_token_ids as an array"),
            (ask("unknown", prompt="x", frobnicate=1), "frobnicate"),
            ("[1, 2]", "body"),
            (b'{"custom_id": "bytes", "body": {"prompt": "\xff"}}', "UTF-8"),
            ('{"body": {"custom_id": "inner", "x": ["}"]}, "custom_id" : "cu\\u0074", "body": {"prompt": ', "JSON"),
            ('{"custom_id": "twice", "custom_id": "twice", "body": {"prompt": "x"}}', "stands twice"),
            ('{"custom_id": "cut', "JSON"),
            ('{"custom_id": 7, "body": {"prompt": "x"}}', "expected custom_id as a string, found 7"),
            (ask("large seed", prompt="x", seed=2**64), "to 18446744073709551615, found 18446744073709551616.0"),
            (ask("half", prompt="x", max_tokens=2.5), "found 2.5"),
            ('{"custom_id": "written otherwise", "body": {"prompt": "x", "max_tokens": 0.3e1, "seed": 18446744073709551615}}', None),
            (ask("last", prompt=PROMPT, max_tokens=6), None),
        ]
        done, answers = self.run_lines([line for line, _ in lines])
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"4 answers, 26 errors", done.stderr)
        ids = [answer["custom_id"] for answer in answers]
        self.assertEqual(ids[ids.index("bytes"):ids.index("large seed")], ["bytes", "cut", "twice", "", ""])
        self.assertEqual(len(answers), len(lines))
        for (line, error), answer in zip(lines, answers):
            with self.subTest(line=line[:80], answer=answer):
                if error is None:
                    self.assertIsNone(answer["error"])
                    self.assertEqual(answer["custom_id"], json.loads(line)["custom_id"])
                    self.assertGreater(answer["response"]["body"]["usage"]["completion_tokens"], 0)
                else:
                    self.assertIsNone(answer["response"])
                    self.assertIn(error, answer["error"]["message"])
                    self.assertEqual(answer["error"]["code"], 400)
        hashes = [a["response"]["body"]["logits_hash"] for a in answers if a["response"]]
        self.assertEqual(hashes[0], hashes[-1])
        self.assertNotEqual(hashes[0], hashes[1])
        self.assertEqual(answers[-2]["response"]["body"]["usage"]["completion_tokens"], 3)

    def test_a_line_is_held_to_the_length_that_it_asks_for(self):
        lines = [self.request("fits", prompt=[5] * 200, max_tokens=56), self.request("beyond", prompt=[5] * 200, max_tokens=57),
                 self.request("says nothing", prompt=[5] * 200), self.request("two prompts", prompt=[[5] * 250, [6] * 10])]
        _, answers = self.run_lines(lines, "--ignore-eos", length=())
        self.assertIn("exceed the context", answers[1]["error"]["message"])
        bodies = [a["response"]["body"] for a in answers if a["response"]]
        self.assertEqual([b["max_tokens"] for b in bodies], [56, 56, 6])
        self.assertEqual([b["usage"]["completion_tokens"] for b in bodies], [56, 56, 12])

    def chat_line(self, name, url="/v1/chat/completions", **body):
        return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body})

    def test_conversations(self):
        hello = [{"role": "user", "content": "Hello"}]
        text = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
        lines = [
            (self.chat_line("chat", messages=hello, temperature=0), None),
            (self.request("text", prompt=text, temperature=0), None),
            (self.chat_line("parts", messages=[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
                            temperature=0), None),
            (json.dumps({"custom_id": "no url", "body": {"messages": hello, "temperature": 0}}), None),
            (self.chat_line("prompt", prompt="x"), "prompt"),
            (self.chat_line("none", messages=[]), "at least one message"),
            (self.chat_line("no role", messages=[{"content": "x"}]), "role"),
            (self.chat_line("roles", messages="x"), "messages"),
            (self.chat_line("tools", messages=hello, tool_choice="required"), "needs \"tools\""),
            (self.chat_line("url", url="/v1/embeddings", messages=hello), "/v1/embeddings"),
            (self.chat_line("image", messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "image_url"),
            (self.request("messages", messages=hello, prompt="x"), "messages"),
            (self.chat_line("long", messages=[{"role": "user", "content": "x " * 2000}]), "the prompt has"),
        ]
        done, answers = self.run_lines([line for line, _ in lines])
        self.assertEqual(done.returncode, 1)
        for (line, error), answer in zip(lines, answers):
            with self.subTest(line=line[:80], answer=answer):
                if error:
                    self.assertIn(error, answer["error"]["message"])
                else:
                    self.assertIsNone(answer["error"])
        bodies = [a["response"]["body"] for a in answers[:4]]
        self.assertEqual(len({b["logits_hash"] for b in bodies}), 1)
        self.assertEqual(bodies[0]["object"], "chat.completion")
        self.assertEqual(bodies[0]["choices"][0]["message"], {"role": "assistant", "content": bodies[1]["choices"][0]["text"]})

        mute = self.copy_of_model("mute batch")
        (mute / "tokenizer_config.json").write_text("{}")
        model, self.__class__.model = self.model, mute
        try:
            done, answers = self.run_lines([lines[0][0], lines[1][0]])
        finally:
            self.__class__.model = model
        self.assertIn("no chat template", answers[0]["error"]["message"])
        self.assertIsNone(answers[1]["error"])

    def test_several_answers_and_log_probabilities(self):
        lines = [self.request("three", prompt=PROMPT, n=3, seed=5, logprobs=2, min_tokens=6),
                 self.chat_line("chat", messages=[{"role": "user", "content": "Hello"}], logprobs=True, top_logprobs=3),
                 self.request("greedy", prompt=PROMPT, n=2, temperature=0),
                 self.request("prompt", prompt=PROMPT, prompt_logprobs=1),
                 self.request("echo", prompt=PROMPT, echo=True, logprobs=2, max_tokens=1),
                 self.request("bias", prompt=PROMPT, logit_bias={"77": 100}, temperature=0, max_tokens=3),
                 self.request("bad bias", prompt=PROMPT, logit_bias={"x": 1}),
                 self.request("stop id", prompt=PROMPT, logit_bias={"77": 100}, stop_token_ids=[77], max_tokens=3),
                 self.request("ends late", prompt=PROMPT, logit_bias={"77": 100}, stop_token_ids=[77], max_tokens=3,
                              min_tokens=2)]
        done, answers = self.run_lines(lines, "--prompt-logprobs", "0", "--ignore-eos")
        three, chat, greedy, prompt, echo, bias, bad, stop, late = answers
        # The line's own number, not the one of --prompt-logprobs for lines that name none.
        tops = echo["response"]["body"]["choices"][0]["logprobs"]["top_logprobs"]
        self.assertEqual((tops[0], {len(top) for top in tops[1:]}), (None, {2}))
        choices = three["response"]["body"]["choices"]
        self.assertEqual([c["index"] for c in choices], [0, 1, 2])
        self.assertEqual(len({c["logits_hash"] for c in choices}), 3)
        self.assertEqual(three["response"]["body"]["usage"]["completion_tokens"], 18)
        for choice in choices:
            logprobs = choice["logprobs"]
            self.assertEqual([len(x) for x in logprobs["top_logprobs"]], [2] * 6)
            self.assertEqual(len(logprobs["tokens"]), 6)
            self.assertTrue(all(p < 0 for p in logprobs["token_logprobs"]))
        entries = chat["response"]["body"]["choices"][0]["logprobs"]["content"]
        self.assertEqual([len(e["top_logprobs"]) for e in entries], [3] * len(entries))
        self.assertEqual(entries[0]["top_logprobs"], sorted(entries[0]["top_logprobs"], key=lambda e: -e["logprob"]))
        self.assertIn("n must be 1", greedy["error"]["message"])
        of_prompt = prompt["response"]["body"]["choices"][0]["prompt_logprobs"]
        self.assertIsNone(of_prompt[0])
        self.assertEqual(len(of_prompt), prompt["response"]["body"]["usage"]["prompt_tokens"])
        scored = json.loads(self.succeed("score", self.model, "--text", PROMPT, "--json"))
        for token, logprob, entry in list(zip(scored["tokens"], scored["logprobs"], of_prompt))[1:]:
            self.assertEqual(entry[str(token)]["logprob"], logprob)
        self.assertEqual(bias["response"]["body"]["usage"]["completion_tokens"], 3)
        self.assertIn("logit_bias", bad["error"]["message"])
        self.assertEqual(stop["response"]["body"]["usage"]["completion_tokens"], 1)
        self.assertEqual(late["response"]["body"]["usage"]["completion_tokens"], 3)
        # One of n alone, by the same words on the command line; without the flag the prompt's are refused.
        several = json.loads(self.succeed("generate", self.model, "-p", PROMPT, "--seed", "5", "-n", "3", "--json",
                                          "--max-tokens", "6", "--ignore-eos", "--min-tokens", "6", *FAST))
        self.assertEqual([c["logits_hash"] for c in several["choices"]], [c["logits_hash"] for c in choices])
        done, answers = self.run_lines([lines[3]])
        self.assertIn("not enabled", answers[0]["error"]["message"])

    def test_answers_of_a_form(self):
        # Random weights under a grammar: whatever is drawn has the form, and ends where it may end.
        schema = {"type": "object", "required": ["name", "tags"], "additionalProperties": False, "properties": {
            "name": {"type": "string", "maxLength": 8}, "size": {"type": "integer"},
            "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 3}}}
        json_schema = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}
        hello = [{"role": "user", "content": "Hello"}]
        lines = [self.request(f"regex {s}", prompt=PROMPT, guided_regex="(yes|no), [a-f]{3,9}\\.", seed=s, max_tokens=40)
                 for s in range(8)]
        lines += [self.chat_line(f"schema {s}", messages=hello, response_format=json_schema, seed=s, max_tokens=220)
                  for s in range(8)]
        lines += [self.request(f"choice {s}", prompt=PROMPT, guided_choice=["red", "green", "gr\u00fcn"], seed=s,
                               max_tokens=20, temperature=2) for s in range(8)]
        lines += [self.request("free", prompt=PROMPT, seed=0),
                  self.request("bad", prompt="x", guided_regex="("),
                  self.request("two", prompt="x", guided_regex="a", guided_choice=["b"]),
                  self.chat_line("keyword", messages=hello, response_format={"type": "json_schema", "json_schema": {
                      "schema": {"type": "number", "multipleOf": 1e-30}}}),
                  self.chat_line("type", messages=hello, response_format={"type": "xml"}),
                  self.request("schema text", prompt="x", guided_json="{", seed=0)]
        done, answers = self.run_lines(lines)
        by_name = {a["custom_id"]: a for a in answers}

        def texts(kind):
            out = []
            for s in range(8):
                answer = by_name[f"{kind} {s}"]
                self.assertIsNone(answer["error"])
                choice = answer["response"]["body"]["choices"][0]
                self.assertEqual(choice["finish_reason"], "stop", choice)
                out.append(choice["message"]["content"] if "message" in choice else choice["text"])
            return out

        regexes = texts("regex")
        for text in regexes:
            self.assertRegex(text, r"\A(yes|no), [a-f]{3,9}\.\Z")
        self.assertGreater(len(set(regexes)), 4)
        self.assertLessEqual(set(texts("choice")), {"red", "green", "gr\u00fcn"})
        self.assertGreater(len(set(texts("choice"))), 1)
        for text in texts("schema"):
            thing = json.loads(text)
            self.assertLessEqual(set(thing), {"name", "size", "tags"})
            self.assertLessEqual(len(thing["name"]), 8)
            self.assertTrue(1 <= len(thing["tags"]) <= 3 and set(thing["tags"]) <= {"red", "green"})
            self.assertIsInstance(thing.get("size", 0), int)
        self.assertIsNone(by_name["free"]["error"])
        for name, error in [("bad", "a ( that is not closed"), ("two", "one form"), ("keyword", "multipleOf"),
                            ("type", "response_format"), ("schema text", "JSON")]:
            self.assertIn(error, by_name[name]["error"]["message"])
        # The control: without the grammar the same seeds give other texts; the schedule changes nothing.
        plain = [self.request(f"regex {s}", prompt=PROMPT, seed=s, max_tokens=40) for s in range(8)]
        _, free = self.run_lines(plain)
        for answer in free:
            self.assertNotRegex(answer["response"]["body"]["choices"][0]["text"], r"\A(yes|no), [a-f]{3,9}\.\Z")
        _, few = self.run_lines(lines, "--max-num-seqs", "3", "--max-num-batched-tokens", "7")
        self.assertEqual(few, answers)
        # On the command line.
        self.refuse(2, "[ that is not closed", "generate", "-p", "x", "--guided-regex", "[a", *FAST)
        self.refuse(1, "none.json", "generate", "-p", "x", "--guided-json", "/none.json", *FAST)
        out = self.succeed("generate", "-p", "x", "--guided-choice", "left", "--guided-choice", "right", *FAST)
        self.assertIn(out.decode().strip(), ("left", "right"))

    def test_neighbours_do_not_show(self):
        lines = [self.request(str(i), prompt=PROMPT[:10 + 3 * i], temperature=1, seed=i) for i in range(8)]
        done, together = self.run_lines(lines + [""])
        self.assertEqual(done.returncode, 0, done.stderr)
        done, few = self.run_lines(lines, "--max-num-seqs", "2", "--max-num-batched-tokens", "9")
        self.assertEqual(together, few)
        self.assertEqual(len({a["response"]["body"]["logits_hash"] for a in together}), 8)

    def test_files_that_cannot_be_used(self):
        source, target = self.root / "ok.jsonl", self.root / "answers.jsonl"
        source.write_text(self.request("one", prompt="x") + "\n")
        run = ["generate", str(self.model), *FAST]
        self.refuse(1, "none.jsonl", *run, "--input", str(self.root / "none.jsonl"), "--output", str(target))
        self.refuse(1, "/no/such", *run, "--input", str(source), "--output", "/no/such/answers.jsonl")
        self.refuse(1, str(self.root), *run, "--input", str(source), "--output", str(self.root))
        self.refuse(1, "/dev/null", *run, "--input", str(source), "--output", "/dev/null")
        self.refuse(2, "same file", *run, "--input", str(source), "--output", str(source))
        for nothing in ("", "\n \r\n"):
            (self.root / "nothing.jsonl").write_text(nothing)
            self.refuse(1, "nothing.jsonl: expected requests", *run, "--input", str(self.root / "nothing.jsonl"), "--output",
                        str(target))
        self.assertIn("custom_id", source.read_text())
        self.assertFalse(target.exists())
        self.assertEqual([p.name for p in self.root.iterdir() if p.name.endswith(".tmp")], [])


if __name__ == "__main__":
    INVAR = os.path.abspath(sys.argv.pop(1))
    unittest.main()
