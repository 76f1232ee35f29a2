#!/usr/bin/env python3
"""Embedding models whose attention looks in both directions; a template of pairs with a model that answers.
Usage: directions_test.py INVAR [unittest arguments]"""
import concurrent.futures
import itertools
import json
import random
import shutil
import subprocess
import sys
import unittest

import scores_test
from scores_test import Directory, dot, exact, f32, read_tensors, unit, write_tensors
from served import Served, fast_and

INVAR = None  # the program; set by main


class BothDirections(Directory):
    TEXTS = [[5, 6, 7, 8], [5, 6, 7, 9], [5], list(range(3, 203)), [9, 8, 7] * 30, "a text", "Some more words, then."]

    def make(self, family="qwen3", kind="cls", **config):
        """A bare directory, as sentence-transformers writes it; the vector is that of one token."""
        shutil.rmtree(self.model)
        subprocess.run([INVAR, "make-model", self.model, "--preset", "tiny", "--family", family, "--seed", "7"], check=True, capture_output=True)
        self.make_bare(architecture={"qwen3": "Qwen3Model", "gemma3_text": "Gemma3TextModel"}[family])
        self.modules("Transformer", "Pooling", kind=kind)
        self.change("config.json", **config)

    def test_a_token_sees_what_stands_behind_it(self):
        for family, key in (("qwen3", dict(is_causal=False)), ("gemma3_text", dict(use_bidirectional_attention=True)),
                            ("gemma3_text", dict(is_causal=False))):
            self.make(family)
            one, other = self.vectors(*self.TEXTS[:2])
            self.assertEqual(one, other, "the control: the first token does not see the last")
            self.change("config.json", **key)
            ahead, changed = self.vectors(*self.TEXTS[:2])
            self.assertNotEqual(ahead, changed, key)
            self.assertNotEqual(ahead, one)

    def test_windows_reach_as_far_ahead_as_back(self):
        """A token sees four before it and four behind it with either setting, in a model of one layer. The first token's vector, and the last one's."""
        settings = [(dict(is_causal=False, sliding_window=4), 5), (dict(use_bidirectional_attention=True, sliding_window=9), 5)]
        for (key, window), (kind, turn) in itertools.product(settings, (("cls", 1), ("lasttoken", -1))):
            self.make("gemma3_text", kind=kind, num_hidden_layers=1, layer_types=["sliding_attention"], **key)
            tensors = read_tensors(self.model / "model.safetensors")
            write_tensors(self.model / "model.safetensors", {n: t for n, t in tensors.items() if not n.startswith("layers.") or n.startswith("layers.0.")})
            plain, seen, unseen = self.vectors([5] * 12, ([5] * (window - 1) + [6] + [5] * (12 - window))[::turn], ([5] * window + [6] + [5] * (11 - window))[::turn])
            self.assertNotEqual(seen, plain, (key, kind))
            self.assertEqual(unseen, plain, (key, kind))

    def test_a_vector_has_the_same_bits_alone_and_among_others(self):
        for family, key in (("qwen3", dict(is_causal=False)), ("gemma3_text", dict(use_bidirectional_attention=True, sliding_window=40))):
            self.make(family, kind="mean_tokens", **key)
            served = self.served()
            alone = [served.post("/v1/embeddings", input=text)["data"][0]["embedding"] for text in self.TEXTS]
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                jobs = [pool.submit(served.post, "/v1/embeddings", input=text) for text in self.TEXTS * 4]
                crowd = [job.result()["data"][0]["embedding"] for job in jobs]
            self.assertEqual(crowd, alone * 4)
            for flags in (("--max-num-batched-tokens", "64"), ("--scheduling-policy", "orca"), ("--tensor-parallel-size", "2"),
                          ("--isa", "avx2"), ("--arith", "control")):
                other = self.served(*flags)
                found = [other.post("/v1/embeddings", input=text)["data"][0]["embedding"] for text in self.TEXTS]
                self.assertEqual(found == alone, "control" not in flags, flags)  # the control: another arithmetic

    def test_a_receipt_of_a_vector_is_confirmed(self):
        self.make("gemma3_text", use_bidirectional_attention=True, sliding_window=40)
        served = self.served("--receipt-key", self.model.parent / "key.pem")
        answer = served.post("/v1/embeddings", input=self.TEXTS, receipt=True)
        self.assertEqual(self.verified(answer), (0, ""))
        answer["data"][1]["embedding"][0] += 1e-3
        status, said = self.verified(answer)
        self.assertEqual(status, 1, said)
        answer["data"][1]["embedding"][0] -= 1e-3
        self.change("config.json", use_bidirectional_attention=False)
        status, said = self.verified(answer)
        self.assertEqual(status, 1, "the control: a model that looks back alone " + said)

    def verified(self, answer):
        """Status of `invar verify`, and its words where it does not confirm."""
        file = self.model.parent / "answer.json"
        file.write_text(json.dumps(answer))
        done = subprocess.run([INVAR, "verify", file, self.model, "--threads", "1"], capture_output=True, text=True, timeout=120)
        return done.returncode, (done.stdout + done.stderr) if done.returncode else ""

    def test_a_text_is_computed_whole_or_refused(self):
        self.make(is_causal=False)
        flags = fast_and(["--max-model-len", "128", "--max-num-batched-tokens", "32"])
        served = Served(INVAR, command=[INVAR, "serve", self.model, "--host", "127.0.0.1", "--port", "0", *flags])
        self.addCleanup(lambda: self.assertEqual(served.stop(), 0))
        self.assertEqual(served.post("/v1/embeddings", input=[5] * 128)["usage"]["prompt_tokens"], 128)
        for path, body in (("/v1/embeddings", {"input": [5] * 129}), ("/pooling", {"input": [5] * 129}),
                           ("/v1/rerank", {"query": "x " * 200, "documents": ["y"]})):
            status, _, answer = served.ask("POST", path, body)
            self.assertEqual(status, 400, answer)
            self.assertIn("of 1 to 128 tokens, found", answer["error"]["message"])
        for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})):
            status, _, answer = served.ask("POST", path, body)
            self.assertEqual(status, 400)
            self.assertIn("no head", answer["error"]["message"])

    def test_relevance_is_the_cosine(self):
        self.make(kind="mean_tokens", is_causal=False)
        served = self.served()
        query, *texts = [d["embedding"] for d in served.post("/v1/embeddings", input=["a fox", "A fox ran.", "It rained."])["data"]]
        told = served.post("/v1/rerank", query="a fox", documents=["A fox ran.", "It rained."])
        found = {r["index"]: r["relevance_score"] for r in told["results"]}
        self.near([found[0], found[1]], [dot(unit(query), unit(text)) for text in texts])

    def test_a_cross_encoder_may_look_ahead_too(self):
        """Its last token sees the same either way in one layer, and more behind several."""
        tensors = read_tensors(self.model / "model.safetensors")
        draw, width = random.Random(5), tensors["model.norm.weight"][1][0]
        write_tensors(self.model / "model.safetensors", {**{n: t for n, t in tensors.items() if n != "lm_head.weight"},
                                                         "score.weight": f32([exact(draw.gauss(0, 0.3) for _ in range(width))])})
        scores = []
        for causal in (True, False):
            self.change("config.json", architectures=["Qwen3ForSequenceClassification"], id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0},
                        is_causal=causal)
            scores.append(self.served().post("/v1/score", text_1="a", text_2=["b c d", "e"])["data"])
        self.assertNotEqual(*scores)

    def test_what_is_not_computed_is_refused_by_name(self):
        shutil.rmtree(self.model)
        for family, key in (("deepseek_v2", dict(is_causal=False)), ("lfm2", dict(is_causal=False)), ("falcon_h1", dict(is_causal=False)), ("gemma2", dict(use_bidirectional_attention=True))):
            subprocess.run([INVAR, "make-model", self.model, "--preset", "tiny", "--family", family], check=True, capture_output=True)
            self.change("config.json", **key)
            self.refused("directions" if "is_causal" in key else "use_bidirectional_attention")
            shutil.rmtree(self.model)

    def test_no_drafter_looks_ahead(self):
        drafter = self.model.parent / "drafter"
        shutil.copytree(self.model, drafter)
        flags = ["--speculative-config", json.dumps({"method": "draft_model", "model": str(drafter), "num_speculative_tokens": 2})]
        self.assertEqual(self.answered(flags), (0, ""), "the control")
        config = json.loads((drafter / "config.json").read_text())
        (drafter / "config.json").write_text(json.dumps({**config, "is_causal": False}))
        status, said = self.answered(flags)
        self.assertEqual((status, "looks in both directions" in said), (2, True), said)

    def answered(self, flags):
        done = subprocess.run([INVAR, "generate", self.model, *flags, "-p", "x", "--max-tokens", "2", "--max-model-len", "64"], capture_output=True, text=True)
        return done.returncode, done.stderr if done.returncode else ""


