#!/usr/bin/env python3
"""The server as a client sees it. Usage: server_test.py INVAR [unittest arguments]"""
import base64
import concurrent.futures
import hashlib
import http.client
import json
import os
import pathlib
import random
import re
import signal
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from served import FAST, Endless, Served, children, events, fast_and, made, read_all

INVAR = None  # the program; set by main
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {
    "name": "weather", "parameters": {"type": "object", "properties": {"days": {"enum": [1, 2, 3]}},
                                      "required": ["days"]}}}


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def norm_weights(model):
    """The final norm's weights of a checkpoint in bf16."""
    data = (model / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    tensor = json.loads(data[8:8 + size])["model.norm.weight"]
    assert tensor["dtype"] == "BF16"
    begin, end = (8 + size + offset for offset in tensor["data_offsets"])
    return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(begin, end, 2)]


def put_together(choices):
    """The calls that a stream's choices add up to."""
    calls = []
    for part in [part for choice in choices for part in choice["delta"].get("tool_calls", [])]:
        if part["index"] == len(calls):
            calls.append(part["function"])
        else:
            calls[part["index"]]["arguments"] += part["function"]["arguments"]
    return calls


class ServerTest(unittest.TestCase):
    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.served = Served(INVAR, *cls.flags)

    @classmethod
    def tearDownClass(cls):
        assert cls.served.stop() == 0

    def refused(self, status, text, path=COMPLETIONS, body=None, method="POST", headers=None, param=None):
        """OpenAI's shape of an error, with the status and a sentence that has `text`."""
        found, _, answer = self.served.ask(method, path, body, headers)
        with self.subTest(path=path, answer=answer):
            self.assertEqual(found, status, answer)
            self.assertEqual(set(answer), {"error"})
            self.assertEqual(set(answer["error"]), {"message", "type", "param", "code"})
            self.assertIn(text, answer["error"]["message"])
            self.assertNotIn("\n", answer["error"]["message"])
            if param:
                self.assertEqual(answer["error"]["param"], param)


