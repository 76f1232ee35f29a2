#!/usr/bin/env python3
"""The page's view Check in Chromium: receipts of answers and decisions, signed or not. Usage: proof_test.py INVAR [--pictures DIRECTORY]
[unittest arguments]

Exits with 77 where Chromium, its driver or Selenium are not installed."""
import json
import sys
import tempfile
import unittest

from browser import BrowserTest, By, tag
from served import Served
from story import MANY, StoryTest


class ProofTest(StoryTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="invar-proof-")
        cls.server = Served(cls.program, "--receipt-key", cls.folder.name + "/key.pem", "--journal", cls.folder.name + "/journal", *MANY)
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.server.stop()
        cls.folder.cleanup()

    def setUp(self):
        super().setUp()
        self.open()

    def test_a_receipt_is_computed_again_and_a_change_is_found(self):
        self.ask("Certify this.", max_tokens=20)
        self.click("Receipt")
        self.until(lambda: self.find("check").is_displayed())
        receipt = json.loads(self.find("receipt").get_attribute("value"))
        self.click("Compute again")
        self.until(lambda: "Confirmed" in self.find("verdict").text)
        self.picture("check")
        receipt["answer"]["tokens"][7] ^= 1
        self.set("receipt", json.dumps(receipt))
        self.click("Compute again")
        self.until(lambda: "Tokens differ" in self.find("verdict").text)
        self.assertIn(f"token 8: {receipt['answer']['tokens'][7]}", self.find("verdict").text)
        for text, found in [("{", "expected JSON"), ("{}", "expected a receipt")]:
            self.set("receipt", text)
            self.click("Compute again")
            self.until(lambda: found in self.text("check-state"))
        self.no_faults()

    def test_there_is_one_to_try(self):
        self.open("check")
        for button, words in [("Try an answer", "32 tokens"), ("Try a decision", "numbers of /v1/decisions")]:
            self.until(lambda: self.browser.find_element(By.XPATH, tag(button)).is_displayed())
            self.set("receipt", "")
            self.click(button)
            self.until(lambda: self.find("receipt").get_attribute("value"))
            self.click("Compute again")
            self.until(lambda: self.find("verdict").text.startswith("Confirmed") and words in self.find("verdict").text, button)
            self.assertIn("✓ Signature", self.find("verdict").text)
            self.assertNotIn("✗", self.find("verdict").text)
            self.assertEqual(self.axe(), [])
            self.picture(f"check-{button.split()[-1]}")
        self.no_faults()

    def test_without_a_key_one_to_try_is_not_signed(self):
        server = self.serve_story()
        self.open("check", server)
        self.click("Try an answer")
        self.until(lambda: "not signed" in self.text("check-state"))
        receipt = json.loads(self.find("receipt").get_attribute("value"))
        self.click("Compute again")
        self.until(lambda: self.find("verdict").text.startswith("Confirmed"))
        self.assertIn("– Signature", self.find("verdict").text)
        receipt["answer"]["tokens"][3] += 1
        self.set("receipt", json.dumps(receipt))
        self.click("Compute again")
        self.until(lambda: "Tokens differ" in self.find("verdict").text)
        self.no_faults()

    def test_an_answer_without_a_receipt_is_found_in_the_journal(self):
        self.open("check")
        answer = self.server.post("/v1/chat/completions", messages=[{"role": "user", "content": "Say it."}], max_tokens=9)
        self.set("receipt", json.dumps(answer))
        self.click("Compute again")
        self.until(lambda: self.find("verdict").text.startswith("Confirmed") and "9 tokens" in self.find("verdict").text)
        self.set("receipt", json.dumps({**answer, "id": "chatcmpl-none"}))
        self.click("Compute again")
        self.until(lambda: "there is no answer" in self.text("check-state"))


if __name__ == "__main__":
    StoryTest.program = sys.argv.pop(1)
    if "--pictures" in sys.argv:
        at = sys.argv.index("--pictures")
        BrowserTest.pictures = sys.argv[at + 1]
        del sys.argv[at:at + 2]
    unittest.main()
