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
# Runs a function of check.js; the page's modules ask the browser for nothing but this when they are loaded.
RUN = """
globalThis.sessionStorage = { getItem: () => null };
const page = await import(process.argv[1]);
const given = JSON.parse(await new Response(process.stdin).text());
process.stdout.write(JSON.stringify(page[given.function](...given.arguments)));
"""


def page_says(function, *arguments):
    done = subprocess.run([NODE, "--input-type=module", "-e", RUN, (PAGE / "check.js").as_uri()], text=True, capture_output=True,
                          input=json.dumps({"function": function, "arguments": arguments}), timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class CheckTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="invar-check-")
        cls.server = Served(INVAR, "--receipt-key", cls.folder.name + "/key.pem")
        cls.engine = cls.server.ask("GET", "/v1/engine")[2]

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    def differing(self, receipt):
        """Names of the lines in which the page finds a difference when it computes `receipt` again."""
        status, _, reply = self.server.ask("POST", "/v1/completions", page_says("requestOf", receipt, self.engine["models"][0]))
        self.assertEqual(status, 200, reply)
        rows = page_says("rowsOf", receipt, reply["choices"][receipt["choice"]], self.engine)
        self.assertEqual(len(rows), 5)
        return [name for name, same, *_ in rows if not same]

    def receipts(self, **body):
        return [choice["receipt"] for choice in self.server.post("/v1/completions", prompt="The bits", receipt=True, **body)["choices"]]

    def test_every_receipt_is_confirmed(self):
        for kind, body in ASKED.items():
            for receipt in self.receipts(**body):
                with self.subTest(kind, choice=receipt["choice"]):
                    self.assertEqual(self.differing(receipt), [])

    def test_a_change_is_found(self):
        (receipt,) = self.receipts(**SAMPLED)
        changed = json.loads(json.dumps(receipt))
        changed["answer"]["tokens"][3] ^= 1
        self.assertEqual(self.differing(changed), ["Tokens"])
        changed = json.loads(json.dumps(receipt))
        changed["answer"]["logits_hashes"][-1] = "0" * 64
        self.assertEqual(self.differing(changed), ["Logits"])
        changed = json.loads(json.dumps(receipt))
        changed["request"]["sampling"]["seed"] = "8"
        self.assertIn("Tokens", self.differing(changed))


if __name__ == "__main__":
    INVAR, NODE = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