class PairsOfAModelThatAnswers(Directory):
    """A template of pairs before a model that is asked for yes or no."""

    def test_its_prompt_is_the_templates(self):
        file = self.model / "pairs.jinja"
        file.write_text(scores_test.Relevance.PAIRS + "Relevant?")
        served = self.served("--chat-template", file)
        ids = lambda text, special=False: served.post("/tokenize", prompt=text, add_special_tokens=special)["tokens"]

        def log_of(prompt, answer):
            told = served.post("/v1/completions", prompt=prompt + answer, echo=True, logprobs=0, max_tokens=0)
            return sum(told["choices"][0]["logprobs"]["token_logprobs"][len(prompt):])

        def scores(server, **more):
            return [d["score"] for d in server.post("/v1/score", text_1="a fox", text_2=["A fox ran.", "It rained."], **more)["data"]]

        for more, before in (({}, ""), ({"instruction": "Find it"}, "<I>Find it")):
            wanted = []
            for text in ("A fox ran.", "It rained."):
                prompt = ids(f"{before}<Q>a fox<D>{text}Relevant?", special=True)
                wanted.append(scores_test.shares([log_of(prompt, ids(word)) for word in ("yes", "no")])[0])
            self.near(scores(served, **more), wanted, most=1e-5)
        self.assertNotEqual(scores(served), scores(self.served()), "the control: the model's own template")
        status, _, answer = served.ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2})
        self.assertIn(status, (200, 400), answer)


if __name__ == "__main__":
    INVAR = scores_test.INVAR = sys.argv.pop(1)
    unittest.main()
