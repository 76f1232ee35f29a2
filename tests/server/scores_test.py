#!/usr/bin/env python3
"""Embedding directories, what ends an answer, and numbers of texts: /v1/embeddings, /pooling, /v1/rerank, /v1/score, /v1/decisions.
Usage: scores_test.py INVAR [unittest arguments]"""
import concurrent.futures
import json
import math
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from served import FAST, Served

INVAR = None  # the program; set by main
STORY = pathlib.Path(__file__).resolve().parents[2] / "models/story"
WIDTH = 64  # of the made model


def read_tensors(path):
    """(name -> (dtype, shape, bytes))"""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {n: (t["dtype"], t["shape"], data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]) for n, t in header.items()}


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def f32(rows):
    """A matrix or a vector as a tensor."""
    flat = [x for row in rows for x in row] if isinstance(rows[0], list) else rows
    shape = [len(rows), len(rows[0])] if isinstance(rows[0], list) else [len(rows)]
    return "F32", shape, struct.pack(f"<{len(flat)}f", *flat)


def exact(numbers):
    return [struct.unpack("<f", struct.pack("<f", x))[0] for x in numbers]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def unit(vector):
    return [x / math.sqrt(dot(vector, vector)) for x in vector]


def shares(logs):
    total = sum(math.exp(x) for x in logs)
    return [math.exp(x) / total for x in logs]


