#!/usr/bin/env python3
"""Decisions, relevance and vectors: their receipts as `invar verify` reads them, and their lines of the journal.
Usage: numbers_receipts_test.py INVAR [unittest arguments]"""
import contextlib
import copy
import json
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import unittest

from served import Served, fast_and

INVAR = None  # the program; set by main
DECISION = {"input": "A fox ran.", "questions": [{"id": "a", "type": "predicate", "question": "Is it about a fox?"},
                                                 {"type": "choice", "question": "Who ran?", "choices": ["a fox", "a bird"]},
                                                 {"type": "score", "question": "How good is it?", "levels": 3}]}
SCORE = {"text_1": "a fox", "text_2": ["A fox ran.", "It rained."]}
RANK = {"query": "a fox", "documents": ["It rained.", "A fox ran."]}


class Numbers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="invar-numbers-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.model = self.root / "model"
        subprocess.run([INVAR, "make-model", self.model], check=True, capture_output=True)

    def served(self, *flags):
        flags = fast_and(["--receipt-key", str(self.root / "key.pem"), *flags])
        return Served(INVAR, command=[INVAR, "serve", self.model, "--host", "127.0.0.1", "--port", "0", "--served-model-name", "m", *flags])

    def verify(self, answer, *flags, model=None, request=None):
        """Status and words of `invar verify`."""
        file, asked = self.root / "answer.json", self.root / "request.json"
        file.write_text(json.dumps(answer))
        asked.write_text(json.dumps(request))
        done = subprocess.run([INVAR, "verify", file, model or self.model, "--threads", "1", *flags,
                               *(["--request", asked] if request else [])],
                              capture_output=True, text=True, timeout=60, env=dict(os.environ, INVAR_HOME="/nowhere"))
        return done.returncode, done.stdout + done.stderr

    def expect_found(self, answer, words, *flags, **more):
        status, text = self.verify(answer, *flags, **more)
        self.assertEqual(status, 1, text)
        self.assertIn(words, text)


def changed(answer, *path, by=lambda old: old):
    """A copy whose value at the path is another."""
    answer = copy.deepcopy(answer)
    at = answer
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = by(at[path[-1]])
    return answer


