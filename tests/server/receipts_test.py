#!/usr/bin/env python3
"""Receipts as clients get them and `invar verify` reads them. Usage: receipts_test.py INVAR [unittest arguments]"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from served import Served, events

INVAR = None  # the program; set by main
BODY = dict(prompt="An answer of some length.", max_tokens=80, temperature=0.8, seed=3, ignore_eos=True)


class ReceiptsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="invar-receipts-")
        cls.root = pathlib.Path(cls.folder.name)
        cls.key = str(cls.root / "key.pem")
        cls.server = Served(INVAR, "--receipt-key", cls.key, "--journal", str(cls.root / "journal"), "--api-key", "one", "two")

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

    def verify(self, receipt, *flags):
        file = self.root / "receipt.json"
        file.write_text(json.dumps(receipt))
        done = subprocess.run([INVAR, "verify", str(file), "--threads", "1", *flags], capture_output=True, text=True, timeout=60,
                              env=dict(os.environ, INVAR_HOME="/nowhere"))
        return done.returncode, done.stdout + done.stderr

    def test_an_answers_receipt_is_confirmed(self):
        answer = self.answer(**BODY, receipt=True)
        receipt = answer["choices"][0]["receipt"]
        self.assertEqual((receipt["id"], receipt["request"]["sampling"]["seed"]), (answer["id"], 3))
        self.assertEqual((len(receipt["answer"]["tokens"]), len(receipt["chain"])), (80, 2))
        public = subprocess.run([INVAR, "receipt-key", self.key], capture_output=True, text=True, check=True).stdout.strip()
        self.assertEqual(receipt["public_key"], public)
        status, text = self.verify(answer, "--public-key", public)
        self.assertEqual((status, text.splitlines()[0]), (0, "confirmed: 80 tokens and their logits"))
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