class Directory(unittest.TestCase):
    """Copies of a made model, changed."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="invar-scores-")
        self.addCleanup(folder.cleanup)
        self.model = pathlib.Path(folder.name, "model")
        subprocess.run([INVAR, "make-model", self.model, "--preset", "tiny", "--family", "qwen3", "--seed", "7"], check=True,
                       capture_output=True)

    def change(self, file, **fields):
        path = self.model / file
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    def modules(self, *names, kind="lasttoken"):
        paths = {"Transformer": "", "Pooling": "1_Pooling"}
        self.write("modules.json", [dict(idx=i, name=str(i), path=paths.get(n.split("_")[0], n), type="sentence_transformers.models." + n.split("_")[0])
                                    for i, n in enumerate(names)])
        self.write("1_Pooling/config.json", {"pooling_mode_" + kind: True})

    def write(self, file, value):
        (self.model / file).parent.mkdir(exist_ok=True)
        (self.model / file).write_text(json.dumps(value))

    def make_bare(self, *, tied=None, architecture="Qwen3Model", head=False):
        tensors = read_tensors(self.model / "model.safetensors")
        write_tensors(self.model / "model.safetensors", {n.removeprefix("model."): t for n, t in tensors.items() if head or n != "lm_head.weight"})
        more = {} if tied is None else {"tie_word_embeddings": tied}
        self.change("config.json", architectures=[architecture], **more)

    def served(self, *flags):
        served = Served(INVAR, command=[INVAR, "serve", self.model, "--host", "127.0.0.1", "--port", "0", *FAST, *flags])
        self.addCleanup(lambda: self.assertEqual(served.stop(), 0))
        return served

    def vectors(self, *inputs, **body):
        served = Served(INVAR, command=[INVAR, "serve", self.model, "--host", "127.0.0.1", "--port", "0", *FAST])
        told = served.post("/v1/embeddings", input=list(inputs), **body)
        self.assertEqual(served.stop(), 0)
        return [d["embedding"] for d in told["data"]]

    def near(self, found, wanted, most=3e-5):
        self.assertEqual(len(found), len(wanted))
        self.assertLess(max(abs(a - b) for a, b in zip(found, wanted)), most * max(1, *map(abs, wanted)))

    def refused(self, *words):
        done = subprocess.run([INVAR, "inspect", self.model], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stdout)
        for word in words:
            self.assertIn(word, done.stderr)


class Ends(unittest.TestCase):
    """<|im_end|> ends a chat where only the tokenizer names it."""

    def tokens(self, change):
        with tempfile.TemporaryDirectory(prefix="invar-ends-") as folder:
            model = pathlib.Path(folder, "model")
            shutil.copytree(STORY, model)
            model = change(model) or model
            served = Served(INVAR, command=[INVAR, "serve", model, "--host", "127.0.0.1", "--port", "0", "--threads", "1", "--max-model-len",
                                            "1024", "--kv-cache-memory", "0.1"])
            told = served.post("/v1/chat/completions", messages=[{"role": "user", "content": "Tell me a story."}], temperature=0)
            self.assertEqual(served.stop(), 0)
            return told["usage"]["completion_tokens"], told["choices"][0]["finish_reason"]

    def test_where_the_tokenizer_names_it(self):
        def forget(model, end=3002):
            for file in ("config.json", "generation_config.json"):
                value = json.loads((model / file).read_text())
                (model / file).write_text(json.dumps({**value, "eos_token_id": end}))

        def forget_all(model):
            forget(model, None)
            for file in ("tokenizer_config.json", "special_tokens_map.json"):
                value = json.loads((model / file).read_text())
                (model / file).write_text(json.dumps({**value, "eos_token": "<|endoftext|>"}))

        def rename(model):  # the control: a token that ends no turn by its name
            forget_all(model)
            for path in model.glob("*.json"):
                path.write_text(path.read_text().replace("<|im_end|>", "<|im_other|>"))

        expected = self.tokens(lambda model: None)
        self.assertEqual(expected[1], "stop")
        self.assertEqual(self.tokens(forget), expected)
        self.assertEqual(self.tokens(forget_all), expected)
        self.assertGreater(self.tokens(rename)[0], expected[0])

    def test_where_one_file_alone_names_it(self):
        """Among the ids of config.json, of generation_config.json or of a GGUF file, as its end of a turn; no name says it."""
        def name(**ends):
            def change(model):
                for file in ("config.json", "generation_config.json"):
                    value = json.loads((model / file).read_text())
                    (model / file).write_text(json.dumps({**value, "eos_token_id": ends.get(file.removesuffix(".json"), 3002)}))
                for path in model.glob("*.json"):
                    path.write_text(path.read_text().replace('"eos_token": "<|im_end|>"', '"eos_token": "<|endoftext|>"').replace("<|im_end|>", "<|im_other|>"))
                if "gguf" not in ends:
                    return model
                done = subprocess.run([INVAR, "convert", model, model.with_suffix(".gguf"), "--gguf", "bf16"], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                return model.with_suffix(".gguf")
            return change

        expected, both = self.tokens(lambda model: None), [3002, 3004]
        self.assertEqual(self.tokens(name(config=both)), expected)
        self.assertEqual(self.tokens(name(config=3004)), expected)
        self.assertEqual(self.tokens(name(generation_config=both)), expected)
        self.assertEqual(self.tokens(name(config=both, gguf=True)), expected)
        self.assertGreater(self.tokens(name())[0], expected[0])  # the controls
        self.assertGreater(self.tokens(name(gguf=True))[0], expected[0])


class Embeddings(Directory):
    def test_a_bare_directory_has_the_vectors_of_the_whole_one(self):
        self.modules("Transformer", "Pooling")
        expected = self.vectors([5, 6, 7], "a text")
        for architecture in ("Qwen3Model", "Qwen3ForCausalLM"):
            shutil.rmtree(self.model)
            self.setUp()
            self.modules("Transformer", "Pooling")
            self.make_bare(tied=False, architecture=architecture)
            self.assertEqual(self.vectors([5, 6, 7], "a text"), expected, architecture)
            status, _, answer = self.served().ask("POST", "/v1/completions", {"prompt": "x"})
            self.assertEqual(status, 400)
            self.assertIn("no head", answer["error"]["message"])
        shutil.rmtree(self.model)
        self.setUp()
        self.modules("Transformer", "Pooling")
        self.make_bare(head=True)
        self.assertEqual(self.vectors([5, 6, 7], "a text"), expected, "a head that nobody reads")
        self.change("config.json", architectures=["LlamaModel"])  # the control
        self.refused("contradict")

    def test_dense_modules_behind_the_pooling(self):
        self.make_bare()
        self.modules("Transformer", "Pooling")
        plain, = self.vectors([5, 6, 7])
        draw = random.Random(3)
        first = [exact(draw.gauss(0, 0.2) for _ in plain) for _ in range(12)]
        bias, second = exact(draw.gauss(0, 1) for _ in range(12)), [exact(draw.gauss(0, 1) for _ in range(12)) for _ in range(5)]
        self.modules("Transformer", "Pooling", "Dense_1", "Dense_2", "Normalize")
        write_tensors(self.model / "Dense_1/model.safetensors", {"linear.weight": f32(first), "linear.bias": f32(bias)})
        self.write("Dense_1/config.json", dict(in_features=len(plain), out_features=12, bias=True,
                                               activation_function="torch.nn.modules.activation.Tanh"))
        write_tensors(self.model / "Dense_2/model.safetensors", {"linear.weight": f32(second)})
        self.write("Dense_2/config.json", dict(in_features=12, out_features=5, bias=False,
                                               activation_function="torch.nn.modules.linear.Identity"))
        inner = [math.tanh(dot(row, plain) + b) for row, b in zip(first, bias)]
        outer = [dot(row, inner) for row in second]
        served = self.served()
        vector = lambda **body: served.post("/v1/embeddings", input=[5, 6, 7], **body)["data"][0]["embedding"]
        self.near(vector(), unit(outer))
        self.near(vector(normalize=False), outer)
        self.near(served.post("/pooling", input=[5, 6, 7])["data"][0]["data"], unit(outer))
        status, _, answer = served.ask("POST", "/v1/embeddings", {"input": "x", "normalize": "yes"})
        self.assertEqual((status, answer["error"]["param"]), (400, "normalize"))
        self.write("Dense_2/config.json", dict(in_features=12, out_features=5, activation_function="torch.nn.modules.activation.Mish"))
        self.refused("Mish")
        self.write("Dense_2/config.json", dict(in_features=13, out_features=5, activation_function="Identity"))
        self.refused("in_features")


class Relevance(Directory):
    QUERY, TEXTS = "capital of France", ["Paris is the capital.", "Bananas are yellow.", "France"]

    def test_of_an_embedding_model_it_is_the_cosine(self):
        self.make_bare()
        self.modules("Transformer", "Pooling")
        served = self.served()
        query, *vectors = [d["embedding"] for d in served.post("/v1/embeddings", input=[self.QUERY, *self.TEXTS])["data"]]
        self.check(served, [dot(unit(query), unit(v)) for v in vectors])

    def test_of_a_cross_encoder_it_is_its_score(self):
        self.make_bare()
        self.modules("Transformer", "Pooling")
        tensors = read_tensors(self.model / "model.safetensors")
        served = self.served()
        ids = lambda text: served.post("/tokenize", prompt=text)["tokens"]
        pairs = [ids(self.QUERY) + ids(text) for text in self.TEXTS]
        hidden = [d["embedding"] for d in served.post("/v1/embeddings", input=pairs)["data"]]
        weight = exact(random.Random(5).gauss(0, 0.3) for _ in hidden[0])
        scores = [1 / (1 + math.exp(-dot(weight, h))) for h in hidden]
        shutil.rmtree(self.model / "1_Pooling")
        (self.model / "modules.json").unlink()
        self.change("config.json", architectures=["Qwen3ForSequenceClassification"], id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0})
        write_tensors(self.model / "model.safetensors", {**{"model." + n: t for n, t in tensors.items()}, "score.weight": f32([weight])})
        encoder = self.served()
        self.check(encoder, scores)
        self.near([d["data"][0] for d in encoder.post("/pooling", input=pairs)["data"]], scores)
        for path, body, words in (("/v1/embeddings", {"input": "x"}, "cross-encoder"), ("/v1/completions", {"prompt": "x"}, "no head")):
            status, _, answer = encoder.ask("POST", path, body)
            self.assertEqual(status, 400)
            self.assertIn(words, answer["error"]["message"])
        self.change("config.json", sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"})
        self.near([d["data"][0] for d in self.served().post("/pooling", input=pairs)["data"]], [dot(weight, h) for h in hidden])

    PAIRS = """{%- for m in messages if m.role == "system" -%}<I>{{ m.content }}{% endfor -%}
{%- for m in messages if m.role == "query" -%}<Q>{{ m.content }}{% endfor -%}
{%- for m in messages if m.role == "document" -%}<D>{{ m.content }}{% endfor -%}"""

    def make_encoder(self):
        tensors = read_tensors(self.model / "model.safetensors")
        draw = random.Random(5)
        width = tensors["model.norm.weight"][1][0]
        self.change("config.json", architectures=["Qwen3ForSequenceClassification"], id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0})
        write_tensors(self.model / "model.safetensors", {**{n: t for n, t in tensors.items() if n != "lm_head.weight"},
                                                         "score.weight": f32([exact(draw.gauss(0, 0.3) for _ in range(width))])})

    def test_a_template_of_pairs_makes_the_prompt(self):
        """A cross-encoder is asked by a template of pairs; a chat's template is none."""
        self.make_encoder()
        file = self.model / "pairs.jinja"
        file.write_text(self.PAIRS)
        served = self.served("--chat-template", file)
        scores = lambda served, **more: [d["score"] for d in served.post("/v1/score", text_1=self.QUERY, text_2=self.TEXTS, **more)["data"]]
        pooled = lambda texts: [d["data"][0] for d in served.post("/pooling", input=texts)["data"]]
        self.assertEqual(scores(served), pooled([f"<Q>{self.QUERY}<D>{text}" for text in self.TEXTS]))
        self.assertEqual(scores(served, instruction="Find it"), pooled([f"<I>Find it<Q>{self.QUERY}<D>{text}" for text in self.TEXTS]))
        plain = self.served()
        self.assertNotEqual(scores(plain), scores(served), "the control: no template of pairs")
        self.assertEqual(scores(plain, instruction="Find it"), scores(plain))
        file.write_text(self.PAIRS + """{%- for m in messages if m.role == "user" -%}{{ m.content }}{% endfor -%}""")
        self.assertEqual(scores(self.served("--chat-template", file)), scores(plain), "the control: it shows a user's words, too")

    def test_a_pair_has_the_tokens_that_its_tokenizer_puts_around_it(self):
        """As Llama's does, a token before each text."""
        self.make_encoder()
        path = self.model / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        vocab = tokenizer["model"]["vocab"]
        first, second = sorted(vocab, key=vocab.get)[5:7]
        special = lambda token: {token: {"id": token, "ids": [vocab[token]], "tokens": [token]}}
        say = lambda id: {"SpecialToken": {"id": id, "type_id": 0}}
        text = lambda id: {"Sequence": {"id": id, "type_id": 0}}
        tokenizer["post_processor"] = {"type": "TemplateProcessing", "single": [say(first), text("A")],
                                       "pair": [say(first), text("A"), say(second), say(first), text("B"), say(second)],
                                       "special_tokens": {**special(first), **special(second)}}
        path.write_text(json.dumps(tokenizer))
        served = self.served()
        ids = lambda words: served.post("/tokenize", prompt=words, add_special_tokens=False)["tokens"]
        pairs = [[vocab[first], *ids(self.QUERY), vocab[second], vocab[first], *ids(words), vocab[second]] for words in self.TEXTS]
        found = [d["score"] for d in served.post("/v1/score", text_1=self.QUERY, text_2=self.TEXTS)["data"]]
        self.assertEqual(found, [d["data"][0] for d in served.post("/pooling", input=pairs)["data"]])
        bare = [d["data"][0] for d in served.post("/pooling", input=[pair[:-1] for pair in pairs])["data"]]
        self.assertNotEqual(found, bare, "the control: a token is missing")

    def check(self, served, scores):
        told = served.post("/v1/score", text_1=self.QUERY, text_2=self.TEXTS)
        self.assertEqual([d["index"] for d in told["data"]], [0, 1, 2])
        self.near([d["score"] for d in told["data"]], scores)
        self.assertGreater(max(scores) - min(scores), 1e-3, "scores that do not differ show nothing")
        again = served.post("/score", queries=[self.QUERY] * 3, documents=self.TEXTS)
        self.assertEqual(again["data"], told["data"])
        ranked = served.post("/v1/rerank", query=self.QUERY, documents=[self.TEXTS[0], {"text": self.TEXTS[1]}, self.TEXTS[2]], top_n=2)
        order = sorted(range(3), key=lambda i: -told["data"][i]["score"])[:2]
        self.assertEqual([(r["index"], r["relevance_score"], r["document"]["text"]) for r in ranked["results"]],
                         [(i, told["data"][i]["score"], self.TEXTS[i]) for i in order])
        for path, body, param in (("/v1/rerank", {"query": self.QUERY, "documents": []}, "documents"), ("/v1/rerank", {"documents": ["x"]}, "query"),
                                  ("/v1/rerank", {"query": 3, "documents": ["x"]}, "query"),
                                  ("/v1/rerank", {"query": "x", "documents": ["x"], "top_n": 0}, "top_n"),
                                  ("/v1/rerank", {"query": "x", "documents": ["x"] * 1025}, "documents"),
                                  ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1"),
                                  ("/v1/score", {"text_1": "", "text_2": "c"}, "text_1")):
            status, _, answer = served.ask("POST", path, body)
            self.assertEqual((status, answer["error"]["param"]), (400, param), answer)


