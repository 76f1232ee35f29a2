#!/usr/bin/env python3
"""What clients of Ollama and of llama.cpp's server ask for, and evaluations. Usage: tools_test.py INVAR [unittest arguments]"""
import json
import math
import pathlib
import re
import sys
import tempfile
import unittest

from middle import make_middle
from served import FAST, Served

INVAR = None  # the program; set by main
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"days": {"enum": [1, 2, 3]}}, "required": ["days"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "What comes", "parameters": SCHEMA}}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
# Of an answer that is asked for again: how long it took, and what of it was cached.
TIMES = ("total_duration", "prompt_eval_duration", "eval_duration", "timings", "tokens_cached", "created_at")


def without_times(body):
    return {key: value for key, value in body.items() if key not in TIMES}


class Tools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = Served(INVAR, "--max-model-len", "2048", "--tool-call-parser", "hermes", name="m")

    @classmethod
    def tearDownClass(cls):
        assert cls.served.stop() == 0

    def lines(self, path, **body):
        """The lines of a stream, which Ollama's is unless it is asked for as a whole."""
        status, headers, data = self.served.ask("POST", path, body)
        self.assertEqual((status, headers["Content-Type"]), (200, "application/x-ndjson"), data)
        return [json.loads(line) for line in data.decode().splitlines()]

    def events(self, path, **body):
        data = self.served.stream(path, **body).decode()
        self.assertNotIn("[DONE]", data)
        return [json.loads(event.removeprefix("data: ")) for event in data.split("\n\n") if event]

    def refused(self, path, text, status=400, method="POST", **body):
        found, _, answer = self.served.ask(method, path, body)
        self.assertEqual(found, status, answer)
        said = answer["error"] if path.startswith("/api/") else answer["error"]["message"]
        self.assertIn(text, said)

    def warned(self, path, **body):
        status, headers, answer = self.served.ask("POST", path, body)
        self.assertEqual(status, 200, answer)
        return headers.get("X-Invar-Warning", "")

    def both(self, path, **body):
        """The whole answer of Ollama's form, which its lines must add up to."""
        whole = self.served.post(path, stream=False, **body)
        lines = self.lines(path, **body)
        self.assertTrue(whole["done"] and lines[-1]["done"] and not any(line["done"] for line in lines[:-1]))
        if path == "/api/chat":
            said = {"role": "assistant", "content": "".join(line["message"]["content"] for line in lines)}
            thought = "".join(line["message"].get("thinking", "") for line in lines)
            calls = [call for line in lines for call in line["message"].get("tool_calls", [])]
            said |= ({"thinking": thought} if thought else {}) | ({"tool_calls": calls} if calls else {})
            self.assertEqual(said, whole["message"])
        else:
            self.assertEqual("".join(line["response"] for line in lines), whole["response"])
        said = ("message", "response", "thinking", "tool_calls", "logprobs")
        self.assertEqual({k: v for k, v in without_times(lines[-1]).items() if k not in said},
                         {k: v for k, v in without_times(whole).items() if k not in said})
        return whole

    def test_ollama_chat(self):
        options = {"num_predict": 20, "seed": 3, "temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.01}
        answer = self.both("/api/chat", model="m", messages=HI, options=options)
        same = self.served.post(CHAT, messages=HI, max_tokens=20, seed=3, temperature=0.7, top_k=40, top_p=0.9, min_p=0.01)
        self.assertEqual(answer["message"]["content"], same["choices"][0]["message"]["content"])
        self.assertEqual((answer["prompt_eval_count"], answer["eval_count"]), (same["usage"]["prompt_tokens"], same["usage"]["completion_tokens"]))
        self.assertEqual((answer["done_reason"], answer["model"], answer["seed"]), ("length", "m:latest", 3))
        self.assertGreater(answer["eval_duration"], 0)
        self.assertRegex(answer["created_at"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertGreater(len(self.lines("/api/chat", model="m:latest", messages=HI, options=options)), 5)
        other = self.served.post("/api/chat", messages=HI, stream=False, options={**options, "seed": 4})
        self.assertNotEqual(other["message"], answer["message"])
        text = answer["message"]["content"]
        stop = text[5:7]
        cut = self.both("/api/chat", messages=HI, options={**options, "stop": [stop]})
        self.assertEqual((cut["message"]["content"], cut["done_reason"]), (text[:text.index(stop)], "stop"))

    def test_ollama_generate(self):
        options = {"num_predict": 12, "seed": 5}
        answer = self.both("/api/generate", model="m", prompt="hi", system="Be brief.", options=options)
        same = self.served.post(CHAT, messages=[{"role": "system", "content": "Be brief."}, *HI], max_tokens=12, seed=5)
        self.assertEqual(answer["response"], same["choices"][0]["message"]["content"])
        raw = self.both("/api/generate", model="m", prompt="hi", raw=True, options=options)
        same = self.served.post(COMPLETIONS, prompt="hi", max_tokens=12, seed=5)
        self.assertEqual(raw["response"], same["choices"][0]["text"])

    def test_ollama_forms_and_tools(self):
        options = {"num_predict": 60, "seed": 1}
        answer = self.both("/api/chat", messages=HI, format=SCHEMA, options=options)
        self.assertIn(json.loads(answer["message"]["content"])["days"], (1, 2, 3))
        whole = self.both("/api/chat", messages=HI, format="json", options={**options, "num_predict": 1500})
        if whole["done_reason"] == "stop":
            self.assertIsInstance(json.loads(whole["message"]["content"]), dict)
        # A made model calls nothing by itself: its text is held to a call, which is then read as one.
        call = '<tool_call>\n{"name": "weather", "arguments": {"days": 2}}\n</tool_call>'
        asked = {"messages": HI, "tools": [TOOL], "max_tokens": 200, "seed": 1, "guided_choice": [call]}
        self.assertEqual(self.served.post(CHAT, **asked)["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "weather")
        strict = {"type": "function", "function": {**TOOL["function"], "strict": True}}
        answer = self.both("/api/chat", messages=HI, tools=[strict], options={"num_predict": 5, "seed": 2})
        self.assertEqual(answer["done_reason"], "length")
        # What came back goes in again, as Ollama's clients send it.
        history = [*HI, {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [{"function": {"name": "weather", "arguments": {"days": 2}}}]},
                   {"role": "tool", "tool_name": "weather", "content": "rain"}]
        self.both("/api/chat", messages=history, tools=[TOOL], options={"num_predict": 4, "seed": 1})

    def test_ollama_logprobs(self):
        answer = self.both("/api/chat", messages=HI, logprobs=True, top_logprobs=2, options={"num_predict": 4, "seed": 1})
        self.assertEqual([len(one["top_logprobs"]) for one in answer["logprobs"]], [2] * 4)
        same = self.served.post(CHAT, messages=HI, logprobs=True, top_logprobs=2, max_tokens=4, seed=1)
        self.assertEqual(answer["logprobs"], same["choices"][0]["logprobs"]["content"])

    def test_ollama_says_what_it_does_not_do(self):
        short = {"num_predict": 2}
        self.refused("/api/chat", "images", messages=[{"role": "user", "content": "x", "images": ["aGk="]}])
        self.refused("/api/generate", "images", prompt="x", images=["aGk="])
        self.refused("/api/generate", "template", prompt="x", template="{{ .Prompt }}")
        self.refused("/api/generate", "context", prompt="x", context=[1, 2])
        self.refused("/api/generate", "fills in no text", prompt="x", suffix="y")
        self.refused("/api/chat", "mirostat", messages=HI, options={"mirostat": 2})
        self.refused("/api/chat", "think", messages=HI, think=True, options=short)
        self.refused("/api/chat", "format", messages=HI, format="yaml", options=short)
        self.refused("/api/chat", "n", messages="hi")
        self.refused("/api/chat", "does not exist", 404, model="other", messages=HI)
        self.refused("/api/pull", "invar pull", model="m")
        self.refused("/api/delete", "invar pull", method="DELETE", model="m")
        self.assertEqual(self.served.post("/api/chat", messages=HI, think=False, stream=False, options=short)["eval_count"], 2)
        body = {"messages": HI, "stream": False}
        self.assertIn("num_ctx", self.warned("/api/chat", **body, options={**short, "num_ctx": 4096}))
        self.assertIn("repeat_penalty", self.warned("/api/chat", **body, options={**short, "repeat_penalty": 1.1}))
        self.assertIn("keep_alive", self.warned("/api/chat", **body, options=short, keep_alive="5m"))
        self.assertIn("wobble", self.warned("/api/chat", **body, options={**short, "wobble": 1}))
        self.assertIn("wibble", self.warned("/api/chat", **body, options=short, wibble=1))
        self.assertEqual(self.warned("/api/chat", **body, options={**short, "repeat_penalty": 1.0, "mirostat": 0}), "")

    def test_ollama_loads_what_is_there(self):
        for path, said in (("/api/chat", {"messages": []}), ("/api/generate", {"prompt": ""}), ("/api/generate", {})):
            answer = self.served.post(path, model="m", **said)
            self.assertEqual((answer["done"], answer["done_reason"]), (True, "load"))
        self.refused("/api/generate", "keep_alive", model="m", keep_alive=0)
        self.refused("/api/generate", "does not exist", 404, model="other")

    def test_ollama_models(self):
        _, _, tags = self.served.ask("GET", "/api/tags")
        model = tags["models"][0]
        self.assertEqual((model["name"], model["model"], model["details"]["format"]), ("m:latest", "m:latest", "safetensors"))
        self.assertGreater(model["size"], 0)
        _, _, running = self.served.ask("GET", "/api/ps")
        self.assertEqual((running["models"][0]["digest"], running["models"][0]["context_length"]), (model["digest"], 2048))
        shown = self.served.post("/api/show", model="m:latest")
        family = shown["model_info"]["general.architecture"]
        self.assertEqual(shown["model_info"][family + ".context_length"], 2048)
        self.assertEqual(shown["capabilities"], ["completion", "tools"])
        self.assertIn("num_ctx 2048", shown["parameters"])
        self.assertEqual(self.served.post("/api/show", name="m")["details"], shown["details"])
        self.refused("/api/show", "does not exist", 404, model="other")
        _, _, version = self.served.ask("GET", "/api/version")
        self.assertRegex(version["version"], r"^\d+\.\d+\.\d+$")

    def test_ollama_embeddings(self):
        both = self.served.post("/api/embed", model="m", input=["hello", "world"])
        self.assertEqual((both["model"], len(both["embeddings"])), ("m:latest", 2))
        self.assertAlmostEqual(sum(x * x for x in both["embeddings"][0]), 1, 5)
        one = self.served.post("/api/embed", model="m", input="hello")
        self.assertEqual(one["embeddings"], both["embeddings"][:1])
        plain = self.served.post("/api/embeddings", model="m", prompt="hello")["embedding"]
        same = self.served.post("/v1/embeddings", input="hello")["data"][0]["embedding"]
        self.assertEqual(plain, same)
        long = "hello world " * 2000
        status, headers, cut = self.served.ask("POST", "/api/embed", {"model": "m", "input": [long, "hello"]})
        self.assertEqual((status, cut["embeddings"][1]), (200, both["embeddings"][0]))
        most = int(re.search(r"cut at its end to the (\d+) tokens", headers["X-Invar-Warning"])[1])
        ids = self.served.post("/tokenize", prompt=long)["tokens"][:most]
        begin = self.served.post("/v1/embeddings", input=ids)["data"][0]["embedding"]
        length = math.sqrt(sum(x * x for x in begin))
        self.assertLess(max(abs(a - b / length) for a, b in zip(cut["embeddings"][0], begin)), 1e-6)
        self.refused("/api/embed", "tokens", model="m", input=long, truncate=False)
        status, headers, told = self.served.ask("POST", "/api/embed", {"model": "m", "input": "hello", "keep_alive": "5m", "truncate": True, "odd": 1,
                                                                       "options": {"num_ctx": 64, "temperature": 0}})
        self.assertEqual((status, told["embeddings"]), (200, one["embeddings"]))
        for word in ("keep_alive", "odd", "num_ctx", "temperature"):
            self.assertIn(word, headers["X-Invar-Warning"])
        self.assertNotIn("X-Invar-Warning", self.served.ask("POST", "/api/embed", {"model": "m", "input": "hello"})[1], "the control: nothing to say")
        self.refused("/api/embed", "options", model="m", input="hello", options=3)
        self.refused("/api/embed", "truncate", model="m", input="hello", truncate="no")
        self.refused("/api/embed", "input", model="m")

    def test_llama_completion(self):
        body = {"prompt": "hello", "n_predict": 12, "seed": 5, "temperature": 0.8}
        answer = self.served.post("/completion", **body, return_tokens=True)
        same = self.served.post(COMPLETIONS, prompt="hello", max_tokens=12, seed=5, temperature=0.8, return_token_ids=True)
        self.assertEqual((answer["content"], answer["tokens"]), (same["choices"][0]["text"], same["choices"][0]["token_ids"]))
        self.assertEqual((answer["stop"], answer["stop_type"], answer["tokens_predicted"]), (True, "limit", 12))
        self.assertEqual((answer["prompt"], answer["generation_settings"]["seed"]), ("hello", 5))
        events = self.events("/completion", **body)
        self.assertEqual("".join(event["content"] for event in events), answer["content"])
        self.assertEqual([event["stop"] for event in events], [False] * (len(events) - 1) + [True])
        self.assertEqual(events[-1]["generation_settings"] | {"stream": False}, answer["generation_settings"])
        stop = answer["content"][3:5]
        cut = self.served.post("/completion", **body, stop=[stop])
        self.assertEqual((cut["stop_type"], cut["stopping_word"], cut["content"]), ("word", stop, answer["content"].split(stop)[0]))

    def test_llama_prompts(self):
        ids = self.served.post("/tokenize", prompt="hello")["tokens"]
        body = {"n_predict": 5, "seed": 1}
        by_text = self.served.post("/completion", prompt="hello", **body)
        self.assertEqual(self.served.post("/completion", prompt=ids, **body)["content"], by_text["content"])
        several = self.served.post("/completion", prompt=["hello", ids], **body)
        self.assertEqual([(one["index"], one["content"]) for one in several], [(0, by_text["content"]), (1, by_text["content"])])
        mixed = self.served.post("/completion", prompt=["hel", *self.served.post("/tokenize", prompt="lo", add_special_tokens=False)["tokens"]], **body)
        self.assertIsInstance(mixed["content"], str)
        nothing = self.served.post("/completion", prompt="hello", n_predict=0)
        self.assertEqual((nothing["content"], nothing["tokens_predicted"]), ("", 0))
        self.refused("/completion", "one prompt", prompt=["a", "b"], stream=True)

    def test_llama_forms_and_probabilities(self):
        answer = self.served.post("/completion", prompt="x", n_predict=60, seed=1, json_schema=SCHEMA)
        self.assertIn(json.loads(answer["content"])["days"], (1, 2, 3))
        answer = self.served.post("/completion", prompt="x", n_predict=60, seed=1, grammar='root ::= "yes" | "no"')
        self.assertIn(answer["content"], ("yes", "no"))
        answer = self.served.post("/completion", prompt="x", n_predict=3, seed=1, n_probs=2)
        self.assertEqual([len(one["top_logprobs"]) for one in answer["completion_probabilities"]], [2, 2, 2])
        self.assertEqual(set(answer["completion_probabilities"][0]), {"token", "logprob", "bytes", "id", "top_logprobs"})
        biased = self.served.post("/completion", prompt="x", n_predict=3, temperature=0, logit_bias=[[ord("a"), 100]])
        self.assertEqual(biased["content"], self.served.post("/completion", prompt="x", n_predict=3, temperature=0, logit_bias={str(ord("a")): 100})["content"])
        some = self.served.post("/completion", prompt="x", n_predict=3, response_fields=["content", "timings/prompt_n", "generation_settings/n_predict", "none"])
        self.assertEqual((set(some), some["n_predict"]), ({"content", "prompt_n", "n_predict"}, 3))

    def test_llama_says_what_it_does_not_do(self):
        self.refused("/completion", "prompt", n_predict=2)
        self.refused("/completion", "mirostat", prompt="x", mirostat=2)
        self.refused("/completion", "dry_multiplier", prompt="x", dry_multiplier=0.8)
        self.refused("/completion", "logit_bias", prompt="x", logit_bias=[["word", 1]])
        self.refused("/infill", "fills in no text", input_prefix="a", input_suffix="b")
        self.refused("/infill", "input_suffix", input_prefix="a")
        self.refused(COMPLETIONS, "fills in no text", prompt="a", suffix="b")
        # As llama.vim asks, so that it can go on.
        asked = {"prompt": "x", "n_predict": 2, "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "t_max_predict_ms": 500, "t_max_prompt_ms": 500, "id_slot": 0}
        said = self.warned("/completion", **asked)
        self.assertTrue("samplers" in said and "t_max_predict_ms" in said, said)
        self.assertEqual(self.warned("/completion", prompt="x", n_predict=2, cache_prompt=True, id_slot=-1), "")

    def test_llama_server(self):
        _, _, props = self.served.ask("GET", "/props")
        self.assertEqual((props["default_generation_settings"]["n_ctx"], props["model_alias"]), (2048, "m"))
        self.assertIn("messages", props["chat_template"])
        _, _, slots = self.served.ask("GET", "/slots")
        self.assertEqual([(slot["id"], slot["is_processing"], slot["n_ctx"]) for slot in slots], [(i, False, 2048) for i in range(props["total_slots"])])
        applied = self.served.post("/apply-template", messages=HI)
        rendered = self.served.post(CHAT + "/render", messages=HI)
        self.assertEqual(applied, {"prompt": rendered["prompt"]})
        documents = {"query": "a", "documents": ["b", "c"]}
        ranked = self.served.post("/v1/rerank", **documents)["results"]
        for path in ("/reranking", "/v1/reranking"):
            self.assertEqual(self.served.post(path, **documents)["results"], ranked)

    def test_tokenizer_info(self):
        _, _, info = self.served.ask("GET", "/tokenizer_info")
        self.assertEqual(info["model_max_length"], 2048)
        self.assertIn("messages", info["chat_template"])
        [eos] = self.served.post("/tokenize", prompt=info["eos_token"], add_special_tokens=False)["tokens"]
        self.assertEqual(self.served.post("/detokenize", tokens=[eos])["prompt"], info["eos_token"])

    def test_a_model_by_a_name(self):
        _, _, model = self.served.ask("GET", "/v1/models/m")
        self.assertEqual((model["max_model_len"], model["capabilities"]), (2048, ["completion", "tools"]))
        self.assertGreater(model["meta"]["n_params"], 0)
        chat = self.served.post(CHAT, messages=HI, max_tokens=1)
        self.assertEqual(model["system_fingerprint"], chat["system_fingerprint"])


class InTheMiddle(unittest.TestCase):
    """A model whose vocabulary has marks of a middle: the names of three of its tokens are theirs."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="invar-middle-")
        self.addCleanup(self.folder.cleanup)
        self.marks = make_middle(INVAR, self.folder.name)
        self.served = Served(INVAR, command=[INVAR, "serve", self.folder.name, "--host", "127.0.0.1", "--port", "0", "--served-model-name", "m", *FAST])
        self.addCleanup(self.served.stop)

    def test_every_form_asks_for_the_same(self):
        ids = lambda text: self.served.post("/tokenize", prompt=text, add_special_tokens=False)["tokens"]
        begin = self.served.post("/tokenize", prompt="")["tokens"]
        prefix, suffix, middle = self.marks.values()
        prompt = [*begin, prefix, *ids("def f("), suffix, *ids("): pass"), middle]
        expected = self.served.post(COMPLETIONS, prompt=prompt, max_tokens=6, seed=2)["choices"][0]["text"]
        self.assertNotEqual(expected, self.served.post(COMPLETIONS, prompt="def f(", max_tokens=6, seed=2)["choices"][0]["text"])
        self.assertEqual(self.served.post(COMPLETIONS, prompt="def f(", suffix="): pass", max_tokens=6, seed=2)["choices"][0]["text"], expected)
        generated = self.served.post("/api/generate", prompt="def f(", suffix="): pass", stream=False, options={"num_predict": 6, "seed": 2})
        self.assertEqual(generated["response"], expected)
        filled = self.served.post("/infill", input_prefix="def f(", input_suffix="): pass", n_predict=6, seed=2)
        self.assertEqual(filled["content"], expected)
        beside = self.served.post("/infill", input_prefix="def f(", input_suffix="): pass", n_predict=6, seed=2, input_extra=[{"filename": "a.py", "text": "x = 1"}])
        self.assertGreater(beside["tokens_evaluated"], filled["tokens_evaluated"])
        self.assertIn("insert", self.served.post("/api/show", model="m")["capabilities"])
        # Marks that somebody wrote are text.
        marked = self.served.post("/infill", input_prefix="<|fim_middle|>", input_suffix="", n_predict=1)
        self.assertGreater(marked["tokens_evaluated"], len(begin) + 4)


class Kept(unittest.TestCase):
    def test_an_answer_of_the_journal_is_the_same_again(self):
        with tempfile.TemporaryDirectory() as folder:
            served = Served(INVAR, "--journal", folder + "/j", name="m")
            asked = [("/api/chat", {"messages": HI, "options": {"num_predict": 9}}), ("/completion", {"prompt": "x", "n_predict": 9}),
                     ("/api/generate", {"prompt": "x", "raw": True, "options": {"num_predict": 9}})]
            first = [served.ask("POST", path, {**body, "stream": False}, {"Idempotency-Key": path}) for path, body in asked]
            served.stop()
            served = Served(INVAR, "--journal", folder + "/j", name="m")
            again = [served.ask("POST", path, {**body, "stream": False}, {"Idempotency-Key": path}) for path, body in asked]
            self.assertEqual([without_times(answer[2]) for answer in again], [without_times(answer[2]) for answer in first])
            served.stop()


if __name__ == "__main__":
    INVAR = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