class Receipts(Numbers):
    def setUp(self):
        super().setUp()
        self.server = self.served("--journal", str(self.root / "journal"), "--api-key", "one", "two")
        self.addCleanup(lambda: self.server.stop())

    def ask(self, method, path, body=None, key="one"):
        return self.server.ask(method, path, body, {"Authorization": f"Bearer {key}"})

    def answer(self, path, **body):
        status, _, answer = self.ask("POST", path, {**body, "receipt": True})
        self.assertEqual(status, 200, answer)
        return answer

    def test_a_decision_is_confirmed_and_a_changed_one_is_not(self):
        answer = self.answer("/v1/decisions", **DECISION)
        receipt = answer["receipt"]
        self.assertEqual((receipt["id"], receipt["request"]["endpoint"]), (answer["id"], "/v1/decisions"))
        public = subprocess.run([INVAR, "receipt-key", self.root / "key.pem"], capture_output=True, text=True, check=True).stdout.strip()
        status, text = self.verify(answer, "--public-key", public, request=DECISION)
        self.assertEqual((status, text.splitlines()[0]), (0, f"confirmed: {len(receipt['answer']['numbers'])} numbers of /v1/decisions"), text)
        self.assertIn("Is it about a fox?", text)
        self.assertEqual(self.verify(receipt)[0], 0, "the receipt alone")
        nearly = lambda x: x + 1e-9
        probability = ("answers", 0, "probabilities", 0, "probability")
        self.expect_found(changed(answer, *probability, by=nearly), "answers[0].probabilities[0].probability")
        self.expect_found(changed(answer, "answers", 1, "answer", by=lambda old: "a bird" if old == "a fox" else "a fox"), "answers[1].answer")
        self.expect_found(changed(answer, "answers", 2, "expected", by=nearly), "answers[2].expected")
        self.expect_found(changed(answer, "system_fingerprint", by=str.upper), "system_fingerprint")
        self.expect_found({**answer, "more": 1}, "more")
        self.expect_found(answer, "not of this request", request={**DECISION, "input": "A bird ran."})
        self.expect_found(answer, "key differs", "--public-key", "0" * 64)

    def test_every_member_of_a_receipt_is_bound(self):
        receipt = self.answer("/v1/decisions", **DECISION)["receipt"]
        other = lambda old: old + 1 if isinstance(old, int) else old.replace(old[0], "1" if old[0] != "1" else "2", 1)
        number = lambda old: str(float(old) - 0.5)
        paths = [(name,) for name in receipt if name not in ("request", "answer", "invar_receipt")]
        for path in paths:
            self.expect_found(changed(receipt, *path, by=other), "differs")
        # Signed by whoever has the key: the model says something else.
        for path, by, words in ((("answer", "numbers", 0), number, "number 1 differs"),
                                (("request", "body"), lambda old: old.replace("a bird", "a bear"), "differ"),
                                (("weights",), other, "the weights differ"), (("tokenizer",), other, "the tokenizer differs"),
                                (("arithmetic",), lambda old: old.replace("portable", "other"), "the arithmetic differs")):
            self.expect_found(changed(receipt, *path, by=by), words, "--no-signature")
        fewer = changed(receipt, "answer", "numbers", by=lambda old: old[1:])
        self.expect_found(fewer, "the numbers differ", "--no-signature")
        for none in (0, -1):
            cut = changed(receipt, "request", "body", by=lambda old: '{"input":"a","truncate_prompt_tokens":-1}')
            self.expect_found(changed(cut, "context", by=lambda old: none), "expected a context of 1 to", "--no-signature")
        for path in (("answer", "numbers"), ("request", "body"), ("public_key",)):
            self.expect_found(changed(receipt, *path, by=lambda old: 3), "a receipt: expected")

    def test_relevance_and_vectors_have_them_too(self):
        nearly = lambda x: x + 1e-9
        for path, body, at in (("/v1/score", SCORE, ("data", 1, "score")), ("/v1/rerank", RANK, ("results", 0, "relevance_score")),
                               ("/v1/embeddings", {"input": ["a fox", [5, 6, 7]]}, ("data", 1, "embedding", 0)),
                               ("/pooling", {"input": "a fox"}, ("data", 0, "data", 3))):
            answer = self.answer(path, **body)
            status, text = self.verify(answer, request=body)
            self.assertEqual(status, 0, text)
            self.assertIn(f"numbers of {path}", text)
            self.expect_found(changed(answer, *at, by=nearly), "the body differs from its receipt")
            self.expect_found(changed(answer, "receipt", "answer", "numbers", 0, by=lambda old: "0" + old[1:] if len(old) == 64 else str(float(old) - 1)),
                              "number 1 differs", "--no-signature")
        encoded = self.answer("/v1/embeddings", input="a fox", encoding_format="base64")
        self.assertEqual(self.verify(encoded)[0], 0)
        whole = self.ask("GET", "/v1/models")[2]["data"][0]["max_model_len"]
        self.assertEqual(self.verify(self.answer("/v1/embeddings", input=[[5] * whole]))[0], 0, "a text as long as the context")
        other = self.root / "other"
        subprocess.run([INVAR, "make-model", other, "--seed", "5"], check=True, capture_output=True)
        self.expect_found(encoded, "the weights differ", model=other)

    def test_only_the_key_that_asked_gets_the_receipt_later(self):
        status, _, answer = self.ask("POST", "/v1/decisions", DECISION)
        self.assertNotIn("receipt", answer)
        path = f"/v1/receipts/{answer['id']}"
        self.assertEqual(self.ask("GET", path, key="two")[0], 404)
        status, _, found = self.ask("GET", path)
        self.assertEqual(status, 200, found)
        self.assertEqual(self.verify(found, request=DECISION)[0], 0)
        self.expect_found({**found, "answers": answer["answers"]}, "expected a receipt")  # which nothing would check
        self.expect_found({**found, "object": answer["answers"]}, "expected a receipt")
        self.assertEqual(self.ask("GET", path)[2], found)
        self.assertEqual(self.ask("GET", f"/v1/completions/{answer['id']}")[0], 404)

    def test_what_cannot_be_is_refused(self):
        status, _, answer = self.ask("POST", "/v1/decisions", {**DECISION, "receipt": 3})
        self.assertEqual((status, answer["error"]["param"]), (400, "receipt"))
        status, text = self.verify(self.answer("/v1/score", **SCORE), "--prefix", "3")
        self.assertNotEqual(status, 0)
        self.assertIn("--prefix", text)
        for flags, words in ((["--arith", "control", "--receipt-key", str(self.root / "key.pem")], "baseline"), ([], "--receipt-key")):
            server = Served(INVAR, *flags)
            status, _, answer = server.ask("POST", "/v1/decisions", {**DECISION, "receipt": True})
            server.stop()
            self.assertEqual(status, 400)
            self.assertIn(words, answer["error"]["message"])


