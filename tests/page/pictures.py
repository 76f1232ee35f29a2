#!/usr/bin/env python3
"""Pictures of every view of the page in both themes and widths, with the bundled model or another, such as a published one's GGUF file.
Usage: pictures.py INVAR DIRECTORY [MODEL]"""
import pathlib
import sys
import tempfile
import time
import unittest

from browser import BrowserTest, Keys
from served import Served

INVAR, FOLDER = None, None
MODEL = pathlib.Path(__file__).parents[2] / "models/story"
QUESTIONS = {True: ["Calculate 91 + 87.", "How many items does this list have? 45, 72, 61", "Tell me a story about an owl."],  # of the bundled model
             False: ["What is the capital of France?", "Write a short list of three fruits.", "Write a Python function that adds two numbers, and explain it."]}
IS_BUNDLED = True
SIZES = {"wide": (1280, 860), "narrow": (375, 740)}


class Pictures(BrowserTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="invar-pictures-")
        cls.server = Served(INVAR, command=[INVAR, "serve", str(MODEL), "--host", "127.0.0.1", "--port", "0", "--lab", "--kv-cache-memory", "0.2",
                                            "--max-model-len", "auto", "--served-model-name", MODEL.stem,
                                            "--journal", cls.folder.name + "/journal", "--receipt-key", cls.folder.name + "/key.pem"])
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.server.stop()
        cls.folder.cleanup()

    def shots(self, name):
        """The view as it stands, in both themes and widths."""
        for width, size in SIZES.items():
            self.size(*size)
            for theme in ["light", "dark"]:
                self.theme(theme)
                time.sleep(0.3)
                self.browser.save_screenshot(str(FOLDER / f"{name}-{width}-{theme}.png"))
        self.size(*SIZES["wide"])
        self.theme("light")

    def say(self, text):
        self.find("prompt").send_keys(text, Keys.ENTER)
        return self.finished()

    def test_chat(self):
        self.open()
        self.shots("empty")
        self.set("seed", "7")
        self.set("max_tokens", "200")
        for i, question in enumerate(QUESTIONS[IS_BUNDLED]):
            if i > 0:
                self.click("New chat")
            self.say(question)
        self.click("Repeat")
        self.finished()
        self.run_js("document.activeElement.blur()")
        self.shots("chat")
        self.find("show-tokens").click()
        self.shots("tokens")
        self.find("show-tokens").click()
        self.click("Delete")
        self.shots("deleted")
        self.run_js("document.getElementById('toast').hidden = true")
        self.size(*SIZES["narrow"])
        for part in ["talks", "parameters"]:
            self.run_js("document.getElementById(arguments[0]).open = true", part)
            time.sleep(0.2)
            self.browser.save_screenshot(str(FOLDER / f"{part}-narrow-light.png"))

    def test_same_bits(self):
        self.open("bits")
        for id, value in {"bits-count": 20, "bits-tokens": 24}.items():
            self.set(id, value)
        self.find("bits-run").click()
        self.until(lambda: self.find("bits-run").text == "Stop")
        self.until(lambda: self.find("bits-run").text == "Run", "the run's end")
        self.shots("bits")

    def test_engine(self):
        self.open("engine")
        self.find("load").click()
        time.sleep(6)
        self.shots("engine")
        self.find("load").click()

    def test_check(self):
        self.open("check")
        self.until(lambda: self.find("try-decision").is_displayed())
        for name in ["answer", "decision"]:
            self.set("receipt", "")
            self.click(f"Try {'an' if name == 'answer' else 'a'} {name}")
            self.until(lambda: self.find("receipt").get_attribute("value"))
            self.click("Compute again")
            self.until(lambda: self.all(".verdict"))
            self.shots(f"check-{name}")

    def test_reference(self):
        self.browser.get(f"http://127.0.0.1:{self.server.port}/docs")
        self.until(lambda: self.all(".operation"))
        self.shots("docs")


if __name__ == "__main__":
    INVAR, FOLDER = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
    if len(sys.argv) > 1 and not sys.argv[1].startswith(("-", "Pictures")):
        MODEL, IS_BUNDLED = pathlib.Path(sys.argv.pop(1)), False
    FOLDER.mkdir(parents=True, exist_ok=True)
    unittest.main()
