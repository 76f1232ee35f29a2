#!/usr/bin/env python3
"""Receipts as clients get them and `invar verify` reads them. Usage: receipts_test.py INVAR [unittest arguments]"""
import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from served import Served, events, fast_and

INVAR = None  # the program; set by main
ROOT = pathlib.Path(__file__).resolve().parents[2]
VERIFIER = ROOT / "examples" / "verify_receipt.py"
BODY = dict(prompt="An answer of some length.", max_tokens=80, temperature=0.8, seed=3, ignore_eos=True)


class ReceiptsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="invar-receipts-")
        cls.root = pathlib.Path(cls.folder.name)
        cls.key = str(cls.root / "key.pem")
        cls.model = cls.root / "model"  # of few words, so that what an answer says looks like words
        subprocess.run([INVAR, "make-model", cls.model], check=True, capture_output=True)
        flags = fast_and(["--receipt-key", cls.key, "--journal", str(cls.root / "journal"), "--api-key", "one", "two"])
        cls.server = Served(INVAR, command=[INVAR, "serve", cls.model, "--host", "127.0.0.1", "--port", "0",
                                            "--served-model-name", "m", *flags])

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    def ask(self, method, path, body=None, key="one"):
        return self.server.ask(method, path, body, {"Authorization": f"Bearer {key}"})

    def answer(self, path="/v1/completions", **body):
        status, _, answer = self.ask("POST", path, body)
        self.assertEqual(status, 200, answer)
        return answer

    def run_on(self, answer, *command, request=None):
        """Status and words of a verifier."""
        file, asked = self.root / "receipt.json", self.root / "request.json"
        file.write_text(json.dumps(answer))
        asked.write_text(json.dumps(request))
        done = subprocess.run([*map(str, command), *(["--request", str(asked)] if request else [])], capture_output=True, text=True,
                              timeout=60, env=dict(os.environ, INVAR_HOME="/nowhere"))
        return done.returncode, done.stdout + done.stderr

    def verify(self, answer, *flags, request=None):
        return self.run_on(answer, INVAR, "verify", self.root / "receipt.json", self.model, "--threads", "1", *flags, request=request)

    def verify_without_the_binary(self, answer, request=None):
        return self.run_on(answer, sys.executable, VERIFIER, self.root / "receipt.json", self.model, request=request)

    def test_an_answers_receipt_is_confirmed(self):
        answer = self.answer(**BODY, receipt=True)
        receipt = answer["choices"][0]["receipt"]
        self.assertEqual((receipt["id"], receipt["request"]["sampling"]["seed"]), (answer["id"], "3"))
        self.assertEqual((len(receipt["answer"]["tokens"]), len(receipt["chain"])), (80, 2))
        public = subprocess.run([INVAR, "receipt-key", self.key], capture_output=True, text=True, check=True).stdout.strip()
        self.assertEqual(receipt["public_key"], public)
        status, text = self.verify(answer, "--public-key", public)
        self.assertEqual((status, text.splitlines()[0]), (0, "confirmed: 80 tokens and their logits"))
        self.assertIn('prompt: "An answer of some length."', text)
        self.assertIn('"temperature": "0.8"', text)
        self.assertIn("text: " + json.dumps(answer["choices"][0]["text"], ensure_ascii=False), text)
        status, text = self.verify(answer, "--time-generation", "--json")
        report = json.loads(text)
        self.assertEqual((status, report["confirmed"], report["tokens"]), (0, True, 80))
        self.assertGreater(report["generation_seconds"], 0)
        as_json = subprocess.run([INVAR, "receipt-key", self.key, "--json"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(json.loads(as_json), {"public_key": public})
        self.assertEqual(self.verify(receipt, "--prefix", "10")[0], 0)
        status, text = self.verify(receipt, "--public-key", "0" * 64)
        self.assertEqual(status, 1)
        self.assertIn("the key differs", text)

    def test_a_recorded_answer_is_confirmed_for_ever(self):
        """Its maker and `invar verify` share code, which may change for both at once."""
        recorded = ROOT / "tests/data/receipts"
        answer, request = recorded / "answer.json", recorded / "request.json"
        for verifier in ([INVAR, "verify"], [sys.executable, str(VERIFIER)]):
            done = subprocess.run([*verifier, str(answer), str(ROOT / "models/story"), "--request", str(request)],
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_verifier_in_python_is_as_short_as_it_says(self):
        self.assertLessEqual(len(VERIFIER.read_text().splitlines()), 150)
        for empty in ({"data": []}, {"choices": []}):  # nothing was signed, so nothing is confirmed
            self.assertNotEqual(self.verify_without_the_binary(empty)[0], 0)
            self.assertNotEqual(self.verify(empty)[0], 0)

    def test_a_change_is_found_and_its_token_named(self):
        receipt = self.answer(**BODY, receipt=True)["choices"][0]["receipt"]
        receipt["answer"]["tokens"][7] ^= 1
        status, text = self.verify(receipt)
        self.assertEqual(status, 1)
        self.assertIn("the signature differs", text)
        status, text = self.verify(receipt, "--no-signature")
        self.assertEqual(status, 1)
        self.assertIn("token 8 differs", text)
        status, text = self.verify(receipt, "--no-signature", "--arith", "hopper")
        self.assertIn("the arithmetic differs", text)
        self.assertEqual(self.verify({"some": "thing"})[0], 1)

    def test_streams_chats_and_several_choices_have_them(self):
        chat = dict(messages=[{"role": "user", "content": "Hello."}], max_tokens=9, seed=8)
        whole = self.answer("/v1/chat/completions", **chat, receipt=True, n=2, temperature=1)
        receipts = [choice["receipt"] for choice in whole["choices"]]
        self.assertEqual([receipt["choice"] for receipt in receipts], [0, 1])
        self.assertEqual(self.verify(receipts[1])[0], 0)
        status, _, data = self.ask("POST", "/v1/chat/completions", {**chat, "receipt": True, "stream": True, "stop": ["\0\0"]})
        last = events(data)[-1]["choices"][0]
        self.assertEqual(self.verify(last["receipt"])[0], 0)
        held = self.answer(prompt="Word:", max_tokens=20, seed=1, receipt=True, guided_regex="[a-c]{3,9}")
        self.assertEqual(self.verify(held)[0], 0)
        stops = self.answer(prompt="Again", max_tokens=60, seed=2, temperature=1, ignore_eos=True)["choices"][0]["text"]
        cut = self.answer(prompt="Again", max_tokens=60, seed=2, temperature=1, ignore_eos=True, stop=stops[12:16], receipt=True)
        self.assertEqual(cut["choices"][0]["finish_reason"], "stop")
        status, text = self.verify(cut)
        self.assertEqual(status, 0, text)

    def test_any_protocol_has_the_same_answer_streamed_or_not(self):
        words, more = "Hello there.", dict(temperature=0.9, top_p=1)
        message = {"role": "user", "content": words}
        ways = {"/v1/chat/completions": dict(messages=[{"role": "system", "content": "Be brief."}, message], max_tokens=30),
                "/v1/messages": dict(system="Be brief.", messages=[message], max_tokens=30),
                "/v1/responses": dict(instructions="Be brief.", input=words, max_output_tokens=30)}

        def receipt_of(path, seed, stream):
            status, _, data = self.ask("POST", path, {**ways[path], **more, "seed": seed, "stream": stream})
            self.assertEqual(status, 200, data)
            told = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: {")] if stream else [data]
            parts = [part for event in told for part in (event, event.get("message"), event.get("response")) if part]
            name = next(part["id"] for part in parts if "id" in part)
            status, _, receipts = self.ask("GET", f"/v1/receipts/{name}")
            self.assertEqual(status, 200, (receipts, name, path, stream))
            receipt = receipts["data"][0]
            return {member: receipt[member] for member in ("request", "answer", "weights")}

        expected = receipt_of("/v1/chat/completions", 3, False)
        self.assertIn("answer", expected)
        for path in ways:
            for stream in (False, True):
                self.assertEqual(receipt_of(path, 3, stream), expected, (path, stream))
        self.assertNotEqual(receipt_of("/v1/messages", 4, False)["answer"], expected["answer"])  # the control

    def test_both_verifiers_confirm_what_servers_show(self):
        chat = dict(messages=[{"role": "user", "content": "Hello."}], max_tokens=12, seed=8)
        shown = [dict(BODY, n=2), dict(BODY, max_tokens=64), dict(BODY, max_tokens=128), dict(BODY, echo=True, logprobs=3),
                 dict(BODY, temperature=0.6, top_p=0.9, logprobs=3, prompt_logprobs=1, logprobs_mode="processed_logprobs"), dict(BODY, prompt=["One.", "Two."], n=2, max_tokens=5),
                 dict(BODY, top_p=0.8999999761581421, top_k=-1, logit_bias={"5": 0.1}, bad_words=["a"], seed=2**64 - 1),
                 dict(BODY, temperature=0, stop_token_ids=[7], return_token_ids=True, prompt_logprobs=2, logits_hash=True),
                 dict(prompt=["One.", "One."], n=2, max_tokens=5), dict(prompt="No length is named.", receipt=True), dict(BODY, prompt=[5, 6, 7], stop=["e", "th"]),
                 dict(BODY, prompt="Word:", guided_regex="[a-c]{3,9}", truncate_prompt_tokens=2, ignore_eos=False)]
        for request in shown:
            with self.subTest(request=request):
                request["receipt"] = True
                answer = self.answer(**request)
                for found in (self.verify(answer), self.verify(answer, request=request)):
                    self.assertEqual(found[0], 0, found)
                cut = request.get("truncate_prompt_tokens")
                found = self.verify_without_the_binary(answer, None if cut else request)
                self.assertEqual(found[0], 0, found)
        tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {
            "word": {"enum": ["yes", "no"]}}, "required": ["word"]}}}
        for request in (chat, dict(chat, n=2, temperature=1, logprobs=True, top_logprobs=2),
                        dict(chat, tools=[tool], tool_choice="required", max_tokens=80),
                        dict(chat, tools=[tool], tool_choice={"type": "function", "function": {"name": "look"}}, max_tokens=80)):
            with self.subTest(request=request):
                request["receipt"] = True
                answer = self.answer("/v1/chat/completions", **request)
                for found in (self.verify(answer), self.verify(answer, request=request), self.verify_without_the_binary(answer)):
                    self.assertEqual(found[0], 0, found)
        # Another word in the last call: it is named, though nobody says that tools were asked for.
        call = answer["choices"][0]["message"]["tool_calls"][0]["function"]
        call["arguments"] = json.dumps({"word": "maybe"})
        status, said = self.verify(answer)
        self.assertEqual(status, 1)
        self.assertIn("choices[0].message.tool_calls[0].function.arguments: expected", said)
        # So is another count, in an answer with calls and in one that could have shown its prompt.
        for answer in (self.answer("/v1/chat/completions", **request), self.answer("/v1/completions", **dict(BODY, receipt=True))):
            answer["usage"]["completion_tokens"] += 1
            status, said = self.verify(answer)
            self.assertEqual(status, 1)
            self.assertIn("usage.completion_tokens: expected", said)

    def test_every_member_of_a_body_is_bound(self):
        request = dict(BODY, prompt="Two choices.", n=2, max_tokens=70, logprobs=1, prompt_logprobs=1, receipt=True)
        answer = self.answer(**request)
        self.assertEqual(self.verify(answer, request=request)[0], 0)
        unseen = []  # by the verifier that has no logits

        def expect_found(changed, path):
            status, text = self.verify(changed, request=request)
            self.assertEqual(status, 1, path)
            if self.verify_without_the_binary(changed, request)[0] == 0:
                unseen.append(path)

        def other(leaf):
            return not leaf if isinstance(leaf, bool) else leaf + 1 if isinstance(leaf, (int, float)) else (leaf or "") + "x"

        def change(at, path, depth=0):
            for key in list(at) if isinstance(at, dict) else range(len(at)):
                if key == "cached_tokens":  # of the server's memory: nobody can know it afterwards
                    at[key] += 1
                    self.assertEqual(self.verify(answer, request=request)[0], 0)
                    at[key] -= 1
                    continue
                if path == () and key == "choices" or not isinstance(at[key], (dict, list)):
                    before = at[key]
                    if path == () and key == "choices":
                        at[key] = before[::-1]
                        expect_found(answer, (*path, key, "turned"))
                        at[key] = before[:1]
                        expect_found(answer, (*path, key, "one"))
                    else:
                        at[key] = other(before)
                        expect_found(answer, (*path, key))
                    at[key] = before
                if isinstance(at[key], (dict, list)) and key not in ("receipt", "logprobs", "prompt_logprobs") and depth < 3:
                    change(at[key], (*path, key), depth + 1)

        change(answer, ())
        changed = copy.deepcopy(answer)
        changed["choices"][1]["logprobs"]["token_logprobs"][9] += 0.001
        expect_found(changed, ("logprobs",))
        for name, value in (("logprob", -1.0), ("rank", 1000), ("decoded_token", "x")):
            changed = copy.deepcopy(answer)
            entry = changed["choices"][1]["prompt_logprobs"][2]
            entry[list(entry)[0]][name] = value
            expect_found(changed, ("prompt_logprobs",))
            self.assertEqual(self.verify(changed)[0], 1)  # without the request, too
        changed = copy.deepcopy(answer)
        changed["choices"][0]["receipt"] = changed["choices"][1]["receipt"]
        expect_found(changed, ("a receipt twice",))
        changed = dict(answer, more=1)
        expect_found(changed, ("more",))
        self.assertEqual(self.verify(answer, request=request)[0], 0, "it is as it was")
        # What it says that it does not look at.
        self.assertLessEqual({path[-1] for path in unseen}, {"object", "total_tokens", "logprobs", "prompt_logprobs", "stop_reason", "more", "one"})

    def test_what_a_server_adds_to_a_request_is_named(self):
        asked = dict(BODY, max_tokens=20, receipt=True)
        added = dict(temperature=0.7, seed=4, top_k=5, top_p=0.5, min_p=0.2, repetition_penalty=1.2, presence_penalty=0.5,
                     frequency_penalty=0.1, logit_bias={"7": 2}, max_tokens=21, min_tokens=3, ignore_eos=False, stop=["zzz"],
                     bad_words=["the"], allowed_token_ids=list(range(300)), guided_regex="[a-z ]{40,90}", n=2,
                     prompt="An answer of some length. Praise the maker.", include_stop_str_in_output=True,
                     skip_special_tokens=False, stop_token_ids=[9])
        self.assertEqual(self.verify(self.answer(**asked), request=asked)[0], 0)
        for name, value in added.items():
            with self.subTest(name=name):
                answer = self.answer(**{**asked, name: value})
                self.assertEqual(self.verify(answer)[0], 0)  # it is true, but of another request
                status, text = self.verify(answer, request=asked)
                self.assertEqual(status, 1, text)
                self.assertIn("is not of this request", text)
                without = self.verify_without_the_binary(answer, asked)[0]
                if name not in ("include_stop_str_in_output", "skip_special_tokens", "stop_token_ids"):  # they may be the text's
                    self.assertEqual(without, 1)
        chat = dict(messages=[{"role": "user", "content": "Hello."}], max_tokens=9, receipt=True)
        more = dict(chat, messages=[{"role": "system", "content": "Praise the maker."}, *chat["messages"]])
        status, text = self.verify(self.answer("/v1/chat/completions", **more), request=chat)
        self.assertEqual(status, 1)
        self.assertIn("prompt", text)

    def test_a_signed_lie_is_found_by_the_verifier_that_it_is_a_lie_to(self):
        request = dict(BODY, max_tokens=130, receipt=True)
        for fault in ("chain without the end", "one link more", "a link", "a logits hash"):
            answer = self.answer(**request)
            receipt = answer["choices"][0]["receipt"]
            if fault == "one link more":
                receipt["chain"].append(receipt["chain"][-1])
            elif fault == "a link":
                receipt["chain"][0] = "0" * 64
            elif fault == "a logits hash":
                receipt["answer"]["logits_hashes"][1] = "0" * 64
            else:
                receipt["answer"]["finish_reason"] = "stop"
            status, text = self.verify(receipt, "--no-signature")
            self.assertEqual(status, 1, fault)
            self.assertNotIn("signature", text)

    def test_an_answer_in_the_order_of_a_gpu_is_confirmed_without_naming_it(self):
        server = Served(INVAR, command=[INVAR, "serve", self.model, "--host", "127.0.0.1", "--port", "0", "--arith", "hopper",
                                        *fast_and(["--receipt-key", self.key])])
        answer = server.post("/v1/completions", **dict(BODY, max_tokens=5), receipt=True)
        server.stop()
        status, text = self.verify(answer)
        self.assertEqual(status, 0, text)
        self.assertIn("/hopper/", text)
        self.assertEqual(self.verify(answer, "--arith", "portable")[0], 1)

    def test_only_the_key_that_made_an_answer_gets_its_receipt(self):
        answer = self.answer(**BODY)
        self.assertNotIn("receipt", answer["choices"][0])
        path = f"/v1/receipts/{answer['id']}"
        self.assertEqual(self.ask("GET", path, key="two")[0], 404)
        status, _, body = self.ask("GET", path)
        self.assertEqual(status, 200)
        self.assertEqual(self.verify(body)[0], 0)
        # The same as in the answer itself: a signature is a function of what it signs.
        again = self.ask("GET", path)[2]
        self.assertEqual(again, body)
        self.assertEqual(self.ask("GET", "/v1/receipts/none")[0], 404)

    def test_without_a_key_there_are_none(self):
        server = Served(INVAR)
        status, _, body = server.ask("POST", "/v1/completions", {**BODY, "receipt": True})
        self.assertEqual(status, 400)
        self.assertIn("--receipt-key", body["error"]["message"])
        server.stop()
        server = Served(INVAR, "--receipt-key", self.key, "--arith", "control")
        status, _, body = server.ask("POST", "/v1/completions", {**BODY, "receipt": True})
        self.assertEqual(status, 400)
        self.assertIn("baseline", body["error"]["message"])
        server.stop()


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main()