class Journal(Numbers):
    """A question that is asked again by its Idempotency-Key has the same bytes, whatever happened to the server."""

    def ask(self, server, body=DECISION, path="/v1/decisions", key="k", status=200):
        found, _, answer = server.ask("POST", path, body, {"Idempotency-Key": key} if key else {})
        self.assertEqual(found, status, answer)
        return answer

    def test_asked_again(self):
        journal = ["--journal", str(self.root / "journal")]
        server = self.served(*journal)
        decided, scored = self.ask(server), self.ask(server, SCORE, "/v1/score", "s")
        self.assertEqual(self.ask(server), decided)
        self.assertNotEqual(self.ask(server, key=None)["id"], decided["id"], "the control: no key")
        self.assertNotEqual(self.ask(server, key="other")["id"], decided["id"], "the control: another key")
        self.ask(server, {**DECISION, "input": "A bird ran."}, status=422)
        self.ask(server, SCORE, "/v1/score", status=422)
        self.ask(server, key="x" * 300, status=400)
        server.stop(signal.SIGKILL)
        server = self.served(*journal)
        self.assertEqual(self.ask(server), decided)
        self.assertEqual(self.ask(server, SCORE, "/v1/score", "s"), scored)
        server.stop()
        subprocess.run([INVAR, "make-model", self.root / "other", "--seed", "5"], check=True, capture_output=True)
        self.model = self.root / "other"
        server = self.served(*journal)
        self.assertIn("another answer", self.ask(server, status=409)["error"]["message"])
        server.stop()

    def test_asked_again_where_there_is_room_for_one_question(self):
        server = self.served("--journal", str(self.root / "journal"), "--max-queued-requests", "2")
        decided = self.ask(server)
        self.assertEqual(self.ask(server), decided)
        server.stop()

    def unfinished(self):
        with contextlib.closing(sqlite3.connect(self.root / "journal")) as journal:
            return journal.execute("SELECT count(*) FROM line WHERE outcome IS NULL AND idempotency_key = 'k'").fetchone()[0]

    def wait_for_unfinished(self, count):
        end = time.monotonic() + 60
        while self.unfinished() != count:
            self.assertLess(time.monotonic(), end, f"expected {count} lines without an outcome")
            time.sleep(0.001)

    def test_killed_while_it_is_computed(self):
        journal = ["--journal", str(self.root / "journal")]
        server = self.served(*journal)
        many = {**DECISION, "input": "A fox ran. " * 30, "questions": DECISION["questions"] * 20}
        connection = server.connect()
        connection.request("POST", "/v1/decisions", json.dumps(many), {"Idempotency-Key": "k", "Content-Type": "application/json"})
        self.wait_for_unfinished(1)
        server.stop(signal.SIGKILL)
        connection.close()
        self.assertEqual(self.unfinished(), 1, "the control: it was being computed")
        server = self.served(*journal)
        self.wait_for_unfinished(0)  # nobody waits for it: its line ends
        again = self.ask(server, many)
        self.assertEqual(self.ask(server, many), again)
        self.assertEqual(again["answers"], self.ask(server, many, key=None)["answers"])
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main(verbosity=2)