class Answers(ServerTest):
    def test_small_endpoints(self):
        self.assertEqual(self.served.ask("GET", "/health")[0], 200)
        models = self.served.ask("GET", "/v1/models")[2]
        self.assertEqual([m["id"] for m in models["data"]], ["m"])
        self.assertEqual(self.served.ask("GET", "/v1/models/m")[2], models["data"][0])
        self.assertEqual(self.served.ask("GET", "/v1/models/%6d")[2], models["data"][0])
        for name in ("n", "m/", "%", "%6", "..%2fm"):
            self.refused(404, "does not exist", path="/v1/models/" + name, method="GET", param="model")
        for method in ("GET", "POST"):
            self.assertEqual(self.served.ask(method, "/ping")[::2], (200, b""))
        self.assertEqual(self.served.ask("GET", "/load")[2], {"server_load": 0})
        version = self.served.ask("GET", "/version")[2]
        self.assertRegex(version["version"], r"^\d+\.\d+\.\d+$")
        self.assertEqual(len(version["weights"]), 64)

    def test_an_answer_is_what_generate_says(self):
        body = dict(prompt="The bits", max_tokens=12, seed=5, temperature=0.8, ignore_eos=True, logits_hash=True)
        served = self.served.post(COMPLETIONS, **body)
        done = subprocess.run([INVAR, "generate", "-p", "The bits", "--json", "--max-tokens", "12", "--seed", "5",
                               "--temperature", "0.8", "--ignore-eos", *made(), *FAST], capture_output=True, timeout=60)
        said = json.loads(done.stdout)
        self.assertEqual(served["choices"][0]["logits_hash"], said["logits_hash"])
        self.assertEqual(served["choices"][0]["finish_reason"], "length")
        other = self.served.post(COMPLETIONS, **{**body, "seed": 6})
        self.assertNotEqual(served["choices"][0]["logits_hash"], other["choices"][0]["logits_hash"])

    def test_a_stream_says_what_the_whole_answer_says(self):
        for path, prompt in ((COMPLETIONS, {"prompt": "abc"}), (CHAT, {"messages": HI})):
            body = dict(**prompt, max_tokens=40, seed=3, logprobs=True if path == CHAT else 0, return_token_ids=True)
            whole = self.served.post(path, **body)
            said = events(self.served.stream(path, **body, stream_options={"include_usage": True}))
            self.assertEqual(said[-1]["choices"], [])
            self.assertEqual(said[-1]["usage"], whole["usage"])
            parts = [e["choices"][0] for e in said[:-1]]
            text = "".join(p["delta"].get("content", "") if path == CHAT else p["text"] for p in parts)
            choice = whole["choices"][0]
            self.assertEqual(text, choice["message"]["content"] if path == CHAT else choice["text"])
            self.assertEqual(sum((p["token_ids"] for p in parts), []), choice["token_ids"])
            self.assertEqual([p["finish_reason"] for p in parts[:-1]], [None] * (len(parts) - 1))
            self.assertEqual(parts[-1]["finish_reason"], choice["finish_reason"])
            logprobs = [p["logprobs"]["content" if path == CHAT else "token_logprobs"] for p in parts]
            self.assertEqual(sum(logprobs, []), choice["logprobs"]["content" if path == CHAT else "token_logprobs"])
            # No half characters, and an event for every token that completes one.
            self.assertTrue(all(len(p["token_ids"]) == 1 or "\ufffd" not in text or p["token_ids"] for p in parts))

    def test_a_prompt_counts_once_however_many_answers_it_has(self):
        for prompt, tokens in (([5, 6, 7], 3), ([[5, 6, 7], [8, 9]], 5)):
            body = dict(prompt=prompt, n=2, max_tokens=4, seed=1, ignore_eos=True)
            answers = 2 if tokens == 3 else 4
            expected = {"prompt_tokens": tokens, "completion_tokens": 4 * answers, "total_tokens": tokens + 4 * answers}
            whole = self.served.post(COMPLETIONS, **body)["usage"]
            self.assertEqual({name: whole[name] for name in expected}, expected)
            said = events(self.served.stream(COMPLETIONS, **body,
                                             stream_options={"include_usage": True, "continuous_usage_stats": True}))
            self.assertEqual({name: said[-1]["usage"][name] for name in expected}, expected)
            self.assertEqual({event["usage"]["prompt_tokens"] for event in said}, {tokens})

    def test_half_a_character_at_the_end_is_shown(self):
        lead = self.served.post("/tokenize", prompt="\u20ac", add_special_tokens=False)["tokens"][0]
        self.assertEqual(self.served.post("/detokenize", tokens=[lead])["prompt"], "\ufffd")
        for length in (1, 2):
            body = dict(prompt="x", allowed_token_ids=[lead], max_tokens=length, ignore_eos=True)
            whole = self.served.post(COMPLETIONS, **body)["choices"][0]
            self.assertEqual((whole["text"], whole["finish_reason"]), ("\ufffd" * length, "length"))
            said = events(self.served.stream(COMPLETIONS, **body))
            self.assertEqual("".join(event["choices"][0]["text"] for event in said), whole["text"])

    def test_bytes_of_a_stream_depend_on_the_request_alone(self):
        body = dict(prompt="once", max_tokens=24, seed=9, n=3, temperature=1.0)

        def framed():
            data = self.served.stream(COMPLETIONS, **body)
            first = events(data)[0]
            return data.replace(first["id"].encode(), b"ID").replace(str(first["created"]).encode(), b"TIME")

        alone = framed()
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            draws = random.Random(1)
            neighbours = [pool.submit(self.served.post, COMPLETIONS, prompt=[draws.randrange(300) for _ in range(
                draws.randrange(1, 200))], max_tokens=draws.randrange(1, 40), seed=i) for i in range(24)]
            among = [pool.submit(framed) for _ in range(4)]
            self.assertEqual({f.result() for f in among}, {alone})
            [f.result() for f in neighbours]
        self.assertNotEqual(alone, self.served.stream(COMPLETIONS, **{**body, "seed": 10}))

    def test_the_length_that_is_not_asked_for_is_what_the_context_leaves(self):
        chat = dict(messages=HI, seed=1, ignore_eos=True)
        whole = self.served.post(CHAT, **chat)
        self.assertEqual(whole["max_tokens"], 512 - whole["usage"]["prompt_tokens"])
        self.assertEqual(whole["usage"]["completion_tokens"], whole["max_tokens"])
        self.assertEqual(events(self.served.stream(CHAT, **chat))[0]["max_tokens"], whole["max_tokens"])
        response = self.served.post("/v1/responses", input="hi", seed=1)
        self.assertEqual(response["max_output_tokens"], 512 - response["usage"]["input_tokens"])
        self.assertEqual(self.served.post(COMPLETIONS, prompt="x")["max_tokens"], 16)
        self.assertEqual(self.served.post(COMPLETIONS, prompt=[5] * 510)["max_tokens"], 2)
        for path, body in ((COMPLETIONS, dict(prompt=[5] * 500, max_tokens=13)), (CHAT, dict(messages=HI, max_tokens=512)),
                           (CHAT, dict(messages=HI, max_completion_tokens=512))):
            status, _, answer = self.served.ask("POST", path, body)
            self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"), answer)

    def test_a_drawn_seed_is_returned_and_repeats_the_answer(self):
        first = self.served.post(COMPLETIONS, prompt="x", max_tokens=16)
        again = self.served.post(COMPLETIONS, prompt="x", max_tokens=16, seed=first["seed"])
        self.assertEqual(first["choices"], again["choices"])
        seeds = {self.served.post(COMPLETIONS, prompt="x", max_tokens=1)["seed"] for _ in range(4)}
        self.assertEqual(len(seeds), 4)
        self.assertEqual(events(self.served.stream(COMPLETIONS, prompt="x", max_tokens=2, seed=7))[0]["seed"], 7)

    def test_choices_and_prompts(self):
        one = self.served.post(COMPLETIONS, prompt="x", max_tokens=8, seed=1)["choices"]
        three = self.served.post(COMPLETIONS, prompt=["x", [1, 2, 3]], n=3, max_tokens=8, seed=1)["choices"]
        self.assertEqual([c["index"] for c in three], list(range(6)))
        self.assertEqual(three[0]["text"], one[0]["text"])
        self.assertEqual(len({c["text"] for c in three[:3]}), 3)

    def test_equal_prompts_have_different_answers_where_no_seed_is_given(self):
        body = dict(prompt=["x", "x", [5, 6], [5, 6]], n=2, max_tokens=12, ignore_eos=True, return_token_ids=True)
        whole = self.served.post(COMPLETIONS, **body)
        choices = whole["choices"]
        self.assertEqual(len({str(c["token_ids"]) for c in choices}), 8)
        self.assertEqual([c["seed"] for c in choices], [whole["seed"] + i // 2 for i in range(8)])
        for i in range(0, 8, 2):  # each can be asked for again, alone
            again = self.served.post(COMPLETIONS, **{**body, "prompt": body["prompt"][i // 2]}, seed=choices[i]["seed"])["choices"]
            self.assertEqual([c["token_ids"] for c in again], [c["token_ids"] for c in choices[i:i + 2]])
        given = self.served.post(COMPLETIONS, **body, seed=3)["choices"]
        self.assertEqual([c["token_ids"] for c in given[:2]], [c["token_ids"] for c in given[2:4]], "a seed is each prompt's")
        self.assertNotIn("seed", given[0])
        self.assertNotIn("seed", self.served.post(COMPLETIONS, **{**body, "prompt": "x"})["choices"][0])
        firsts = {e["choices"][0]["index"]: e["choices"][0] for e in reversed(events(self.served.stream(COMPLETIONS, **body)))
                  if e["choices"]}
        self.assertEqual(len({firsts[i]["seed"] for i in range(8)}), 4)

    def test_log_probabilities_are_of_what_a_request_or_the_flag_says(self):
        """raw_logprobs unless told otherwise; a stream says the same, and the answer names another mode."""
        def told(served, path, **more):
            chat = path == CHAT
            body = dict(max_tokens=8, seed=3, temperature=0.6, top_k=30, ignore_eos=True, return_token_ids=True, **more,
                        **(dict(messages=HI, logprobs=True, top_logprobs=1) if chat else dict(prompt="x", logprobs=1)))
            whole = served.post(path, **body)["choices"][0]
            parts = [e["choices"][0] for e in events(served.stream(path, **body)) if e["choices"]]
            values = [[one["logprob"] for one in c["logprobs"]["content"]] if chat else c["logprobs"]["token_logprobs"]
                      for c in (whole, *(p for p in parts if p["logprobs"]))]
            self.assertEqual(sum(values[1:], []), values[0])
            self.assertEqual({p["logprobs_mode"] for p in parts if "logprobs_mode" in p}, {whole.get("logprobs_mode")} - {None})
            return whole["token_ids"], values[0], whole.get("logprobs_mode")
        modes = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
        for path in (COMPLETIONS, CHAT):
            found = {mode: told(self.served, path, logprobs_mode=mode) for mode in modes}
            self.assertEqual(told(self.served, path), found["raw_logprobs"])
            self.assertEqual([found[mode][2] for mode in modes], [None, *modes[1:]])
            self.assertEqual(len({str(one[0]) for one in found.values()}), 1, "the same tokens")
            self.assertEqual(len({str(one[1]) for one in found.values()}), 4, "and other numbers")
            for raw, processed in zip(found["raw_logits"][1], found["processed_logits"][1]):
                self.assertEqual(f32(processed), f32(f32(raw) / f32(0.6)))
        self.refused(400, "expected logprobs_mode as raw_logprobs", body={"prompt": "x", "logprobs_mode": "cooked"})
        served = Served(INVAR, *self.flags, "--logprobs-mode", "processed_logprobs")
        try:
            self.assertEqual(told(served, CHAT), found["processed_logprobs"])
            self.assertEqual(told(served, CHAT, logprobs_mode="raw_logprobs"), found["raw_logprobs"])
        finally:
            served.stop()

    def test_echo_and_logprobs_as_lm_eval_asks(self):
        ids = [10, 20, 30, 40]
        scored = self.served.post(COMPLETIONS, prompt=ids, max_tokens=0, echo=True, logprobs=1, temperature=0)
        logprobs = scored["choices"][0]["logprobs"]
        self.assertEqual(scored["usage"]["completion_tokens"], 0)
        self.assertEqual(len(logprobs["tokens"]), 4)
        self.assertIsNone(logprobs["token_logprobs"][0])
        self.assertIsNone(logprobs["top_logprobs"][0])
        done = subprocess.run([INVAR, "score", "--json", *made(), *FAST, "--tokens", *map(str, ids)], capture_output=True)
        self.assertEqual(logprobs["token_logprobs"][1:], json.loads(done.stdout)["logprobs"][1:])
        # A client's double is that of the f32, as Python's LLM has it.
        for value in logprobs["token_logprobs"][1:]:
            self.assertEqual(value, f32(value))
        self.assertNotEqual(float(f"{value:.8g}"), value, "the control: digits for an f32 alone are another double")
        goes_on = self.served.post(COMPLETIONS, prompt=ids, max_tokens=1, echo=True, logprobs=1, temperature=0)
        self.assertEqual(len(goes_on["choices"][0]["logprobs"]["tokens"]), 5)
        self.assertEqual(goes_on["choices"][0]["logprobs"]["token_logprobs"][:4], logprobs["token_logprobs"])
        text = self.served.post(COMPLETIONS, prompt="echo me", echo=True, max_tokens=3, seed=1)["choices"][0]["text"]
        self.assertTrue(text.startswith("echo me"))

    def test_large_answers_come_in_pieces(self):
        """A whole answer of many log-probabilities is written while it is sent; it says what the stream says."""
        for path, prompt in ((COMPLETIONS, {"prompt": [i % 200 + 50 for i in range(300)]}), (CHAT, {"messages": HI})):
            body = dict(**prompt, n=2, max_tokens=150, seed=3, ignore_eos=True, prompt_logprobs=20, **(dict(logprobs=True, top_logprobs=20) if path == CHAT else dict(logprobs=20)))
            status, headers, whole = self.served.ask("POST", path, body)
            self.assertEqual((status, headers["Transfer-Encoding"], headers["Content-Length"]), (200, "chunked", None))
            self.assertEqual(list(whole)[-2:], ["choices", "usage"])
            streamed = [e["choices"][0] for e in events(self.served.stream(path, **body))]
            for choice in whole["choices"]:
                mine = [s for s in streamed if s["index"] == choice["index"]]
                self.assertEqual(choice["prompt_logprobs"], mine[0]["prompt_logprobs"])
                for key in choice["logprobs"]:
                    self.assertEqual(choice["logprobs"][key], [v for s in mine for v in s["logprobs"][key]])
                    self.assertEqual(len(choice["logprobs"][key]), 150)
        small = self.served.ask("POST", COMPLETIONS, dict(prompt="x", max_tokens=3, logprobs=2))
        self.assertIsNone(small[1]["Transfer-Encoding"])
    def streamed(self, path, **body):
        """The choices of a stream put together: (text, token ids, finish_reason) of each."""
        all_of = {}
        for event in events(self.served.stream(path, **body, return_token_ids=True)):
            for choice in event["choices"]:
                text, ids, _ = all_of.get(choice["index"], ("", [], None))
                text += choice["delta"].get("content", "") if path == CHAT else choice["text"]
                all_of[choice["index"]] = (text, ids + choice["token_ids"], choice["finish_reason"])
        return [all_of[i] for i in sorted(all_of)]

    def whole(self, path, **body):
        choices = self.served.post(path, **body, return_token_ids=True)["choices"]
        return [(c["message"]["content"] if path == CHAT else c["text"], c["token_ids"], c["finish_reason"]) for c in choices]

    def test_tokens_that_may_not_come(self):
        allowed = [40, 50, 60]
        for path, prompt in ((COMPLETIONS, {"prompt": "x"}), (CHAT, {"messages": HI})):
            body = dict(**prompt, max_tokens=20, seed=3, n=2, ignore_eos=True)
            free = self.whole(path, **body)
            held = self.whole(path, **body, allowed_token_ids=allowed)
            self.assertEqual(self.streamed(path, **body, allowed_token_ids=allowed), held)
            for (_, ids, _), (_, ids_of_free, _) in zip(held, free):
                self.assertEqual(set(ids) - set(allowed), set())
                self.assertNotEqual(set(ids_of_free) - set(allowed), set())  # without it others come
            self.assertEqual(self.whole(path, **body, logprobs=path == CHAT or 1, allowed_token_ids=allowed), held)
        # A bad word: its text came, and does no more; what is drawn before it stays.
        body = dict(prompt="x", max_tokens=40, seed=2, ignore_eos=True)
        (text, ids, _), = self.whole(COMPLETIONS, **body)
        for word in {text[i:i + size] for size in (1, 3) for i in (4, 9, 15)}:
            if not word.strip() or "\ufffd" in word:
                continue
            (without, other_ids, _), = self.whole(COMPLETIONS, **body, bad_words=[word])
            self.assertEqual(self.streamed(COMPLETIONS, **body, bad_words=[word]), self.whole(COMPLETIONS, **body, bad_words=[word]))
            tokens = self.served.post("/tokenize", prompt=word.lstrip(), add_special_tokens=False)["tokens"]
            runs = lambda of: [of[i:i + len(tokens)] for i in range(len(of))]
            self.assertNotIn(tokens, runs(other_ids), word)
            if tokens in runs(ids):
                common = os.path.commonprefix([ids, other_ids])
                self.assertEqual(ids[:runs(ids).index(tokens)], common[:runs(ids).index(tokens)])

    def test_a_prompt_that_is_cut(self):
        ids = [10, 20, 30, 40, 50, 60]
        body = dict(max_tokens=8, seed=1, logprobs=1, echo=True)
        cut = self.served.post(COMPLETIONS, prompt=ids, truncate_prompt_tokens=4, **body)
        end = self.served.post(COMPLETIONS, prompt=ids[2:], **body)
        self.assertEqual((cut["choices"], cut["usage"]), (end["choices"], end["usage"]))
        self.assertEqual(self.served.post(COMPLETIONS, prompt=ids, truncate_prompt_tokens=99, **body)["usage"]["prompt_tokens"], 6)
        long = "many words " * 2000
        fits = self.served.post(COMPLETIONS, prompt=long, truncate_prompt_tokens=-1, max_tokens=12, ignore_eos=True)["usage"]
        self.assertEqual((fits["prompt_tokens"], fits["completion_tokens"]), (500, 12))
        chat = self.served.post(CHAT, messages=[{"role": "user", "content": long}], truncate_prompt_tokens=7, max_tokens=1)
        self.assertEqual(chat["usage"]["prompt_tokens"], 7)
        vectors = [self.served.post("/v1/embeddings", input=text, **more)["data"] for text, more in (
            (ids, dict(truncate_prompt_tokens=2)), (ids[4:], {}), (ids, {}))]
        self.assertEqual(vectors[0], vectors[1])
        self.assertNotEqual(vectors[0], vectors[2])

    def test_the_final_message_goes_on(self):
        asked = [*HI, {"role": "assistant", "content": "Sure, the"}]
        tokens = lambda **body: self.served.post("/tokenize", **body)
        text = self.served.post("/detokenize", tokens=tokens(messages=asked, continue_final_message=True)["tokens"])["prompt"]
        self.assertTrue(text.endswith("Sure, the"), text)
        body = dict(max_tokens=8, seed=1, n=2)
        goes_on = self.whole(CHAT, messages=asked, continue_final_message=True, **body)
        self.assertEqual(goes_on, self.whole(CHAT, messages=asked, continue_final_message=True, add_generation_prompt=False, **body))
        self.assertEqual(goes_on, self.whole(COMPLETIONS, prompt=text, add_special_tokens=False, **body))  # the same text
        self.assertEqual(goes_on, self.streamed(CHAT, messages=asked, continue_final_message=True, **body))
        self.assertNotEqual(goes_on, self.whole(CHAT, messages=asked, **body))

    def test_special_tokens_in_the_text(self):
        end = self.served.post("/tokenize", prompt="<|im_end|>", add_special_tokens=False)["tokens"]
        self.assertEqual(len(end), 1)  # a special token of the made model
        body = dict(prompt="x", max_tokens=4, seed=1, allowed_token_ids=end + [65, 66], logit_bias={end[0]: 2}, ignore_eos=True)
        (hidden, ids, _), = self.whole(COMPLETIONS, **body)
        (shown, same, _), = self.whole(COMPLETIONS, **body, skip_special_tokens=False)
        self.assertEqual(ids, same)
        self.assertIn(end[0], ids)
        self.assertNotIn("<|im_end|>", hidden)
        self.assertEqual(shown.replace("<|im_end|>", ""), hidden)
        self.assertEqual(shown.count("<|im_end|>"), ids.count(end[0]))
        self.assertEqual(self.streamed(COMPLETIONS, **body, skip_special_tokens=False), [(shown, ids, "length")])
        # The one that ends the answer is no text, unless the stop is asked for.
        body = dict(prompt="x", max_tokens=4, seed=1, allowed_token_ids=end, stop_token_ids=end, skip_special_tokens=False)
        self.assertEqual(self.whole(COMPLETIONS, **body), [("", end, "stop")])
        self.assertEqual(self.whole(COMPLETIONS, **body, include_stop_str_in_output=True), [("<|im_end|>", end, "stop")])

    def test_stop_strings_never_show(self):
        text = self.served.post(COMPLETIONS, prompt="x", max_tokens=30, seed=2)["choices"][0]["text"]
        stop = text[8:10]
        body = dict(prompt="x", max_tokens=30, seed=2, stop=[stop])
        cut = self.served.post(COMPLETIONS, **body)["choices"][0]
        self.assertEqual(cut["text"], text[:text.index(stop)])
        self.assertEqual((cut["finish_reason"], cut["stop_reason"]), ("stop", stop))
        parts = [e["choices"][0] for e in events(self.served.stream(COMPLETIONS, **body))]
        self.assertEqual("".join(p["text"] for p in parts), cut["text"])
        self.assertEqual([p["stop_reason"] for p in parts], [None] * (len(parts) - 1) + [stop])

    def test_a_stop_token_is_named(self):
        body = dict(prompt="x", max_tokens=30, seed=2, return_token_ids=True)
        whole = self.served.post(COMPLETIONS, **body)["choices"][0]
        self.assertEqual((whole["finish_reason"], whole["stop_reason"]), ("length", None))
        last = whole["token_ids"][8]
        cut = self.served.post(COMPLETIONS, **body, stop_token_ids=[last])["choices"][0]
        self.assertEqual((cut["finish_reason"], cut["stop_reason"]), ("stop", last))
        # An end that the request did not ask for by a stop.
        end = self.served.post(COMPLETIONS, prompt="x", max_tokens=9, seed=2, guided_regex="ab?")["choices"][0]
        self.assertEqual((end["finish_reason"], end["stop_reason"]), ("stop", None))

    def test_forms_of_an_answer(self):
        schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
        chat = self.served.post(CHAT, messages=HI, max_tokens=60, seed=1, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
        self.assertIn(json.loads(chat["choices"][0]["message"]["content"]), ({"a": 1}, {"a": 2}))
        choice = self.served.post(COMPLETIONS, prompt="x", guided_choice=["red", "green"], max_tokens=9)
        self.assertIn(choice["choices"][0]["text"], ("red", "green"))

    def test_grammars(self):
        """GBNF, by vLLM's old and new name; what is no grammar is refused."""
        grammar = 'root ::= pair ("," pair)*\npair ::= [a-c] "=" [0-9]{2}'
        for field in ({"guided_grammar": grammar}, {"structured_outputs": {"grammar": grammar, "json": None}}):
            text = self.served.post(COMPLETIONS, prompt="x", max_tokens=200, temperature=1, seed=1, stop=["\n"], **field)
            self.assertRegex(text["choices"][0]["text"], r"^[a-c]=\d\d(,[a-c]=\d\d)*")
        self.refused(400, "begins with itself", body={"prompt": "x", "guided_grammar": 'root ::= root "a" | "b"'})
        for field, value in (("bad_words", [" "]), ("prompt", [-1])):
            self.refused(400, "at least one letter" if field == "bad_words" else "token ids", body={"prompt": "x", field: value}, param=field)

    def test_schemas_of_clients(self):
        """What pydantic writes, strict and not, as the form of an answer and of a tool's arguments."""
        schema = {"$defs": {"P": {"type": "object", "title": "P", "additionalProperties": False, "required": ["day", "n", "next"], "properties": {
            "day": {"type": "string", "format": "date"}, "n": {"type": "integer", "minimum": 3, "maximum": 9, "multipleOf": 3},
            "next": {"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]}}}}, "type": "object", "required": ["p"],
            "properties": {"p": {"allOf": [{"$ref": "#/$defs/P"}], "default": None}}, "additionalProperties": False}

        def check(text):
            at = json.loads(text)["p"]
            while at:
                self.assertRegex(at["day"], r"^\d{4}-\d\d-\d\d$")
                self.assertIn(at["n"], (3, 6, 9))
                at = at["next"]

        roomy = Served(INVAR, "--max-model-len", "4096")
        self.addCleanup(roomy.stop)
        for strict in (True, False):
            form = {"type": "json_schema", "json_schema": {"name": "x", "strict": strict, "schema": schema}}
            chats = [self.served.post(CHAT, messages=HI, max_tokens=400, seed=i, response_format=form)["choices"][0]
                     for i in range(6)]
            ended = [chat["message"]["content"] for chat in chats if chat["finish_reason"] == "stop"]
            self.assertTrue(ended, chats)
            for text in ended:
                check(text)
            tools = [TOOL, {"type": "function", "function": {"name": "plan", "parameters": schema, "strict": strict}}]
            for choice in ("required", {"type": "function", "function": {"name": "plan"}}):
                roomy.post(CHAT, messages=HI, tools=tools, tool_choice=choice, max_tokens=20, seed=4)
        self.refused(400, "thing", body={"prompt": "x", "guided_json": {"type": "thing"}})

    def test_objects_of_a_schema(self):
        schema = {"properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
        form = {"type": "json_object", "schema": schema}
        for seed in range(4):
            said = self.served.post(CHAT, messages=HI, max_tokens=40, seed=seed, response_format=form)["choices"][0]
            self.assertIn(json.loads(said["message"]["content"]), ({"a": True}, {"a": False}))
        self.refused(400, "schema of response_format", path=CHAT,
                     body={"messages": HI, "response_format": {"type": "json_object", "schema": 3}})

    def test_a_request_that_excludes_its_answers(self):
        body = {"prompt": "x", "max_tokens": 5, "structured_outputs": {"choice": ["a"]}}
        self.refused(400, "leaves nothing", body=body | {"allowed_token_ids": [5]})
        # A stream says so, too, on every protocol that can ask for it; other failures are the server's.
        reply = self.served.ask("POST", COMPLETIONS, body | {"allowed_token_ids": [5], "stream": True})[2]
        error = json.loads(reply.decode().split("data: ")[1])["error"]
        self.assertEqual((error["type"], error["code"]), ("invalid_request_error", None), error)
        self.assertIn("leaves nothing", error["message"])
        self.assertEqual(self.served.post(COMPLETIONS, **body)["choices"][0]["text"], "a")

    def test_what_is_checked_at_the_end(self):
        """The form lets two digits be the same; then the answer is an error, unless nothing says that they must differ."""
        schema = {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "integer", "minimum": 0, "maximum": 9}}
        body = {"prompt": "x", "max_tokens": 20, "seed": 1, "logit_bias": {str(ord("0")): 100}}  # a byte's token has its number
        said = self.served.post(COMPLETIONS, **body, guided_json=schema)["choices"][0]["text"]
        self.assertEqual(json.loads(said), [0, 0])
        self.refused(422, "uniqueItems", body=body | {"guided_json": schema | {"uniqueItems": True}})

    def test_tools(self):
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            body = dict(messages=HI, tools=[TOOL], tool_choice=choice, max_tokens=100, seed=4)
            answer = self.served.post(CHAT, **body)
            whole = answer["choices"][0]
            self.assertEqual(whole["finish_reason"], "tool_calls")
            self.assertIsNone(whole["message"]["content"])
            (call,) = whole["message"]["tool_calls"]
            self.assertEqual(call["function"]["name"], "weather")
            self.assertIn(json.loads(call["function"]["arguments"])["days"], (1, 2, 3))
            said = [e["choices"][0] for e in events(self.served.stream(CHAT, **body))]
            self.assertEqual(said[-1]["finish_reason"], "tool_calls")
            self.assertEqual(put_together(said), [call["function"]])
            self.assertGreater(sum("tool_calls" in s["delta"] for s in said), 3)  # its arguments come as they are written
            # However it is cut, what there is of a call is no text.
            for length in range(1, answer["usage"]["completion_tokens"]):
                body["max_tokens"] = length
                cut = self.served.post(CHAT, **body)["choices"][0]
                self.assertEqual((cut["message"]["content"] or "", cut["finish_reason"]), ("", "length"), cut)
                said = [e["choices"][0] for e in events(self.served.stream(CHAT, **body))]
                self.assertEqual(put_together(said), [c["function"] for c in cut["message"].get("tool_calls", [])])
                self.assertEqual("".join(s["delta"].get("content", "") for s in said), "")
                self.assertEqual(said[-1]["finish_reason"], "length")
                for part in cut["message"].get("tool_calls", []):
                    self.assertEqual(part["function"]["name"], "weather")
        none = self.served.post(CHAT, messages=HI, tools=[TOOL], tool_choice="none", max_tokens=4)["choices"][0]
        self.assertNotIn("tool_calls", none["message"])
        # The model's own template has no place for tools: they stand in the system message.
        shown = self.served.post(CHAT + "/render", messages=HI, tools=[TOOL])
        self.assertIn("# Tools", shown["prompt"])
        self.assertIn(json.dumps(TOOL["function"]["name"]), shown["prompt"])
        self.assertEqual(shown["tools"], None)
        counted = self.served.post(CHAT, messages=HI, tools=[TOOL], max_tokens=1)["usage"]["prompt_tokens"]
        self.assertEqual((shown["count"], len(shown["token_ids"])), (counted, counted))

    def test_calls_that_the_model_may_make(self):
        # A schema that cannot be held to is refused where it would be: for a strict tool, whatever the choice.
        unique = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
        tool = lambda strict: {"type": "function", "function": {"name": "f", "parameters": unique, "strict": strict}}
        ask = dict(messages=HI, max_tokens=4, seed=1)
        for parser in ("hermes", "llama3_json"):
            served = Served(INVAR, "--tool-call-parser", parser)
            for tools, more, text in (([TOOL, tool(True)], {}, "uniqueItems"), ([tool("yes")], {}, "strict"),
                                      ([TOOL], {"parallel_tool_calls": "no"}, "parallel_tool_calls")):
                status, _, answer = served.ask("POST", CHAT, dict(ask, tools=tools, **more))
                self.assertEqual((status, text in answer["error"]["message"]), (400, True), answer)
            content = lambda **more: served.post(CHAT, **ask, **more)["choices"][0]["message"]["content"]
            free = content(tools=[tool(False)])
            for parallel in (True, False, None):
                self.assertEqual(content(tools=[tool(False)], parallel_tool_calls=parallel), free)
            # Beside a form of the answer no call can begin.
            self.assertEqual(content(tools=[tool(True)], guided_choice=["yes"]), "yes")
            served.stop()

    def test_every_reply_has_an_id(self):
        for method, path, body in (("GET", "/health", None), ("POST", COMPLETIONS, dict(prompt="x", max_tokens=1)),
                                   ("POST", COMPLETIONS, {}), ("GET", "/nothing", None), ("DELETE", COMPLETIONS, None)):
            ids = {self.served.ask(method, path, body)[1]["X-Request-Id"] for _ in range(2)}
            self.assertEqual(len(ids), 2, (path, ids))
            self.assertTrue(all(one.startswith("req_") for one in ids), ids)
            self.assertEqual(self.served.ask(method, path, body, {"X-Request-Id": "mine-7"})[1]["X-Request-Id"], "mine-7")
        self.assertNotIn(" ", self.served.ask("GET", "/health", None, {"X-Request-Id": "two words"})[1]["X-Request-Id"])
        self.assertEqual(self.served.ask("POST", "/v1/messages", {}, {"X-Request-Id": "a"})[1]["Request-Id"], "a")

    def test_errors_name_the_field(self):
        for body, param, code in ((dict(prompt="x", temperature="hot"), "temperature", "invalid_type"),
                                  (dict(prompt="x", top_p=3), "top_p", "invalid_value"),
                                  (dict(prompt="x", best_of=3), "best_of", "unsupported_parameter"),
                                  (dict(temperature=1), "prompt", "missing_required_parameter"),
                                  (dict(prompt="x", guided_regex="("), "guided_regex", "invalid_value"),
                                  (dict(prompt="x", guided_choice=[1]), "guided_choice", "invalid_type"),
                                  (dict(prompt="x", guided_json={"type": "nonsense"}), "guided_json", "invalid_value"),
                                  (dict(prompt="x", guided_grammar="root ::= ("), "guided_grammar", "invalid_value"),
                                  (dict(prompt="x", guided_regex="a" * 20000), "guided_regex", "invalid_value"),
                                  (dict(prompt="x", structured_outputs={"regex": "("}), "structured_outputs", "invalid_value"),
                                  (dict(prompt="x", response_format={"type": "json_schema", "json_schema": {"schema": {"type": 3}}}), "response_format", "invalid_value")):
            status, _, answer = self.served.ask("POST", COMPLETIONS, body)
            self.assertEqual((status, answer["error"]["param"], answer["error"]["code"]), (400, param, code), answer)
        for path, body, param in (("/v1/chat/completions", dict(messages=[{"role": "user", "content": 1}]), "messages"),
                                  ("/v1/chat/completions", dict(messages=HI, tools=[{}]), "tools"),
                                  ("/v1/responses", dict(input=[{"role": 3}]), "input"),
                                  ("/v1/responses", dict(input="many words " * 2000), "input"),
                                  ("/v1/responses", dict(input="x", tools=[{}]), "tools"),
                                  ("/v1/responses", dict(input="x", text={"format": {"type": "json_schema", "schema": {"type": "nonsense"}}}), "text"),
                                  ("/v1/embeddings", dict(input=3), "input"), ("/v1/embeddings", dict(input="many words " * 2000), "input"),
                                  ("/v1/embeddings", dict(input=""), "input")):
            status, _, answer = self.served.ask("POST", path, body)
            self.assertEqual((status, answer["error"]["param"]), (400, param), answer)

    def test_embeddings(self):
        ids = [5, 6, 7, 8]
        told = self.served.post("/v1/embeddings", input=[ids, "other"])
        self.assertEqual([d["index"] for d in told["data"]], [0, 1])
        vector = told["data"][0]["embedding"]
        # The bits depend on the text alone: not on how it is sent, nor on what else is computed.
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            beside = [pool.submit(self.served.post, COMPLETIONS, prompt="y", max_tokens=40, seed=i) for i in range(6)]
            packed = self.served.post("/v1/embeddings", input=ids, encoding_format="base64")["data"][0]["embedding"]
            [b.result() for b in beside]
        data = base64.b64decode(packed)
        self.assertEqual(list(struct.unpack(f"<{len(data) // 4}f", data)), [f32(v) for v in vector])
        self.assertNotEqual(vector, told["data"][1]["embedding"])
        self.assertEqual(told["data"][1]["embedding"], self.served.post("/v1/embeddings", input="other")["data"][0]["embedding"])

    def test_embeddings_that_may_be_cut(self):
        self.refused(400, "is_matryoshka", path="/v1/embeddings", body=dict(input="x", dimensions=4))
        with tempfile.TemporaryDirectory(prefix="invar-server-") as directory:
            model = pathlib.Path(directory, "model")
            subprocess.run([INVAR, "make-model", model, "--seed", "7"], check=True, capture_output=True)
            config = json.loads((model / "config.json").read_text())
            for more, size, wrong in ((dict(matryoshka_dimensions=[4, 8]), 8, 5), (dict(is_matryoshka=True), 5, 10 ** 6)):
                (model / "config.json").write_text(json.dumps({**config, **more}))
                served = Served(INVAR, command=[INVAR, "serve", model, "--host", "127.0.0.1", "--port", "0", *FAST])
                vector = lambda **body: served.post("/v1/embeddings", input=[5, 6, 7], **body)["data"][0]["embedding"]
                self.assertEqual(vector(dimensions=size), vector()[:size])
                for dimensions in (wrong, 0, -1, "8"):
                    status, _, answer = served.ask("POST", "/v1/embeddings", dict(input="x", dimensions=dimensions))
                    self.assertEqual(status, 400, answer)
                    self.assertIn("expected dimensions", answer["error"]["message"])
                self.assertEqual(served.stop(), 0)

    def test_embeddings_of_an_embedding_model(self):
        """Last token, mean and normalization, against what the plain means of prefixes say in f64."""
        with tempfile.TemporaryDirectory(prefix="invar-server-") as directory:
            model = pathlib.Path(directory, "model")
            subprocess.run([INVAR, "make-model", model, "--seed", "7"], check=True, capture_output=True)
            config, ids = json.loads((model / "config.json").read_text()), [5, 6, 7]

            def vectors(*inputs, **body):
                served = Served(INVAR, command=[INVAR, "serve", model, "--host", "127.0.0.1", "--port", "0", *FAST])
                told = served.post("/v1/embeddings", input=list(inputs), **body)
                self.assertEqual(served.stop(), 0)
                return [d["embedding"] for d in told["data"]], told["system_fingerprint"]

            def normed(hidden):
                scale = (sum(x * x for x in hidden) / len(hidden) + config["rms_norm_eps"]) ** -0.5
                return [x * scale * w for x, w in zip(hidden, norm_weights(model))]

            def unit(vector):
                length = sum(x * x for x in vector) ** 0.5
                return [x / length for x in vector]

            means, plain = vectors(*(ids[:n + 1] for n in range(3)))
            sums = [[0.0] * len(means[0])] + [[x * (n + 1) for x in mean] for n, mean in enumerate(means)]
            rows = [normed([a - b for a, b in zip(sums[n + 1], sums[n])]) for n in range(3)]
            expected = {"lasttoken": rows[2], "cls_token": rows[0],
                        "mean_tokens": [sum(column) / 3 for column in zip(*rows)]}
            kinds = [dict(idx=0, name="0", path="", type="sentence_transformers.models.Transformer"),
                     dict(idx=1, name="1", path="1_Pooling", type="sentence_transformers.models.Pooling"),
                     dict(idx=2, name="2", path="2_Normalize", type="sentence_transformers.models.Normalize")]
            (model / "1_Pooling").mkdir()
            fingerprints = {plain}
            for kind, row in expected.items():
                (model / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_" + k: k == kind for k in expected}))
                for modules, wanted in ((kinds[:2], row), (kinds, unit(row))):
                    (model / "modules.json").write_text(json.dumps(modules))
                    (found,), fingerprint = vectors(ids)
                    fingerprints.add(fingerprint)
                    worst = max(abs(a - b) for a, b in zip(found, wanted)) / max(map(abs, wanted))
                    self.assertLess(worst, 2e-5, (kind, len(modules)))
            self.assertEqual(len(fingerprints), 7)
            (model / "config.json").write_text(json.dumps({**config, "is_matryoshka": True}))
            (found,), _ = vectors(ids, dimensions=6)
            self.assertLess(max(abs(a - b) for a, b in zip(found, unit(expected["mean_tokens"][:6]))), 2e-5)
            (model / "modules.json").write_text(json.dumps(kinds + [dict(path="3", type="models.WordWeights")]))
            refused = subprocess.run([INVAR, "inspect", model], capture_output=True, text=True)
            self.assertEqual(refused.returncode, 1)
            self.assertIn('found "models.WordWeights"', refused.stderr)

    def test_embeddings_are_the_recorded_ones(self):
        ids = [(7 * i + 3) % 500 for i in range(400)]
        data = self.served.post("/v1/embeddings", input=ids, encoding_format="base64")["data"][0]["embedding"]
        self.assertEqual(hashlib.sha256(base64.b64decode(data)).hexdigest(),
                         "aa2af3c842f51df35129c4a4a07d9bb2d8c2e518712473def11e8469d356afac")

    def test_an_embedding_that_nobody_waits_for_ends(self):
        for flags in ((), ("--engine-process", "--data-parallel-size", "2")):
            served = Served(INVAR, *flags, "--max-num-batched-tokens", "32")  # each text takes 16 steps
            body = json.dumps(dict(input=[[i % 250] * 500 for i in range(400)])).encode()
            client = served.raw(b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            served.wait_until(lambda: served.metric("vllm:num_requests_running") > 0)
            client.close()
            # An engine's process tells its numbers with its next output.
            self.assertEqual(len(served.post("/v1/embeddings", input="a")["data"]), 1)
            served.wait_until(lambda: served.metric("vllm:num_requests_running") + served.metric("vllm:num_requests_waiting") == 0)
            self.assertLess(served.metric("invar:engine_rows_total"), 100_000)  # of 200 000
            status, _, answer = served.ask("POST", "/v1/embeddings", dict(input=[[5] * 500] * 300), {"X-Request-Timeout": "0.05"})
            self.assertEqual((status, answer["error"]["code"]), (504, "deadline_exceeded"), answer)
            self.check_a_deadline_before_the_first_text(served)
            self.assertEqual(served.stop(), 0)

    def check_a_deadline_before_the_first_text(self, served):
        """It passes while the texts are read: none of them is computed."""
        def rows():
            self.assertEqual(len(served.post("/v1/embeddings", input="a")["data"]), 1)
            served.wait_until(lambda: served.metric("vllm:num_requests_running") + served.metric("vllm:num_requests_waiting") == 0)
            return served.metric("invar:engine_rows_total")
        before = rows()
        status, _, answer = served.ask("POST", "/v1/embeddings", dict(input=[[5] * 500] * 300), {"X-Request-Timeout": "0.00001"})
        self.assertEqual((status, answer["error"]["code"]), (504, "deadline_exceeded"), answer)
        self.assertLess(rows() - before, 500)
        self.assertEqual(served.ask("POST", "/v1/embeddings", dict(input=[[6 + i] * 500 for i in range(3)]))[0], 200)
        self.assertGreater(rows() - before, 1500, "the control: texts that are computed")

    def test_responses(self):
        body = dict(input=[{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}], max_output_tokens=12, seed=3)
        whole = self.served.post("/v1/responses", **body)
        chat = self.served.post(CHAT, messages=HI, max_tokens=12, seed=3)
        self.assertEqual(whole["output"][0]["content"][0]["text"], chat["choices"][0]["message"]["content"])
        self.assertEqual(whole["usage"]["output_tokens"], chat["usage"]["completion_tokens"])
        data = self.served.stream("/v1/responses", **body).decode()
        said = [json.loads(block.split("\ndata: ")[1]) for block in data.split("\n\n")[:-1]]
        self.assertEqual([s["sequence_number"] for s in said], list(range(len(said))))
        self.assertEqual("".join(s["delta"] for s in said if s["type"] == "response.output_text.delta"),
                         whole["output"][0]["content"][0]["text"])
        self.assertEqual(said[-1]["response"]["usage"], whole["usage"])

    def test_tools_of_responses(self):
        tool = {"type": "function", "name": "weather", "parameters": TOOL["function"]["parameters"], "strict": True}
        body = dict(input="hi", tools=[tool], tool_choice="required", max_output_tokens=100, seed=4)
        whole = self.served.post("/v1/responses", **body)
        (call,) = whole["output"]
        self.assertEqual((call["type"], call["name"], whole["tools"]), ("function_call", "weather", [tool]))
        self.assertIn(json.loads(call["arguments"])["days"], (1, 2, 3))
        same = {"type": "function", "function": {**TOOL["function"], "strict": True}}
        chat = self.served.post(CHAT, messages=HI, tools=[same], tool_choice="required", max_tokens=100, seed=4)["choices"][0]
        self.assertEqual(call["arguments"], chat["message"]["tool_calls"][0]["function"]["arguments"])
        data = self.served.stream("/v1/responses", **body).decode()
        said = [json.loads(block.split("\ndata: ")[1]) for block in data.split("\n\n")[:-1]]
        self.assertEqual([s["sequence_number"] for s in said], list(range(len(said))))
        self.assertEqual("".join(s["delta"] for s in said if s["type"] == "response.function_call_arguments.delta"), call["arguments"])
        ids = lambda item: {k: v for k, v in item.items() if k not in ("id", "call_id")}
        self.assertEqual([ids(item) for item in said[-1]["response"]["output"]], [ids(call)])
        # What the tool said goes back with the call.
        asked = [{"role": "user", "content": "hi"}, call, {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}]
        again = self.served.post("/v1/responses", input=asked, tools=[tool], max_output_tokens=8, seed=1)
        self.assertEqual(again["output"][0]["type"], "message")
        self.assertGreater(again["usage"]["input_tokens"], whole["usage"]["input_tokens"])
        self.assertIs(whole["parallel_tool_calls"], True)
        self.assertIs(self.served.post("/v1/responses", **body, parallel_tool_calls=False)["parallel_tool_calls"], False)
        self.assertEqual(self.served.ask("POST", "/v1/responses", dict(input="hi", store="no"))[0], 400)
        for wrong in ([{"type": "function"}], [{}], "x"):
            self.assertEqual(self.served.ask("POST", "/v1/responses", dict(input="hi", tools=wrong))[0], 400)

    def test_prompts_in_streams(self):
        body = dict(prompt=[[10, 20, 30, 40], [50, 60]], max_tokens=3, seed=1, prompt_logprobs=1, return_token_ids=True, ignore_eos=True)
        whole = self.served.post(COMPLETIONS, **body)["choices"]
        said = [e["choices"][0] for e in events(self.served.stream(COMPLETIONS, **body))]
        for i in range(2):
            first = [s for s in said if s["index"] == i][0]
            self.assertEqual(first["prompt_logprobs"], whole[i]["prompt_logprobs"])
            self.assertEqual(first["prompt_token_ids"], body["prompt"][i])
        self.assertEqual(sum("prompt_logprobs" in s for s in said), 2)
        for tokens in (0, 3):  # an echo with log-probabilities
            body = dict(prompt=[10, 20, 30, 40], max_tokens=tokens, seed=1, echo=True, logprobs=1, ignore_eos=True)
            whole = self.served.post(COMPLETIONS, **body)["choices"][0]
            said = [e["choices"][0] for e in events(self.served.stream(COMPLETIONS, **body))]
            for key, value in whole["logprobs"].items():
                self.assertEqual(sum((s["logprobs"][key] for s in said), []), value, key)
            self.assertEqual("".join(s["text"] for s in said), whole["text"])

    def test_tokenize_and_back(self):
        told = self.served.post("/tokenize", prompt="Hello, world", return_token_strs=True)
        self.assertEqual(told["count"], len(told["tokens"]))
        self.assertEqual(len(told["token_strs"]), told["count"])
        self.assertIn("Hello, world", self.served.post("/detokenize", tokens=told["tokens"])["prompt"])
        chat = self.served.post("/tokenize", messages=HI)
        self.assertEqual(self.served.post(CHAT, messages=HI, max_tokens=1)["usage"]["prompt_tokens"], chat["count"])

    def test_many_at_once(self):
        with concurrent.futures.ThreadPoolExecutor(48) as pool:
            answers = [pool.submit(self.served.post, COMPLETIONS, prompt=f"{i}", max_tokens=10, seed=i, ignore_eos=True)
                       for i in range(96)]
            self.assertEqual({a.result()["usage"]["completion_tokens"] for a in answers}, {10})

    def test_no_token_is_lost(self):
        """Small answers to one prompt among neighbours: one text, whatever overtakes what."""
        def ask(i):
            if i % 4:
                self.served.post(COMPLETIONS, prompt=[i % 250] * (i % 17 + 1), max_tokens=i % 5 + 1, seed=i)
                return None
            return self.served.post(COMPLETIONS, prompt="The bits", max_tokens=6, seed=1, ignore_eos=True)["choices"][0]["text"]
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            self.assertEqual(len({text for text in pool.map(ask, range(1200)) if text is not None}), 1)

    def test_metrics_count(self):
        before = self.served.metric("vllm:generation_tokens_total")
        self.served.post(COMPLETIONS, prompt="x", max_tokens=7, ignore_eos=True)
        self.assertEqual(self.served.metric("vllm:generation_tokens_total"), before + 7)
        self.assertGreater(self.served.metric("vllm:time_to_first_token_seconds_count"), 0)


class BadInput(ServerTest):
    flags = ("--header-timeout", "1", "--body-timeout", "1", "--timeout-keep-alive", "2", "--max-body-mib", "1")

    def tearDown(self):
        # Whatever was sent, the next request is answered and no block is lost.
        self.assertEqual(self.served.post(COMPLETIONS, prompt="x", max_tokens=2, seed=1)["usage"]["prompt_tokens"], 1)
        self.served.wait_until(lambda: self.served.metric("vllm:num_requests_running") == 0)

    def test_bodies(self):
        for body, text in (
                ("{", "body of the request"), ("[]", "object"), ('{"prompt": 1}', "prompt"), ("{}", "prompt"),
                ('{"prompt": "x", "max_tokens": "a"}', "max_tokens"), ('{"prompt": "x", "n": 1000}', "n must"),
                ('{"prompt": "x", "temperature": -1}', "temperature"), ('{"prompt": "x", "top_p": 2}', "top_p"),
                ('{"prompt": []}', "token"), ('{"prompt": [-1]}', "token ids"), ('{"prompt": [999999]}', "token ids"),
                ('{"prompt": "x", "prompt": "y"}', "prompt"), ("[" * 100000, "body"), ('{"a":' * 500 + "1" + "}" * 500, "body"),
                (b'{"prompt": "\xff\xfe"}', "body"), ('{"prompt": "\\ud800"}', "body"), (b"\x00" * 100, "body"),
                ('{"prompt": "x", "suffix": "y"}', "suffix"), ('{"prompt": "x", "stream_options": {}}', "stream"),
                ('{"prompt": "x", "guided_regex": "("}', ""), ('{"prompt": "x", "guided_regex": "(((a{1,99}){1,99}){1,99}){1,99}"}', ""),
                ('{"prompt": "x", "guided_json": {"type": "nonsense"}}', ""), ('{"prompt": "x", "seed": -1.5}', "seed"),
                ('{"prompt": "x", "logit_bias": {"a": 1}}', "logit_bias"), ('{"prompt": "x", "stop": [""]}', ""),
                ('{"prompt": "x", "stop": 3}', ""), ('{"prompt": "x", "bad_words": "y"}', "bad_words as an array"),
                ('{"prompt": "x", "bad_words": [" "]}', "at least one letter"), ('{"prompt": "x", "bad_words": [1]}', "bad word"),
                (json.dumps({"prompt": "x", "bad_words": ["y"] * 1025}), "at most 1024"),
                ('{"prompt": "x", "allowed_token_ids": []}', "at least one"), ('{"prompt": "x", "allowed_token_ids": [999999]}', "allowed_token_ids"),
                ('{"prompt": "x", "allowed_token_ids": [5], "stop_token_ids": [5], "min_tokens": 1}', "may come first"),
                ('{"prompt": "x", "truncate_prompt_tokens": 0}', "-1 or at least 1"), ('{"prompt": "x", "truncate_prompt_tokens": -2}', "truncate"),
                ('{"prompt": "x", "repetition_penalty": 1e-40}', "in [0.0001, 10000], not 1e-40"),
                ('{"prompt": "x", "skip_special_tokens": 1}', "skip_special_tokens"), ('{"prompt": "x", "logprobs": 99999999}', "logprobs")):
            self.refused(400, text, body=body)
        for more in ({"logprobs": 21}, {"prompt_logprobs": 21}):
            self.refused(400, "from 0 to 20 (max-logprobs), found 21", body={"prompt": "x", **more})
        self.refused(400, "from 0 to 20", path=CHAT, body={"messages": HI, "logprobs": True, "top_logprobs": 1024})
        self.refused(400, "bytes: more than", body={"prompt": "many words " * 80000}, param="prompt")  # before it is tokenized
        self.refused(400, "bytes: more than", path=CHAT, body={"messages": [{"role": "user", "content": "many words " * 80000}]}, param="messages")
        self.refused(404, "does not exist", body={"prompt": "x", "model": "../../etc/passwd"}, param="model")
        self.refused(400, "tokens", body={"prompt": "many words " * 2000}, param="prompt")
        self.refused(400, "add_generation_prompt: false", path=CHAT, body={"messages": HI, "continue_final_message": True, "add_generation_prompt": True})
        self.refused(400, 'found "wizard"', path=CHAT, body={"messages": [{"role": "wizard", "content": "x"}]})
        for messages in ([], [{}], "x", [{"role": 1}], [{"role": "user", "content": [{"type": "image_url"}]}]):
            self.refused(400, "", path=CHAT, body={"messages": messages})
        self.refused(400, "tool", path=CHAT, body={"messages": HI, "tools": [{}]})
        self.refused(400, "no tool", path=CHAT, body={"messages": HI, "tools": [TOOL], "tool_choice": {
            "type": "function", "function": {"name": "other"}}})
        self.refused(400, "tokens", path="/detokenize", body={})
        keys = lambda count: json.dumps({f"key{i}": i for i in range(count)} | {"prompt": "x", "max_tokens": 1})
        self.assertEqual(self.served.ask("POST", COMPLETIONS, keys(1000))[0], 200)  # unknown fields are ignored
        self.refused(400, "at most 1024 fields", body=keys(20000))
        self.assertIn('the field "key0" of a request is not known', self.served.said())
        self.assertLess(self.served.said().count("is not known"), 100)  # however many there are
        self.assertNotIn('"prompt"', self.served.said())
        for size in (2 << 20, 40 << 20):  # the second is more than sockets hold
            self.refused(413, "too large", body=b" " * size)

    def test_fields_of_other_servers(self):
        """What would change an answer there is refused here, unless it asks for nothing."""
        fields = [("typical_p", 0.5, 1), ("length_penalty", 2, 1.0), ("dry_multiplier", 0.8, 0), ("dry_base", 2, 1.75),
                  ("dry_sequence_breakers", ["x"], ["\n", ":", '"', "*"]), ("grammar", 'root ::= "a"', ""),
                  ("logits_processors", ["x"], []), ("prompt_embeds", "AAAA", None), ("n_predict", 5, None),
                  ("mirostat", 2, 0), ("xtc_probability", 0.5, 0), ("top_n_sigma", 1.0, -1), ("repeat_penalty", 1.3, 1),
                  ("best_of", 2, 1), ("use_beam_search", True, False), ("max_new_tokens", 3, None), ("ebnf", "x", None),
                  ("no_repeat_ngram_size", 2, 0), ("reasoning_effort", "high", None), ("modalities", ["audio"], ["text"])]
        for name, asks, neutral in fields:
            for path, body in ((COMPLETIONS, {"prompt": "x"}), (CHAT, {"messages": HI})):
                self.refused(400, f'the field "{name}" is not supported: expected', path=path, body={**body, name: asks})
                self.served.post(path, **body, max_tokens=1, **{name: neutral})
        self.refused(400, '"max_tokens"', body={"prompt": "x", "n_predict": 5})  # what to ask for instead

    def test_paths_and_methods(self):
        for path in ("/page", "/page/../api.cc", "/docs/", "/v1", "/v1/../../etc/passwd", "/%2e%2e/x", "/v1/models/", "/v1/responses/../x"):
            self.refused(404, "nothing at", path=path, method="GET")
        for path, meant in (("/chat/completions", CHAT), ("/v1/v1/messages", "/v1/messages")):  # of a base URL that lacks /v1, or has it twice
            self.refused(404, f'nothing at "{path}"; perhaps "{meant}" is meant', path=path)
        for path in ("/", "/chat", "/v1/v1/nothing"):
            self.assertNotIn("perhaps", str(self.served.ask("POST", path, {})[2]))
        self.refused(404, 'the model "../x" does not exist', path="/v1/models/../x", method="GET")
        self.refused(405, "expected POST", path=COMPLETIONS, method="GET")
        self.assertEqual(self.served.ask("DELETE", "/health")[1]["Allow"], "GET")
        status, headers, body = self.served.ask("HEAD", "/v1/models")
        self.assertEqual((status, body), (200, b""))

    def raw(self, data):
        return read_all(self.served.raw(data))

    def test_what_two_servers_could_read_differently(self):
        head, body = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", '{"prompt":"x","max_tokens":1}'
        chunked = f"{len(body):x}\r\n{body}\r\n0\r\n\r\n"
        good = head + f"Content-Length: {len(body)}\r\n\r\n{body}"
        self.assertTrue(self.raw(good.encode()).startswith(b"HTTP/1.1 200"))
        self.assertTrue(self.raw((head + "Transfer-Encoding: chunked\r\n\r\n" + chunked).encode()).startswith(b"HTTP/1.1 200"))
        for bad in (
                f"Content-Length: {len(body)}\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked,
                f"Transfer-Encoding: chunked\r\nContent-Length: {len(body)}\r\n\r\n" + chunked,
                f"Content-Length: {len(body)}\r\nContent-Length: 1\r\n\r\n{body}",
                f"Content-Length: {len(body)}\r\nContent-Length: {len(body)}\r\n\r\n{body}",
                f"Content-Length: {len(body)}, 1\r\n\r\n{body}",
                f"Content-Length: +{len(body)}\r\n\r\n{body}",
                f"Content-Length: -1\r\n\r\n{body}",
                "Content-Length: 99999999999999999999999\r\n\r\n" + body,
                f"Transfer-Encoding: chunked, identity\r\n\r\n{chunked}",
                f"Transfer-Encoding : chunked\r\n\r\n{chunked}",
                "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
                f"Host: y\r\nContent-Length: {len(body)}\r\n\r\n{body}",
                "Header\r\n\r\n", " folded: x\r\n\r\n", "a\x00b: c\r\n\r\n"):
            reply = self.raw((head + bad).encode())
            with self.subTest(bad=bad, reply=reply[:60]):
                self.assertRegex(reply, rb"^HTTP/1.1 (400|413|501) ")
                self.assertEqual(len(re.findall(rb"HTTP/1.1 \d", reply)), 1)
        for line in (b"GET\r\n\r\n", b"GET /health\r\n\r\n", b"GET /health HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
                     b"GET http://other/health HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /health HTTP/1.1\r\n\r\n"):
            with self.subTest(line=line):
                self.assertRegex(self.raw(line), rb"^HTTP/1.1 (400|505) ")
        self.assertRegex(self.raw(b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 40000 + b"\r\n"), rb"^HTTP/1.1 431 ")

    def test_several_requests_on_a_connection(self):
        connection = self.served.raw(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 3 +
                                     b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        self.assertEqual(read_all(connection).count(b"HTTP/1.1 200 OK"), 4)
        old = self.raw(b"GET /health HTTP/1.0\r\n\r\n")
        self.assertTrue(old.startswith(b"HTTP/1.1 200") and b"Connection: close" in old)

    def test_an_expected_continue(self):
        body = b'{"prompt":"x","max_tokens":1}'
        connection = self.served.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\n"
                                     b"Content-Length: %d\r\n\r\n" % len(body))
        self.assertTrue(connection.recv(100).startswith(b"HTTP/1.1 100 "))
        connection.sendall(body)
        self.assertIn(b" 200 OK", read_all(connection))

    def test_slow_senders_are_ended_and_harm_nobody(self):
        slow = [self.served.raw(b"POST /v1/completions HTTP/1.1\r\nHo") for _ in range(50)]
        begin = time.monotonic()
        self.served.post(COMPLETIONS, prompt="x", max_tokens=2)
        self.assertLess(time.monotonic() - begin, 1)
        body = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
        slow += [self.served.raw(body + b"\r\n{"), self.served.raw(body + b"Expect: 100-continue\r\n\r\n")]
        for connection in slow:
            self.assertRegex(read_all(connection), rb"^(HTTP/1.1 100 Continue\r\n\r\n)?HTTP/1.1 408 ")
        self.assertLess(time.monotonic() - begin, 4)
        idle = self.served.raw()
        self.assertEqual(read_all(idle), b"")  # silently, after --timeout-keep-alive

    def test_every_byte_of_a_body_counts(self):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        body = b'{"prompt":"x","max_tokens":1}'
        # Extensions are read over; a line of them without end is refused, and so are small chunks with much around them.
        small = b"".join(b"1;%s\r\n%c\r\n" % (b"e" * 100, byte) for byte in body) + b"0;e=1\r\n\r\n"
        self.assertRegex(self.raw(head + small), rb"^HTTP/1.1 200 ")
        before = self.served.resident_bytes()
        for piece, status, times in ((b"1;" + b"e" * 5000, 400, 1), (b"1;" + b"e" * 4000 + b"\r\n \r\n", 413, 300)):
            connection = self.served.raw(head)
            try:
                for _ in range(times):
                    connection.sendall(piece)
            except OSError:
                pass  # it has enough
            self.assertRegex(read_all(connection), rb"^HTTP/1.1 %d " % status)
        self.assertLess(self.served.resident_bytes() - before, 16 << 20)

    def test_cut_off_requests(self):
        for data in (b"P", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"):
            self.served.raw(data).close()


class Clients(ServerTest):
    flags = ("--max-queued-requests", "3", "--allowed-origins", "https://a.example")
    LONG = dict(prompt="x", max_tokens=400, ignore_eos=True)

    @classmethod
    def setUpClass(cls):
        cls.served = Endless(INVAR, *cls.flags)

    def test_a_client_that_goes_frees_its_pages(self):
        blocks = self.served.metric("invar:kv_blocks")
        steps = self.served.metric("invar:engine_steps_total")
        self.served.begin().close()
        self.served.wait_until(lambda: self.served.metric("vllm:num_requests_running") == 0)
        self.assertLess(self.served.metric("invar:engine_steps_total") - steps, 48000)  # it was not computed to its end
        self.assertEqual(self.served.metric("invar:kv_blocks_free"), blocks)

    def test_the_urgent_come_first(self):
        served = Endless(INVAR, "--max-num-seqs", "1")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            order = []
            def ask(priority):  # the next one cannot begin before this one has gone
                connection = served.begin(priority=priority)
                order.append(priority)
                connection.close()
            first = served.begin()  # holds the only place until the others wait
            rest = []
            for i, priority in enumerate((2, 1, 0, -1)):
                rest.append(pool.submit(ask, priority))
                served.wait_until(lambda: served.metric("vllm:num_requests_waiting") == i + 1)
            first.close()
            [r.result() for r in rest]
        self.assertEqual(order, [-1, 0, 1, 2])
        self.assertEqual(served.stop(), 0)

    def test_too_many_requests(self):
        streams = [self.served.begin() for _ in range(3)]
        self.assertEqual(self.served.ask("GET", "/load")[2], {"server_load": 3})
        status, headers, answer = self.served.ask("POST", COMPLETIONS, self.LONG)
        self.assertEqual((status, answer["error"]["code"]), (429, "queue_full"))
        self.assertGreaterEqual(int(headers["Retry-After"]), 1)
        [s.close() for s in streams]
        self.served.wait_until(lambda: self.served.metric("invar:answers") == 0)
        self.served.post(COMPLETIONS, prompt="x", max_tokens=1)

    def test_answers_are_bounded_and_not_requests(self):
        for body in (dict(prompt=["a", "b"], n=2), dict(prompt=["x"] * 2048, n=128)):
            status, _, answer = self.served.ask("POST", COMPLETIONS, {**self.LONG, **body})
            self.assertEqual(status, 400)
            self.assertIn("expected at most 3 answers (--max-queued-requests), found a request for", answer["error"]["message"])
        stream = self.served.begin()
        status, _, answer = self.served.ask("POST", COMPLETIONS, {**self.LONG, "n": 3})
        self.assertEqual((status, answer["error"]["code"]), (429, "queue_full"))
        self.assertEqual(len(self.served.post(COMPLETIONS, prompt="x", max_tokens=1, n=2)["choices"]), 2)
        stream.close()
        self.served.wait_until(lambda: self.served.metric("invar:answers") == 0)
        self.assertEqual(len(self.served.post(COMPLETIONS, prompt="x", max_tokens=1, n=3)["choices"]), 3)

    def test_a_reader_that_does_not_read_slows_nobody(self):
        stalled = self.served.begin()
        begin = time.monotonic()
        self.served.post(COMPLETIONS, prompt="y", max_tokens=50, ignore_eos=True)
        self.assertLess(time.monotonic() - begin, 5)
        stalled.close()

    def test_pages_of_other_origins(self):
        _, headers, _ = self.served.ask("GET", "/v1/models", headers={"Origin": "https://a.example"})
        self.assertEqual(headers["Access-Control-Allow-Origin"], "https://a.example")
        _, headers, _ = self.served.ask("GET", "/v1/models", headers={"Origin": "https://b.example"})
        self.assertNotIn("Access-Control-Allow-Origin", headers)
        status, headers, _ = self.served.ask("OPTIONS", CHAT, headers={
            "Origin": "https://a.example", "Access-Control-Request-Method": "POST"})
        self.assertEqual((status, headers["Access-Control-Allow-Methods"]), (204, "POST"))


class Keys(ServerTest):
    flags = ("--api-key", "secret", "--api-key", "other")

    def test_keys(self):
        ask = lambda **headers: self.served.ask("GET", "/v1/models", headers=headers)[0]
        self.assertEqual(ask(Authorization="Bearer secret"), 200)
        self.assertEqual(ask(Authorization="Bearer other"), 200)
        for scheme in ("bearer", "BEARER", "bEaReR"):
            self.assertEqual(ask(Authorization=scheme + " secret"), 200)
            self.assertEqual(ask(Authorization=scheme + " Secret"), 401)
        self.assertEqual(self.served.ask("GET", "/v1/models", headers={"x-api-key": "secret"})[0], 200)
        self.assertEqual(self.served.ask("GET", "/v1/models", headers={"x-api-key": "wrong"})[0], 401)
        for wrong in ("Bearer secre", "Bearer secrets", "Bearer ", "secret", "Basic secret", "bearer"):
            self.assertEqual(ask(Authorization=wrong), 401, wrong)
        self.refused(401, "key", path="/v1/models", method="GET")
        self.refused(401, "key", path=COMPLETIONS, body="{")

    def test_a_key_comes_before_the_body(self):
        """Not a byte of a body is waited for whose request shows no key, or asks for what is not there."""
        for path, key, status in ((COMPLETIONS, "", 401), (COMPLETIONS, "Bearer nobody's", 401), ("/nothing", "Bearer secret", 404), ("/health", "", 405)):
            for more in ("Content-Length: 30000000", "Transfer-Encoding: chunked", "Expect: 100-continue\r\nContent-Length: 100"):
                connection = self.served.raw(f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\nOrigin: https://a\r\n{more}\r\n\r\n".encode())
                reply = connection.recv(4096)
                self.assertTrue(reply.startswith(b"HTTP/1.1 %d " % status), reply)
                self.assertIn(b"Access-Control-Allow-Origin: *", reply)
                connection.close()
        self.assertEqual(self.served.ask("GET", "/health")[0], 200)


class Owners(unittest.TestCase):
    def test_an_answer_belongs_to_the_key_that_made_it(self):
        with tempfile.TemporaryDirectory(prefix="invar-server-") as directory:
            flags = ("--journal", str(pathlib.Path(directory) / "journal"))
            a, b = ({"Authorization": f"Bearer {key}", "Idempotency-Key": "k"} for key in ("a", "b"))
            body = dict(prompt="x", max_tokens=20)
            served = Served(INVAR, *flags, "--api-key", "a", "--api-key", "b")
            first = served.stream(COMPLETIONS, a, **body)
            other = served.stream(COMPLETIONS, b, **body)  # the same key of another owner is another one
            self.assertNotEqual(events(first)[0]["id"], events(other)[0]["id"])
            self.assertEqual(served.ask("POST", COMPLETIONS, {**body, "max_tokens": 3}, b)[0], 422)  # its own is not
            for _ in range(2):  # also of a server that was started again
                path = f"{COMPLETIONS}/{events(first)[0]['id']}?stream=true"
                self.assertEqual(served.ask("GET", path, headers=a)[2], first)
                status, _, answer = served.ask("GET", path, headers=b)
                self.assertEqual((status, "there is no answer" in answer["error"]["message"]), (404, True))
                self.assertEqual(served.stream(COMPLETIONS, a, **body), first)
                self.assertEqual(served.stop(), 0)
                served = Served(INVAR, *flags, "--api-key", "a", "--api-key", "b")
            self.assertEqual(served.stop(), 0)
            self.assertNotIn(b"Bearer", pathlib.Path(flags[1]).read_bytes())
            served = Served(INVAR, *flags)  # without keys: those of nobody
            self.assertEqual(served.ask("GET", path)[0], 404)
            self.assertEqual(served.stop(), 0)


class Weights(unittest.TestCase):
    """POST /admin/weights: another checkpoint in place."""
    BODY = dict(prompt="The bits of an answer depend on the request alone, not on what it stood beside. " * 2, max_tokens=24,
                seed=3, ignore_eos=True, logits_hash=True)
    KEY = {"Authorization": "Bearer k"}

    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="invar-server-")
        cls.root = pathlib.Path(cls.directory.name)
        for name, flags in (("one", ["--seed", "1"]), ("two", ["--seed", "2"]), ("wide", ["--layers", "3"])):
            subprocess.run([INVAR, "make-model", cls.root / name, *flags], check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def serve(self, model, *flags):
        return Served(INVAR, command=[INVAR, "serve", self.root / model, "--host", "127.0.0.1", "--port", "0", "--api-key", "k",
                                      *fast_and(flags)])

    def answer(self, served, **body):
        status, _, answer = served.ask("POST", COMPLETIONS, {**self.BODY, **body}, self.KEY)
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]["logits_hash"], answer["system_fingerprint"]

    def swap(self, served, model, status=200, headers=KEY):
        found, _, answer = served.ask("POST", "/admin/weights", {"model": str(self.root / model)}, headers)
        self.assertEqual(found, status, answer)
        return answer

    def test_answers_are_those_of_a_fresh_server(self):
        two = self.serve("two")
        fresh = self.answer(two)
        two.stop()
        for flags in ((), ("--data-parallel-size", "2"), ("--engine-process",)):
            with self.subTest(flags=flags):
                served = self.serve("one", *flags)
                before = self.answer(served)
                self.assertEqual(self.answer(served), before)  # from cached blocks, which must not outlive their weights
                swapped = self.swap(served, "two")
                self.assertEqual({self.answer(served) for _ in range(4)}, {fresh})
                self.assertNotEqual(fresh, before)
                self.assertEqual(swapped["system_fingerprint"], fresh[1])
                self.assertEqual(served.ask("GET", "/version")[2]["weights"], swapped["weights"])
                if flags == ("--engine-process",):  # an engine that comes back takes them again
                    (engine,) = children(served.process.pid)
                    os.kill(engine, signal.SIGKILL)
                    self.assertEqual(self.answer(served), fresh)
                self.assertEqual(self.swap(served, "one")["before"], swapped["weights"])
                self.assertEqual(self.answer(served), before)
                self.assertEqual(served.stop(), 0)

    def begun(self, served, **body):
        """A stream whose first tokens have come."""
        text = json.dumps({**self.BODY, "stream": True, **body})
        connection = served.raw(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer k\r\n"
                                f"Content-Length: {len(text)}\r\n\r\n{text}".encode())
        data = b""
        while b"data: " not in data:
            data += connection.recv(1000)
        return connection, data

    def test_what_has_begun_ends_with_its_own_weights(self):
        served = self.serve("one", "--max-model-len", "4096")
        fingerprint = self.answer(served)[1].encode()
        hashes = lambda data: re.findall(rb'"logits_hash": "(\w+)"', data)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            alone = hashes(read_all(self.begun(served, max_tokens=1000)[0]))
            running = [self.begun(served, max_tokens=1000) for _ in range(3)]
            swap = pool.submit(self.swap, served, "two")
            time.sleep(0.02)
            late = [pool.submit(self.answer, served, max_tokens=300) for _ in range(3)]
            whole = [first + read_all(connection) for connection, first in running]
            self.assertEqual([hashes(data)[-1:] for data in whole], [alone[-1:]] * 3)
            self.assertTrue(alone and all(fingerprint in data for data in whole))
            after = swap.result()["system_fingerprint"]
            self.assertLessEqual({r.result()[1] for r in late}, {fingerprint.decode(), after})
            self.assertEqual(self.answer(served)[1], after)
        self.assertEqual(served.stop(), 0)

    def test_what_is_refused_changes_nothing(self):
        served = self.serve("one")
        before = self.answer(served)
        self.swap(served, "two", 401, {})
        self.assertIn("shape", self.swap(served, "wide", 400)["error"]["message"])
        self.swap(served, "nowhere", 400)
        broken = self.root / "broken"  # a NaN, found when half of the weights are there
        broken.mkdir(exist_ok=True)
        for file in (self.root / "two").iterdir():
            data = bytearray(file.read_bytes())
            if file.suffix == ".safetensors":
                data[-2:] = b"\xff\x7f"
            (broken / file.name).write_bytes(data)
        self.assertIn("finite", self.swap(served, "broken", 400)["error"]["message"])
        for body in ("", "{", "[]", "{}", '{"model": 1}', '{"model": ""}'):
            self.assertEqual(served.ask("POST", "/admin/weights", body, self.KEY)[0], 400, body)
        self.assertEqual(self.answer(served), before)
        self.assertEqual(served.stop(), 0)
        open_to_all = Served(INVAR)
        self.assertEqual(open_to_all.ask("POST", "/admin/weights", {"model": "x"})[0], 403)
        open_to_all.stop()

    def test_a_key_of_its_own(self):
        served = self.serve("one", "--admin-key", "a")
        before, admin = self.answer(served), {"Authorization": "Bearer a"}
        for headers in (self.KEY, {}, {"Authorization": "Bearer "}):
            self.assertIn("admin's key", self.swap(served, "two", 401, headers)["error"]["message"])
        self.assertEqual(served.ask("POST", COMPLETIONS, self.BODY, admin)[0], 401)  # it opens nothing else
        self.swap(served, "two", headers=admin)
        self.assertNotEqual(self.answer(served), before)
        self.assertEqual(served.stop(), 0)

    def test_one_swap_at_a_time(self):
        served = self.serve("one", "--max-model-len", "4096")
        before = self.answer(served)[1]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            held, _ = self.begun(served, max_tokens=3000)  # as long as it goes on, so does the first swap
            ask = lambda: served.ask("POST", "/admin/weights", {"model": str(self.root / "two")}, self.KEY)
            swaps = [pool.submit(ask) for _ in range(2)]
            first = next(concurrent.futures.as_completed(swaps)).result()
            self.assertEqual((first[0], first[2]["error"]["code"]), (409, "busy"))
            held.close()
            self.assertEqual(sorted(swap.result()[0] for swap in swaps), [200, 409])
        after = self.answer(served)[1]
        self.assertNotEqual(after, before)
        self.swap(served, "one")  # the next is not refused
        self.assertEqual(self.answer(served)[1], before)
        self.assertEqual(served.stop(), 0)


class Fingerprints(unittest.TestCase):
    """Whatever fixes an answer is in system_fingerprint; what does not is not."""

    def fingerprint(self, model, *flags):
        served = Served(INVAR, command=[INVAR, "serve", model, "--host", "127.0.0.1", "--port", "0", *fast_and(flags)])
        fingerprint = served.ask("GET", "/v1/engine")[2]["system_fingerprint"]
        self.assertEqual(served.post(COMPLETIONS, prompt="x", max_tokens=1)["system_fingerprint"], fingerprint)
        served.stop()
        return fingerprint

    def test_each_file_and_default_changes_it(self):
        with tempfile.TemporaryDirectory(prefix="invar-fingerprint-") as folder:
            model = pathlib.Path(folder) / "model"
            subprocess.run([INVAR, "make-model", model], check=True, capture_output=True)
            seen = {"as it is": self.fingerprint(model)}
            self.assertEqual(self.fingerprint(model, "--max-num-seqs", "2"), seen["as it is"])

            def changed(name, **members):
                path = model / name
                before = path.read_text()
                path.write_text(json.dumps({**json.loads(before), **members}))
                seen[f"{name} {members}"] = self.fingerprint(model)
                path.write_text(before)

            changed("config.json", rope_theta=10001.0)
            changed("config.json", rms_norm_eps=2e-6)
            changed("generation_config.json", eos_token_id=[5, 6])
            changed("generation_config.json", temperature=0.5)
            changed("tokenizer_config.json", chat_template="{{ messages[0].content }}", added=1)
            changed("tokenizer.json", version="2")
            self.assertEqual(len(set(seen.values())), len(seen), seen)

    def test_a_familys_sampling_is_what_requests_leave_open(self):
        with tempfile.TemporaryDirectory(prefix="invar-sampling-") as folder:
            model = pathlib.Path(folder) / "model"
            subprocess.run([INVAR, "make-model", model, "--family", "qwen3"], check=True, capture_output=True)
            (model / "generation_config.json").unlink()
            body = {"prompt": "x", "max_tokens": 12, "seed": 7, "logits_hash": True, "ignore_eos": True}
            family, plain = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}, {"temperature": 1, "top_p": 1, "top_k": 0}
            said = {}
            for flags in ([], ["--generation-config", "vllm"]):
                served = Served(INVAR, command=[INVAR, "serve", model, "--host", "127.0.0.1", "--port", "0", "--served-model-name", "m",
                                                *fast_and(flags)])
                shown = served.ask("GET", "/v1/models/m")[2]
                answers = [served.post(COMPLETIONS, **body, **more)["choices"] for more in ({}, family, plain)]
                said[bool(flags)] = shown["sampling"], shown["system_fingerprint"], answers
                self.assertEqual("recommended for the family qwen3" in served.said(), not flags)
                served.stop()
            (with_family, mine, (left, same, other)), (without, vllms, (open_, _, vllm)) = said[False], said[True]
            self.assertEqual(with_family, {**family, "min_p": 0, "repetition_penalty": 1, "from": "the family qwen3"})
            self.assertEqual(without, {**plain, "min_p": 0, "repetition_penalty": 1, "from": "vllm"})
            self.assertEqual((left, open_), (same, vllm))
            self.assertEqual(other, vllm)  # a request's own values are its own
            self.assertNotEqual(left, other)
            self.assertNotEqual(mine, vllms)


class Deadlines(ServerTest):
    flags = ("--request-timeout", "20", "--max-model-len", "4096", "--max-num-seqs", "2")
    LONG = dict(prompt="x", max_tokens=4000, ignore_eos=True)

    def tearDown(self):
        self.served.wait_until(lambda: self.served.metric("invar:answers") == 0)
        self.served.wait_until(lambda: self.served.metric("invar:kv_blocks_free") == self.served.metric("invar:kv_blocks"))

    def test_a_whole_answer(self):
        begin = time.monotonic()
        self.refused(504, "time", body=self.LONG, headers={"X-Request-Timeout": "0.1"})
        self.assertLess(time.monotonic() - begin, 5)
        status, _, _ = self.served.ask("POST", COMPLETIONS, dict(prompt="x", max_tokens=2), {"X-Request-Timeout": "15"})
        self.assertEqual(status, 200)

    def test_a_stream(self):
        said, deadline = [], 0.05
        while len(said) < 2:  # a deadline in the middle of the answer, however slow the machine is
            deadline *= 2
            said = events(self.served.stream(COMPLETIONS, {"X-Request-Timeout": str(deadline)}, **self.LONG))
            self.assertEqual(said[-1]["error"]["code"], "deadline_exceeded")
        data = self.served.stream("/v1/responses", {"X-Request-Timeout": "0.1"}, input="x", max_output_tokens=4000,
                                  ignore_eos=True).decode()
        self.assertIn("event: error\n", data.split("\n\n")[-3] + "\n")
        self.assertIn("event: response.failed\n", data.split("\n\n")[-2] + "\n")

    def test_one_that_waits(self):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            running = [pool.submit(self.served.ask, "POST", COMPLETIONS, self.LONG, {"X-Request-Timeout": "0.4"}) for _ in range(2)]
            self.served.wait_until(lambda: self.served.metric("vllm:num_requests_running") == 2)
            self.refused(504, "time", body=self.LONG, headers={"X-Request-Timeout": "0.1"})
            self.assertEqual([r.result()[0] for r in running], [504, 504])

    def test_what_is_no_time(self):
        for text in ("", "x", "-1", "0", "nan", "inf", "1e99", "5s", "0x5"):
            self.refused(400, "X-Request-Timeout", body=self.LONG, headers={"X-Request-Timeout": text})


class Apart(ServerTest):
    """What crosses to the engine's process and what several engines answer is what one engine here answers."""
    KINDS = (("--engine-process",), ("--data-parallel-size", "2"), ("--engine-process", "--data-parallel-size", "2"))

    def answers(self, served):
        texts = served.post("/v1/embeddings", input=["one", [5, 6, 7], "and a longer text than these"])
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            many = list(pool.map(lambda i: served.post(COMPLETIONS, prompt=f"text {i % 5}", n=2, max_tokens=20, seed=i, logprobs=2,
                                                       logits_hash=True)["choices"], range(12)))
        return json.dumps([texts["data"], many])

    def test_answers_are_equal(self):
        here = self.answers(self.served)
        for flags in self.KINDS:
            with self.subTest(flags=flags):
                served = Served(INVAR, *flags)
                self.assertEqual(self.answers(served), here)
                status, _, answer = served.ask("POST", "/v1/embeddings", {"input": [7] * 600})
                self.assertEqual(status, 400, answer)
                self.assertIn("tokens", answer["error"]["message"])
                self.assertEqual(served.metric("invar:kv_blocks"),
                                 self.served.metric("invar:kv_blocks") * (2 if "--data-parallel-size" in flags else 1))
                self.assertEqual(served.stop(), 0)

    def test_both_replicas_compute(self):
        served = Endless(INVAR, "--data-parallel-size", "2", "--max-num-seqs", "1")
        both = [served.begin(seed=i) for i in range(2)]  # each has room for one
        self.assertEqual(served.metric("vllm:num_requests_running"), 2)
        [connection.close() for connection in both]
        self.assertEqual(served.stop(), 0)


class Encrypted(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="invar-server-")
        cls.certificate, cls.key = (str(pathlib.Path(cls.directory.name, name)) for name in ("certificate.pem", "key.pem"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                        "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", cls.key, "-out",
                        cls.certificate], check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def test_a_client_of_tls(self):
        served = Served(INVAR, "--ssl-certfile", self.certificate, "--ssl-keyfile", self.key, "--header-timeout", "1",
                        "--body-timeout", "1")
        context = ssl.create_default_context(cafile=self.certificate)
        connection = http.client.HTTPSConnection("127.0.0.1", served.port, context=context, timeout=30)
        body = dict(prompt="x" * 30000, max_tokens=3)
        for _ in range(2):  # on one connection; the second is larger than a record of TLS
            connection.request("POST", "/tokenize", json.dumps(body))
            self.assertGreater(json.loads(connection.getresponse().read())["count"], 100)
        connection.request("POST", COMPLETIONS, json.dumps(dict(prompt="x", max_tokens=100, seed=1, stream=True, ignore_eos=True)))
        self.assertEqual(len(events(connection.getresponse().read())[-1]["choices"]), 1)
        connection.close()
        with self.assertRaises(ssl.SSLCertVerificationError):
            http.client.HTTPSConnection("127.0.0.1", served.port, context=ssl.create_default_context(), timeout=30).request("GET", "/health")
        for wrong in (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01", b"\x16\x03\x01" + b"\xff" * 1000, b""):
            self.assertNotIn(b"HTTP/1.1 200", read_all(served.raw(wrong)))  # ended, also when it says no more
        # A client that goes in mid-stream frees its blocks; one that says it sends no more gets a word of goodbye.
        raw = context.wrap_socket(served.raw(), server_hostname="127.0.0.1")
        asked = json.dumps(dict(prompt="x", max_tokens=480, stream=True, ignore_eos=True))
        raw.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(asked)}\r\n\r\n{asked}".encode())
        raw.recv(100)
        raw.close()
        with context.wrap_socket(served.raw(), server_hostname="127.0.0.1") as raw:
            raw.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            self.assertTrue(read_all(raw).startswith(b"HTTP/1.1 200"))  # a cut connection would raise here
        with context.wrap_socket(served.raw(), server_hostname="127.0.0.1") as raw:  # waits after 100 Continue
            raw.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n")
            self.assertIn(b"HTTP/1.1 408 ", read_all(raw))
        health = lambda: http.client.HTTPSConnection("127.0.0.1", served.port, context=context, timeout=30)
        def metric(name):
            connection = health()
            connection.request("GET", "/metrics")
            return float(re.search(rf"^{name}{{[^}}]*}} (\S+)$", connection.getresponse().read().decode(), re.M)[1])
        served.wait_until(lambda: metric("vllm:num_requests_running") == 0)
        self.assertEqual(metric("invar:kv_blocks_free"), metric("invar:kv_blocks"))
        self.assertEqual(served.stop(), 0)

    def test_files_that_are_none(self):
        for flags, text in ((["--ssl-certfile", self.key, "--ssl-keyfile", self.key], "certificates"),
                            (["--ssl-certfile", self.certificate, "--ssl-keyfile", "/nowhere"], "/nowhere"),
                            (["--ssl-certfile", self.certificate], "ssl-keyfile")):
            done = subprocess.run([INVAR, "serve", *made(), *FAST, "--port", "0", *flags], capture_output=True, timeout=60)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(text, done.stderr.decode())


class Ends(unittest.TestCase):
    def test_a_signal_lets_answers_finish(self):
        served = Served(INVAR)
        idle = served.raw()
        replies = []
        for i in range(4):
            connection = served.connect()
            body = dict(prompt="x", max_tokens=300, seed=i, ignore_eos=True, stream=True)
            connection.request("POST", COMPLETIONS, json.dumps(body))
            replies.append(connection.getresponse())
        begun = [reply.read(100) for reply in replies]
        served.process.send_signal(signal.SIGTERM)
        for data, reply in zip(begun, replies):
            self.assertEqual(sum(e["choices"][0]["text"] != "" for e in events(data + reply.read())) > 100, True)
        self.assertEqual(served.process.wait(10), 0)
        self.assertEqual(read_all(idle), b"")
        served.stop()

    def test_a_second_signal_ends_it_at_once(self):
        served = Served(INVAR)
        body = json.dumps(dict(prompt="x", max_tokens=500, ignore_eos=True, n=100))
        connection = served.raw(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        served.wait_until(lambda: served.metric("vllm:num_requests_running") > 0)
        served.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        self.assertIsNone(served.process.poll())  # the first lets answers finish
        begin = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        self.assertEqual(served.process.wait(5), -signal.SIGTERM)
        self.assertLess(time.monotonic() - begin, 5)
        connection.close()
        served.stop()

    def test_a_key_for_a_request_repeats_its_bytes(self):
        with tempfile.TemporaryDirectory(prefix="invar-server-") as directory:
            flags = ("--journal", str(pathlib.Path(directory) / "journal"))
            body, key = dict(prompt="x", max_tokens=20), {"Idempotency-Key": "k"}
            served = Served(INVAR, *flags)
            first = served.stream(COMPLETIONS, key, **body)
            self.assertEqual(served.stream(COMPLETIONS, key, **body), first)
            self.assertNotEqual(served.stream(COMPLETIONS, **body), first)
            status, _, answer = served.ask("POST", COMPLETIONS, {**body, "seed": 1}, key)
            self.assertEqual(status, 422, answer)
            self.assertEqual(served.stop(), 0)
            served = Served(INVAR, *flags)
            self.assertEqual(served.stream(COMPLETIONS, key, **body), first)
            # An answer that is known goes on where the client says.
            path = f"{COMPLETIONS}/{events(first)[0]['id']}?stream=true"
            self.assertEqual(served.ask("GET", path)[2], first)
            rest = served.ask("GET", path + "&starting_after=2")[2]
            self.assertEqual(rest, b"\n\n".join(first.split(b"\n\n")[3:]))
            whole = served.ask("GET", path.split("?")[0])[2]
            self.assertEqual(whole["choices"][0]["text"], "".join(e["choices"][0]["text"] for e in events(first)))
            self.assertEqual(served.ask("GET", COMPLETIONS + "/cmpl-0")[0], 404)
            self.assertEqual(served.stop(), 0)

    def test_requests_of_one_key_at_the_same_time_have_one_answer(self):
        with tempfile.TemporaryDirectory(prefix="invar-server-") as directory:
            served = Served(INVAR, "--journal", str(pathlib.Path(directory) / "journal"))
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                for i in range(12):
                    key = {"Idempotency-Key": f"k{i}"}
                    body = dict(prompt="x", max_tokens=8)  # no seed: each alone would draw another
                    asked = [pool.submit(served.ask, "POST", COMPLETIONS, body, key) for _ in range(8)]
                    answers = [(r.result()[0], r.result()[2]) for r in asked]
                    self.assertEqual([status for status, _ in answers], [200] * 8, answers)
                    self.assertEqual(len({json.dumps(answer) for _, answer in answers}), 1)
            self.assertEqual(served.stop(), 0)

    def test_a_response_goes_on_from_another(self):
        path = "/v1/responses"
        with tempfile.TemporaryDirectory(prefix="invar-server-") as directory:
            flags = ("--journal", str(pathlib.Path(directory) / "journal"))
            served = Served(INVAR, *flags)
            first = served.post(path, input="hi", max_output_tokens=6, seed=1, instructions="Be brief.")
            said = json.loads(served.stream(path, input="more", max_output_tokens=6, seed=2, previous_response_id=first["id"])
                              .decode().split("\n\n")[-2].split("\ndata: ")[1])["response"]
            self.assertEqual(said["previous_response_id"], first["id"])
            items = [{"role": "user", "content": "hi"}, *first["output"], {"role": "user", "content": "more"}, *said["output"]]
            asked = dict(max_output_tokens=6, seed=3)
            third = served.post(path, **asked, input="and?", previous_response_id=said["id"])
            # As if everything had been sent; instructions are not carried over.
            whole = served.post(path, **asked, input=[*items, {"role": "user", "content": "and?"}])
            text = lambda response: response["output"][0]["content"][0]["text"]
            counts = lambda response: {**response["usage"], "input_tokens_details": None}  # the second finds the first's blocks
            self.assertEqual((text(third), counts(third)), (text(whole), counts(whole)))
            self.assertNotEqual(counts(third), counts(served.post(path, **asked, input="and?")))
            # Calls of tools go on too.
            tool = {"type": "function", "name": "weather", "parameters": TOOL["function"]["parameters"]}
            call = served.post(path, input="hi", tools=[tool], tool_choice="required", max_output_tokens=100, seed=4)
            result = {"type": "function_call_output", "call_id": call["output"][0]["call_id"], "output": "rain"}
            short = served.post(path, **asked, input=[result], previous_response_id=call["id"])
            long = served.post(path, **asked, input=[{"role": "user", "content": "hi"}, *call["output"], result])
            self.assertEqual((text(short), counts(short)), (text(long), counts(long)))
            # What is not to be stored is nothing to go on from.
            hidden = served.post(path, **asked, input="hi", store=False)
            self.assertEqual(text(hidden), text(served.post(path, **asked, input="hi", store=True)))
            for previous, code in (("resp_0", "previous_response_not_found"), (hidden["id"], "previous_response_not_found"), (7, "invalid_type")):
                status, _, answer = served.ask("POST", path, dict(input="x", previous_response_id=previous))
                self.assertEqual((status, answer["error"]["code"]), (400, code), answer)
            kept = served.ask("GET", f"{path}/{said['id']}?stream=true")[2]
            self.assertEqual(served.stop(), 0)
            served = Served(INVAR, *flags)  # what was said is in the journal
            again = served.post(path, **asked, input="and?", previous_response_id=said["id"])
            self.assertEqual((text(again), counts(again)), (text(third), counts(third)))
            self.assertEqual(served.ask("GET", f"{path}/{said['id']}?stream=true")[2], kept)
            # Of an answer whose client has left there is no end to go on from.
            long = json.dumps(dict(input="x", max_output_tokens=400, ignore_eos=True, stream=True))
            connection = served.raw(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(long)}\r\n\r\n{long}".encode())
            data = b""
            while b"output_text.delta" not in data:
                data += connection.recv(1000)
            left = dict(input="x", previous_response_id=re.search(rb'"id": "(resp_\w+)"', data)[1].decode())
            self.assertEqual(served.ask("POST", path, left)[0], 409)
            connection.close()
            served.wait_until(lambda: served.metric("invar:answers") == 0)
            self.assertEqual(served.ask("POST", path, left)[0], 400)
            # What it was asked, and its end: what goes on from it still has what it said.
            one = f"{path}/{first['id']}"
            self.assertEqual(served.ask("GET", f"{one}/input_items")[2],
                             {"object": "list", "data": [{"role": "user", "content": "hi"}], "has_more": False})
            for missing in ("resp_0", hidden["id"]):
                self.assertEqual(served.ask("GET", f"{path}/{missing}/input_items")[0], 404)
            self.assertEqual(served.ask("DELETE", one)[2], {"id": first["id"], "object": "response", "deleted": True})
            for method, at in (("DELETE", one), ("GET", one), ("GET", f"{one}/input_items")):
                self.assertEqual(served.ask(method, at)[0], 404, at)
            status, _, answer = served.ask("POST", path, dict(input="x", previous_response_id=first["id"]))
            self.assertEqual((status, answer["error"]["code"]), (400, "previous_response_not_found"))
            again = served.post(path, **asked, input="and?", previous_response_id=said["id"])
            self.assertEqual((text(again), counts(again)), (text(third), counts(third)))
            self.assertEqual(served.stop(), 0)
        alone = Served(INVAR)
        status, _, answer = alone.ask("POST", path, dict(input="x", previous_response_id="resp_0"))
        self.assertEqual((status, answer["error"]["param"]), (400, "previous_response_id"))
        self.assertIn("--journal", answer["error"]["message"])
        alone.stop()

    def test_another_context_does_not_change_the_length_of_an_answer_of_the_journal(self):
        with tempfile.TemporaryDirectory(prefix="invar-server-") as directory:
            flags = ("--journal", str(pathlib.Path(directory) / "journal"), "--max-model-len")
            served = Served(INVAR, *flags, "200")
            first = served.post(CHAT, messages=HI, seed=1, ignore_eos=True)
            self.assertEqual(first["usage"]["total_tokens"], 200)
            self.assertEqual(served.stop(), 0)
            served = Served(INVAR, *flags, "400")
            path = f"{CHAT}/{first['id']}"
            self.assertEqual(served.ask("GET", path)[2], first)
            longer = served.post(CHAT, messages=HI, seed=1, ignore_eos=True)
            self.assertEqual(longer["usage"]["total_tokens"], 400)
            self.assertEqual(served.stop(), 0)
            served = Served(INVAR, *flags, "100")  # and where it does not fit it is refused, not cut
            status, _, answer = served.ask("GET", path)
            self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"), answer)
            self.assertEqual(served.stop(), 0)

    def test_a_cache_that_holds_no_context_is_refused(self):
        done = subprocess.run([INVAR, "serve", *made(), "--port", "0", "--threads", "1", "--kv-cache-memory", "0.0005"], capture_output=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertIn(b"--max-model-len 256 or auto", done.stderr)
        for flags in ((), ("--data-parallel-size", "2"), ("--engine-process",)):
            served = Served(INVAR, "--kv-cache-memory", "0.0005", "--max-model-len", "auto", *flags)
            self.assertEqual(served.ask("GET", "/v1/models")[2]["data"][0]["max_model_len"], 256)
            if "--engine-process" in flags:  # one that comes back keeps the context, whatever it finds then
                os.kill(children(served.process.pid)[0], signal.SIGKILL)
                self.assertEqual(served.post(CHAT, messages=HI, ignore_eos=True)["usage"]["total_tokens"], 256)
            self.assertEqual(served.stop(), 0)

    def test_without_a_model_it_is_the_bundled_one(self):
        with tempfile.TemporaryDirectory(prefix="invar-server-") as home:
            model = pathlib.Path(home, "models", "story")
            subprocess.run([INVAR, "make-model", model, "--seed", "7"], check=True, capture_output=True)
            named = Served(INVAR, command=[INVAR, "serve", model, "--host", "127.0.0.1", "--port", "0", *FAST])
            bundled = Served(INVAR, command=["env", f"INVAR_HOME={home}", INVAR, "serve", "--host", "127.0.0.1", "--port", "0",
                                             *FAST])
            self.assertEqual(bundled.ask("GET", "/version")[2], named.ask("GET", "/version")[2])
            self.assertEqual(bundled.ask("GET", "/v1/models")[2]["data"][0]["id"], "story")
            self.assertEqual((named.stop(), bundled.stop()), (0, 0))

    def test_flags_of_llama_server_and_vllm_mean_what_they_mean_there(self):
        served = Served(INVAR, command=[INVAR, "serve", *made(), "--host", "127.0.0.1", "--port", "0", "-a", "m", "-c", "256", "-t", "1", "-np", "4", "-ngl", "0",
                                        "--temp", "0.5", "--top-k=7", "--override-generation-config", '{"min_p": 0.1}', "--jinja", "-fa", "on", "--enforce-eager",
                                        "--dtype", "auto", "--trust-remote-code", "--enable-auto-tool-choice", "--kv-cache-memory", "0.1"])
        _, _, props = served.ask("GET", "/props")
        params = props["default_generation_settings"]["params"]
        self.assertEqual((props["default_generation_settings"]["n_ctx"], params["temperature"], params["top_k"], params["min_p"]), (256, 0.5, 7, 0.1))
        self.assertEqual((props["total_slots"], len(served.ask("GET", "/slots")[2])), (4, 4), "-np")
        body = {"prompt": "x", "max_tokens": 6, "seed": 1}
        self.assertEqual(served.post("/v1/completions", **body)["choices"], served.post("/v1/completions", **body, temperature=0.5, top_k=7, min_p=0.1)["choices"])
        self.assertIn("--enforce-eager changes nothing", served.said())
        # A port that is taken is found out before a model is loaded, which takes long.
        done = subprocess.run([INVAR, "serve", "llama-3.1-8b", "--load-format", "dummy:1", "--host", "127.0.0.1", "--port", str(served.port)],
                              capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("another program does", done.stderr.decode())
        self.assertIn("loading", served.said())
        self.assertEqual(served.stop(), 0)

    def test_flags_that_are_refused_say_why(self):
        for flags, text in ((["--dtype", "float16"], "rounded"), (["--cuda-graph-sizes", "1"], "compiled"), (["-ctk", "q8_0"], "--kv-cache-dtype"), (["-ngl", "12"], "as a whole"), (["--quantization", "awq"], "--weights fp8-row"),
                            (["--api-key", ""], "key"), (["--admin-key", ""], "key"), (["--host", "nowhere"], "IP address"), (["--port", "99999"], "port")):
            done = subprocess.run([INVAR, "serve", *made(), *FAST, *flags], capture_output=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (2, b""), done.stderr)
            self.assertIn(text, done.stderr.decode())


if __name__ == "__main__":
    INVAR = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
