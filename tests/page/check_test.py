#!/usr/bin/env python3
"""The page's view Check without a browser: its request and its comparison, by Node, against a server. Usage: check_test.py INVAR NODE"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "server"))
from served import Served  # noqa: E402

INVAR, NODE = None, None
PAGE = pathlib.Path(__file__).parents[2] / "src/server/page"
SAMPLED = {"max_tokens": 12, "temperature": 0.7, "seed": 7}
# Kinds of request, by what of a receipt they fill.
ASKED = {
    "greedy": {"max_tokens": 8, "temperature": 0},
    "sampled, with two links of the chain": {**SAMPLED, "max_tokens": 70, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
    "a seed that is no number of JavaScript": {**SAMPLED, "seed": 2**64 - 59},
    "penalties and biases": {**SAMPLED, "presence_penalty": 0.1, "frequency_penalty": -0.3, "repetition_penalty": 1.05,
                             "logit_bias": {"7": -2.5, "9": 1e-7}},
    "chosen tokens": {**SAMPLED, "allowed_token_ids": [5, 6, 7, 300], "ignore_eos": True},
    "stop strings": {**SAMPLED, "max_tokens": 60, "stop": ["e", "a"], "include_stop_str_in_output": True},
    "several choices": {**SAMPLED, "n": 3},
    "a regex": {**SAMPLED, "structured_outputs": {"regex": "[a-z]{3}!"}},
    "JSON": {"max_tokens": 40, "temperature": 0.9, "response_format": {"type": "json_object"}},
}
DECISION = {"input": "A fox ran.", "questions": [{"id": "a", "type": "predicate", "question": "Is it about a fox?"},
                                                 {"type": "choice", "question": "Who ran?", "choices": ["a fox", "a bird"]}]}
NUMBERS = {"/v1/decisions": DECISION, "/v1/score": {"text_1": "a fox", "text_2": ["A fox ran.", "It rained."]},
           "/v1/rerank": {"query": "a fox", "documents": ["It rained.", "A fox ran."]}}
# Runs a function of receipts.js, which asks a browser for nothing.
RUN = """
const page = await import(process.argv[1]);
const given = JSON.parse(await new Response(process.stdin).text());
process.stdout.write(JSON.stringify(await page[given.function](...given.arguments)));
"""


def page_says(function, *arguments):
    done = subprocess.run([NODE, "--input-type=module", "-e", RUN, (PAGE / "receipts.js").as_uri()], text=True, capture_output=True,
                          input=json.dumps({"function": function, "arguments": arguments}), timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class CheckTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="invar-check-")
        cls.server = Served(INVAR, "--receipt-key", cls.folder.name + "/key.pem", "--journal", cls.folder.name + "/journal")
        cls.engine = cls.server.ask("GET", "/v1/engine")[2]

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    def differing(self, receipt, text=None):
        """Names of the lines in which the page finds a difference when it computes `receipt` again."""
        status, _, reply = self.server.ask("POST", "/v1/completions", page_says("requestOf", receipt, self.engine["models"][0]))
        self.assertEqual(status, 200, reply)
        choice = reply["choices"][receipt["choice"]]
        rows = page_says("rowsOf", receipt, choice, self.engine) + page_says("ownRows", receipt, reply, self.engine["receipts"])
        if text is not None:
            rows.append(page_says("textRow", text, choice))
        self.assertEqual(len(rows), 8 if text is None else 9)
        return [name for name, same, *_ in rows if same is not True]

    def differing_numbers(self, receipt, body, signs=True):
        """The same of a receipt of numbers, beside its answer if there is one."""
        path, question = page_says("questionOf", receipt, self.engine["models"][0], signs)
        again = self.server.post(path, **question)
        self.assertEqual("receipt" in again, signs)
        rows = page_says("numberRows", receipt, body, again, self.engine)
        return [name for name, same, *_ in rows if same is not True]

    def receipts(self, **body):
        return [choice["receipt"] for choice in self.server.post("/v1/completions", prompt="The bits", receipt=True, **body)["choices"]]

    def test_every_receipt_is_confirmed(self):
        for kind, body in ASKED.items():
            for receipt in self.receipts(**body):
                with self.subTest(kind, choice=receipt["choice"]):
                    self.assertEqual(self.differing(receipt), [])

    def test_an_answer_file_may_have_any_form(self):
        chat = {"messages": [{"role": "user", "content": "Say it."}], **SAMPLED, "receipt": True}
        completion = self.server.post("/v1/completions", prompt="The bits", **SAMPLED, receipt=True)
        answer = self.server.post("/v1/chat/completions", **chat)
        line = lambda body: json.dumps({"id": "batch_req_1", "custom_id": "a", "response": {"status_code": 200, "body": body}})
        listed = self.server.ask("GET", f"/v1/receipts/{answer['id']}")[2]
        for kind, file, count in [("completion", json.dumps(completion), 1), ("chat", json.dumps(answer), 1), ("chat's stream", self.server.stream("/v1/chat/completions", **chat).decode(), 1),
                                  ("receipt", json.dumps(completion["choices"][0]["receipt"], indent=1), 1), ("receipts of the journal", json.dumps(listed), 1),
                                  ("lines of a batch", f"{line(completion)}\n{line(answer)}\n", 2)]:
            found = page_says("readAnswer", file)["found"]
            self.assertEqual(len(found), count, kind)
            for one in found:
                with self.subTest(kind):
                    self.assertEqual(self.differing(one["receipt"], one.get("text")), [])
        said = page_says("readAnswer", json.dumps(answer))["found"][0]
        self.assertEqual(self.differing(said["receipt"], said["text"] + "!"), ["Text"])
        self.assertEqual(page_says("readAnswer", '{"id": "chatcmpl-7"}'), {"found": [], "id": "chatcmpl-7"})

    def test_receipts_of_numbers_are_confirmed_and_changes_found(self):
        for path, body in NUMBERS.items():
            with self.subTest(path):
                answer = self.server.post(path, **body, receipt=True)
                (found,) = page_says("readAnswer", json.dumps(answer))["found"]
                self.assertEqual(found["body"], answer)
                for given, signs in [(found["body"], True), (None, True), (found["body"], False)]:
                    self.assertEqual(self.differing_numbers(found["receipt"], given, signs), [])
                fingerprint = page_says("fingerprintOf", found["receipt"])
                self.assertEqual(fingerprint, self.engine["system_fingerprint"])
                self.assertEqual([row[1] for row in page_says("ownRows", found["receipt"], {"system_fingerprint": fingerprint}, "")], [True, True], "model and signature")
                changed = json.loads(json.dumps(answer))
                changed["receipt"]["answer"]["numbers"][0] += "1"
                self.assertEqual(self.differing_numbers(changed["receipt"], None), ["Numbers"])
                for name in ("public_key", "signature"):
                    forged = {**found["receipt"], name: "00"}
                    self.assertIs(page_says("ownRows", forged, {"system_fingerprint": fingerprint}, "")[-1][1], False, name)
        answer = self.server.post("/v1/decisions", **DECISION, receipt=True)
        changed = json.loads(json.dumps(answer))
        changed["answers"][1]["answer"] = "neither"
        self.assertEqual(self.differing_numbers(answer["receipt"], changed), ["Answer"])
        foreign = json.loads(json.dumps(answer["receipt"]))
        foreign["request"]["endpoint"] = "/v1/engine"
        with self.assertRaisesRegex(AssertionError, "as the receipt's endpoint"):
            page_says("questionOf", foreign, "m", True)

    def test_a_change_is_found(self):
        (receipt,) = self.receipts(**SAMPLED)
        changed = json.loads(json.dumps(receipt))
        changed["answer"]["tokens"][3] ^= 1
        self.assertEqual(self.differing(changed), ["Tokens", "Chain", "Signature"])
        changed = json.loads(json.dumps(receipt))
        changed["answer"]["logits_hashes"][-1] = "0" * 64
        self.assertEqual(self.differing(changed), ["Logits", "Chain", "Signature"])
        changed = json.loads(json.dumps(receipt))
        changed["request"]["sampling"]["seed"] = "8"
        self.assertIn("Tokens", self.differing(changed))
        changed = json.loads(json.dumps(receipt))
        changed["tokenizer"] = "0" * 64
        self.assertEqual(self.differing(changed), ["Model", "Chain", "Signature"])


if __name__ == "__main__":
    INVAR, NODE = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