class Judge(unittest.TestCase):
    """Likelihoods of answers, against those that a completion shows of its prompt's tokens."""

    @classmethod
    def setUpClass(cls):
        cls.served = Served(INVAR, command=[INVAR, "serve", STORY, "--host", "127.0.0.1", "--port", "0", *FAST])
        cls.end = cls.ids("<|im_end|>")

    @classmethod
    def tearDownClass(cls):
        assert cls.served.stop() == 0

    @classmethod
    def ids(cls, text):
        return cls.served.post("/tokenize", prompt=text, add_special_tokens=False)["tokens"]

    def log_of(self, messages, text):
        prompt = self.served.post("/v1/chat/completions/render", messages=messages, chat_template_kwargs={"enable_thinking": False})["token_ids"]
        told = self.served.post("/v1/completions", prompt=prompt + text, echo=True, logprobs=0, max_tokens=0)
        return sum(told["choices"][0]["logprobs"]["token_logprobs"][len(prompt):])

    def user(self, text):
        return [{"role": "user", "content": text}]

    def test_rerank_by_yes_and_no(self):
        system = ('Judge whether the Document meets the requirements based on the Query and the Instruct provided. '
                  'Note that the answer can only be "yes" or "no".')
        texts = ["A fox ran.", "A bird sang to the moon.", "It rained."]
        told = self.served.post("/v1/score", text_1="a fox", text_2=texts, instruction="Find it")
        for text, found in zip(texts, told["data"]):
            messages = [{"role": "system", "content": system}] + self.user(f"<Instruct>: Find it\n<Query>: a fox\n<Document>: {text}")
            wanted = shares([self.log_of(messages, self.ids("yes")), self.log_of(messages, self.ids("no"))])[0]
            self.assertLess(abs(found["score"] - wanted), 1e-5)
        other = self.served.post("/v1/score", text_1="a fox", text_2=texts)
        self.assertNotEqual(other["data"], told["data"], "the control: another instruction")

    QUESTIONS = [{"id": "a", "type": "predicate", "question": "Is it about a fox?"},
                 {"id": "b", "type": "choice", "question": "Who ran?", "choices": ["a fox", "a fox cub", "a bird"]},
                 {"type": "score", "question": "How good is it?", "levels": ["bad", "fine", "good"]},
                 {"type": "score", "question": "How long is it?", "levels": 10}]

    def decide(self, **more):
        return self.served.post("/v1/decisions", **{"input": "A fox ran.", "questions": self.QUESTIONS, **more})

    def test_decisions_are_the_likelihoods_of_their_answers(self):
        asked = ["Is it about a fox?\nAnswer with one word, yes or no.",
                 "Who ran?\nAnswer with exactly one of these, and nothing else:\na fox\na fox cub\na bird",
                 "How good is it?\nAnswer with one number from 1 to 3, and nothing else.\n1: bad\n2: fine\n3: good",
                 "How long is it?\nAnswer with one number from 1 to 10, and nothing else."]
        said = [["yes", "no"], ["a fox", "a fox cub", "a bird"], list("123"), [str(i) for i in range(1, 11)]]
        shown = [[True, False], said[1], [1, 2, 3], list(range(1, 11))]
        told = self.decide()
        self.assertEqual([a.get("id") for a in told["answers"]], ["a", "b", None, None])
        for answer, text, words, values in zip(told["answers"], asked, said, shown):
            logs = [self.log_of(self.user("A fox ran.\n\n" + text), self.ids(word) + self.end) for word in words]
            found = [p["probability"] for p in answer["probabilities"]]
            self.assertEqual([p["answer"] for p in answer["probabilities"]], values)
            self.assertLess(max(abs(a - b) for a, b in zip(found, shares(logs))), 1e-5)
            self.assertLess(max(abs(p["logprob"] - b) for p, b in zip(answer["probabilities"], logs)), 1e-4)
            self.assertEqual(answer["answer"], values[found.index(max(found))])
            self.assertEqual(answer["confidence"], max(found))
            if answer["type"] == "score":
                self.assertAlmostEqual(answer["expected"], sum(v * p for v, p in zip(values, found)), 5)

    def test_a_verdict_does_not_depend_on_what_is_computed_beside_it(self):
        alone = self.decide()["answers"]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            beside = [pool.submit(self.served.post, "/v1/completions", prompt="x " * i, max_tokens=40, seed=i) for i in range(1, 6)]
            crowd = [pool.submit(self.decide) for _ in range(3)]
            self.assertEqual([c.result()["answers"] for c in crowd], [alone] * 3)
            [b.result() for b in beside]
        one = [self.decide(questions=[question])["answers"][0] for question in self.QUESTIONS]
        self.assertEqual(one, alone)
        self.assertNotEqual(self.decide(input="A bird sang.")["answers"], alone, "the control: another input")

    def test_a_verdict_does_not_depend_on_where_it_is_computed(self):
        alone = self.decide()["answers"], self.served.post("/v1/score", text_1="a", text_2=["b", "c"])["data"]
        for flags in (("--engine-process", "--data-parallel-size", "2"), ("--tensor-parallel-size", "2"), ("--speculative-config", '{"method": "ngram"}'),
                      ("--arith", "control")):
            served = Served(INVAR, command=[INVAR, "serve", STORY, "--host", "127.0.0.1", "--port", "0", *FAST, *flags])
            found = (served.post("/v1/decisions", input="A fox ran.", questions=self.QUESTIONS)["answers"],
                     served.post("/v1/score", text_1="a", text_2=["b", "c"])["data"])
            self.assertEqual(served.stop(), 0)
            self.assertEqual(found == alone, "control" not in flags, flags)  # the control: another arithmetic

    def test_a_conversation_is_an_input_too(self):
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "A fox ran."}]
        told = self.decide(input=messages, instructions="Be fair.", questions=self.QUESTIONS[:1])
        asked = [{"role": "system", "content": "Be fair."}, *messages, *self.user("Is it about a fox?\nAnswer with one word, yes or no.")]
        wanted = shares([self.log_of(asked, self.ids(word) + self.end) for word in ("yes", "no")])
        self.assertLess(abs(told["answers"][0]["probabilities"][0]["probability"] - wanted[0]), 1e-5)

    def test_what_makes_no_sense_is_refused_by_name(self):
        question = self.QUESTIONS[0]
        choice = lambda *choices: {"type": "choice", "question": "x", "choices": list(choices)}
        for body, words in (({"questions": [question]}, "input"), ({"input": "x"}, "questions"), ({"input": "x", "questions": []}, "questions"),
                            ({"input": "x", "questions": [question] * 201}, "questions"), ({"input": 3, "questions": [question]}, "input"),
                            ({"input": "x", "questions": [{**question, "type": "guess"}]}, "predicate, choice or score"),
                            ({"input": "x", "questions": [choice("a")]}, "at least 2 choices"),
                            ({"input": "x", "questions": [choice("a", "a")]}, "twice"),
                            ({"input": "x", "questions": [choice("a", "")]}, "empty"),
                            ({"input": "x", "questions": [choice(*map(str, range(256)))]}, "choices"),
                            ({"input": "x", "questions": [{**choice(*(f"{i} " * 20 for i in range(8))), "question": str(k)} for k in range(20)]},
                             "tokens together"),
                            ({"input": "x", "questions": [{"type": "score", "question": "x", "levels": 11}]}, "levels"),
                            ({"input": "x", "questions": [{"type": "score", "question": "x", "levels": ["a"]}]}, "levels"),
                            ({"input": "x", "questions": [{**question, "weight": 2}]}, "weight"),
                            ({"input": "x", "questions": [question], "temperature": 1}, "temperature"),
                            ({"input": "x " * 600, "questions": [question]}, "context"),
                            ({"input": "x", "questions": [question], "model": "other"}, "other"), ([], "object")):
            status, _, answer = self.served.ask("POST", "/v1/decisions", body)
            self.assertIn(status, (400, 404), answer)
            self.assertIn(words, answer["error"]["message"])
        status, _, told = self.served.ask("POST", "/v1/decisions", {"input": "x", "questions": [question, choice("a")]})
        self.assertEqual((status, told["error"]["param"]), (400, "questions[1]"))

    def test_keys_share_no_blocks(self):
        """A second key learns nothing of the first one's prompts, as with answers: each computes its own.

        The branches of one question share their prompt. How many of them find the first one's blocks depends on when they
        begin, but the first one of a key finds none; when a key asks again, every branch finds all of them.
        """
        served = Served(INVAR, command=[INVAR, "serve", STORY, "--host", "127.0.0.1", "--port", "0", *FAST, "--api-key", "one", "--api-key", "two"])
        counts = []
        for key in ("one", "two", "two"):
            before = served.ask("GET", "/metrics", headers={"Authorization": "Bearer one"})[2]
            body = {"input": "A fox ran. " * 30, "questions": [self.QUESTIONS[0]]}
            status, _, _ = served.ask("POST", "/v1/decisions", body, {"Authorization": f"Bearer {key}"})
            self.assertEqual(status, 200)
            counts.append(cached(served.ask("GET", "/metrics", headers={"Authorization": "Bearer one"})[2]) - cached(before))
        self.assertEqual(served.stop(), 0)
        self.assertLess(counts[0], counts[2], "the control: its own blocks are found again")
        self.assertLess(counts[1], counts[2], "the first key's blocks are not found")


def cached(text):
    return sum(float(line.split()[-1]) for line in text.decode().splitlines() if line.startswith("vllm:prefix_cache_hits_total"))


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main(verbosity=2)
