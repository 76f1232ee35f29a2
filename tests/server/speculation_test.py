"""Speculation behind the server: answers are those of plain decoding, byte by byte; metrics say what was accepted."""
import pathlib
import subprocess
import sys
import unittest

from served import Served, made

INVAR = None
STORY = pathlib.Path(__file__).resolve().parents[2] / "models/story"
CHAT = "/v1/chat/completions"
CONFIGS = ('{"method": "suffix", "adaptive": false}',
           '{"method": "early_exit", "num_speculative_tokens": 3, "adaptive": true}',
           '{"method": "swift", "num_speculative_tokens": 3, "adaptive": false}',
           '{"method": "draft_model", "model": "dummy:1", "adaptive": false, "speculative_token_tree": "[(0,), (0,0), (1,), (0,1)]"}')


def ask(served, **more):
    """An answer without what depends on the clock and the server."""
    body = served.post(CHAT, messages=[{"role": "user", "content": "one two three one two"}], seed=3, logits_hash=True, ignore_eos=True,
                       **(dict(max_tokens=24, temperature=0.7) | more))
    return body["choices"], body["usage"], body["logits_hash"]


def stream(served, **more):
    status, _, data = served.ask("POST", CHAT, dict(
        messages=[{"role": "user", "content": "one two three one two"}], max_tokens=24, seed=3, ignore_eos=True,
        temperature=0.7, stream=True, stream_options={"include_usage": True}, **more))
    assert status == 200, data
    return [line.split(b'"choices"', 1)[-1] for line in data.split(b"\n\n")]


class Speculation(unittest.TestCase):
    def test_no_draft_shows(self):
        plain = Served(INVAR)
        self.addCleanup(plain.stop)
        answer, events = ask(plain), stream(plain)
        text = answer[0][0]["message"]["content"]
        predicted = dict(prediction={"type": "content", "content": text + " and more"})
        with_prediction, events_with_prediction = ask(plain, **predicted), stream(plain, **predicted)
        details = with_prediction[1]["completion_tokens_details"]
        self.assertGreater(details["accepted_prediction_tokens"], 0)
        self.assertNotIn("completion_tokens_details", answer[1])
        self.assertEqual(plain.metric("vllm:spec_decode_num_drafts_total"), 0)
        for config in CONFIGS:
            with self.subTest(config=config):
                served = Served(INVAR, "--speculative-config", config)
                self.addCleanup(served.stop)
                self.assertEqual(ask(served), answer)
                self.assertEqual(stream(served), events)
                self.assertEqual(ask(served, **predicted), with_prediction)
                self.assertEqual(stream(served, **predicted), events_with_prediction)
                drafted = served.metric("vllm:spec_decode_num_draft_tokens_total")
                accepted = served.metric("vllm:spec_decode_num_accepted_tokens_total")
                self.assertGreater(served.metric("vllm:spec_decode_num_drafts_total"), 0)
                if "draft_model" in config or "suffix" in config:  # random weights say other things half way
                    self.assertGreater(accepted, 0)
                self.assertGreaterEqual(drafted, accepted)
        # The control: another seed is another answer.
        body = plain.post(CHAT, messages=[{"role": "user", "content": "one two three one two"}], max_tokens=24, seed=4, logits_hash=True,
                          ignore_eos=True, temperature=0.7)
        self.assertNotEqual(body["logits_hash"], answer[2])

    def expect_no_draft_shows(self, plain_flags, runs):
        """Each run drafts, and answers twice as the plain server does; the second time from the prefix cache."""
        plain = Served(INVAR, *plain_flags)
        self.addCleanup(plain.stop)
        greedy = dict(temperature=0, max_tokens=100)  # it soon repeats itself, and lookup finds something
        answer, repetition = ask(plain), ask(plain, **greedy)
        for flags in runs:
            with self.subTest(flags=flags):
                served = Served(INVAR, *plain_flags, *flags)
                self.addCleanup(served.stop)
                for _ in range(2):
                    self.assertEqual(ask(served), answer)
                    self.assertEqual(ask(served, **greedy), repetition)
                self.assertGreater(served.metric("vllm:spec_decode_num_drafts_total"), 0)

    def test_nor_does_it_with_ranks_stages_and_replicas(self):
        ngram, suffix = '{"method": "ngram", "prompt_lookup_min": 1, "adaptive": false}', '{"method": "suffix", "adaptive": false}'
        draft = '{"method": "draft_model", "model": "dummy:1", "adaptive": false}'
        swift = '{"method": "swift", "skip_layers": [1], "adaptive": false}'
        mp = ("--tensor-parallel-size", "2", "--distributed-executor-backend", "mp")
        self.expect_no_draft_shows((), (
            ("--tensor-parallel-size", "2", "--speculative-config", draft),
            ("--tensor-parallel-size", "2", "--speculative-config", swift),
            (*mp, "--speculative-config", draft),
            (*mp, "--speculative-config", swift),
            ("--layer-cuts", "1,3", "--speculative-config", draft),
            ("--layer-cuts", "1,3", "--speculative-config", swift),
            ("--data-parallel-size", "2", "--speculative-config", draft),
            ("--tensor-parallel-size", "2", "--speculative-config", ngram),
            (*mp, "--speculative-config", suffix),
            ("--layer-cuts", "1,3", "--speculative-config", suffix),
            ("--data-parallel-size", "2", "--speculative-config", ngram)))

    def test_nor_that_of_layers_of_the_target(self):
        """Its module of multi-token prediction, and its first layers, on its own keys and values."""
        mtp, early = '{"method": "mtp", "adaptive": false}', '{"method": "early_exit", "adaptive": false}'
        self.expect_no_draft_shows((str(STORY),), [
            (*where, "--speculative-config", method) for method in (mtp, early)
            for where in (("--tensor-parallel-size", "2"), ("--layer-cuts", "3,6"), ("--data-parallel-size", "2"),
                          ("--tensor-parallel-size", "2", "--layer-cuts", "3", "--distributed-executor-backend", "mp"))])

    def test_rejection_stands_in_the_identity_and_beside_nothing_that_computes_again(self):
        rejecting = '{"method": "lookahead", "acceptance": "rejection"}'
        served = Served(INVAR, "--speculative-config", rejecting)
        self.addCleanup(served.stop)
        ask(served)
        self.assertIn("/rejection as m on", served.said())
        for flags in (["--journal", "/nonexistent/journal"], ["--engine-process"], ["--receipt-key", "/nonexistent/key"], ["--lab"]):
            refused = subprocess.run([INVAR, "serve", *made(), "--speculative-config", rejecting, *flags], capture_output=True, text=True, timeout=30)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn(f"{flags[0]} computes answers again", refused.stderr)

    def test_a_prediction_that_is_none_is_refused(self):
        served = Served(INVAR)
        self.addCleanup(served.stop)
        for wrong in ("text", {"type": "content"}, {"type": "image", "content": "x"}, {"type": "content", "content": [1]}):
            status, _, answer = served.ask("POST", CHAT, dict(messages=[{"role": "user", "content": "x"}], prediction=wrong))
            self.assertEqual(status, 400)
            self.assertIn("prediction", answer["error"]["message"])


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main()
