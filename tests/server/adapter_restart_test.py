#!/usr/bin/env python3
"""Adapters that were loaded while the server served, when it is killed and started again: they are there, and answers that were cut off
end with the same bytes; one that changed or is gone ends its own answers alone. Usage: adapter_restart_test.py INVAR [unittest arguments]"""
import contextlib
import json
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import unittest

from adapters_test import write_adapter
from served import Served, fast_and

INVAR = None  # the program; set by main
KEY = {"Authorization": "Bearer key"}
BODY = dict(prompt="An answer of some length.", max_tokens=2000, temperature=0.8, ignore_eos=True)


class AdapterRestartTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="invar-adapter-restart-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.model = self.root / "model"
        subprocess.run([INVAR, "make-model", self.model], check=True, capture_output=True)
        path = self.model / "config.json"
        config = json.loads(path.read_text())
        path.write_text(json.dumps({**config, "max_position_embeddings": 4096}))
        self.adapters = [write_adapter(self.root / f"adapter{i}", config, i) for i in range(3)]
        self.server = None
        self.addCleanup(lambda: self.server and self.server.stop())

    def start(self, *flags):
        self.server = Served(INVAR, command=[
            INVAR, "serve", str(self.model), "--host", "127.0.0.1", "--port", "0", "--served-model-name", "m", "--enable-lora",
            "--api-key", "key", *fast_and(["--max-model-len", "4096", *flags])])

    def stop(self, by=signal.SIGTERM):
        server, self.server = self.server, None
        server.stop(by)
        return server.last_words

    def ask(self, method, path, body=None):
        return self.server.ask(method, path, body, KEY)

    def answer(self, **body):
        status, _, answer = self.ask("POST", "/v1/completions", body)
        self.assertEqual(status, 200, answer)
        return answer["choices"]

    def journal(self):
        return ["--journal", str(self.root / "journal")]

    def load(self, name, number, **more):
        status, _, said = self.ask("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(self.adapters[number]), **more})
        self.assertEqual(status, 200, said)

    def names(self):
        return [one["id"] for one in self.ask("GET", "/v1/models")[2]["data"]]

    def answers(self, names):
        """The whole answers of a server that nobody kills."""
        self.start()
        for number, name in enumerate(names[1:]):
            self.load(name, number)
        answers = {name: self.answer(model=name, seed=i, **BODY) for i, name in enumerate(names)}
        self.stop()
        return answers

    def cut_off(self, names):
        """Begins an answer of each name and kills the server: the ids of the answers."""
        ids = {}
        with contextlib.ExitStack() as stack:
            for i, name in enumerate(names):
                connection = stack.enter_context(contextlib.closing(self.server.connect()))
                connection.request("POST", "/v1/completions", json.dumps({**BODY, "model": name, "seed": i, "stream": True}), KEY)
                ids[name] = json.loads(connection.getresponse().readline().removeprefix(b"data: "))["id"]
            self.stop(signal.SIGKILL)
        with contextlib.closing(sqlite3.connect(self.root / "journal")) as journal:
            self.assertEqual(journal.execute("SELECT COUNT(*) FROM line WHERE outcome IS NULL").fetchone()[0], len(names))
        return ids

    def again(self, answer):
        status, _, body = self.ask("GET", "/v1/completions/" + answer)
        return status, body.get("choices") or body["error"]["message"]

    def test_adapters_are_back_and_answers_that_were_cut_off_end_with_the_same_bytes(self):
        names = ["m", "a", "b"]
        whole = self.answers(names)
        self.start(*self.journal())
        self.load("a", 0)
        self.load("b", 1)
        ids = self.cut_off(names)
        self.start(*self.journal())
        self.assertEqual(self.names(), names)
        for name in names:
            self.assertEqual(self.again(ids[name]), (200, whole[name]))
        self.assertEqual(len({json.dumps(whole[name]) for name in names}), 3)  # the control: they differ

    def test_adapters_that_changed_or_are_gone_end_their_own_answers_alone(self):
        names = ["m", "a", "b", "c"]
        whole = self.answers(names)
        self.start(*self.journal())
        for number, name in enumerate(names[1:]):
            self.load(name, number)
        ids = self.cut_off(names)
        held = shutil.move(self.adapters[0], self.root / "held")  # a is b's now
        shutil.copytree(self.adapters[1], self.adapters[0])
        shutil.rmtree(self.adapters[2])
        self.start(*self.journal())
        self.assertEqual(self.names(), ["m", "b"])
        said = self.server.said()
        self.assertIn('the adapter "a" is not served as before the restart', said)
        self.assertIn("expected an adapter with the digest", said)
        self.assertIn('the adapter "c" is not served as before the restart', said)
        for name in ("a", "c"):
            status, message = self.again(ids[name])
            self.assertEqual(status, 409)
            self.assertIn(f'the adapter "{name}", which is not served', message)
        for name in ("m", "b"):
            self.assertEqual(self.again(ids[name]), (200, whole[name]))
        self.stop()
        # An adapter that is there again as it was goes on.
        shutil.rmtree(self.adapters[0])
        shutil.move(held, self.adapters[0])
        self.start(*self.journal())
        self.assertEqual(self.again(ids["a"]), (200, whole["a"]))

    def test_what_was_unloaded_or_replaced_stays_so(self):
        self.start("--lora-modules", f"a={self.adapters[0]}", *self.journal())
        self.load("b", 1)
        self.load("c", 2)
        self.load("a", 1, load_inplace=True)
        self.assertEqual(self.ask("POST", "/v1/unload_lora_adapter", {"lora_name": "c"})[0], 200)
        body = dict(BODY, max_tokens=16, seed=5)
        answers = {name: self.answer(model=name, **body) for name in "ab"}
        self.assertEqual(answers["a"], answers["b"])
        self.stop(signal.SIGKILL)
        self.start("--lora-modules", f"a={self.adapters[0]}", *self.journal())
        self.assertEqual(self.names(), ["m", "a", "b"])
        self.assertEqual(self.answer(model="a", **body), answers["a"])
        self.stop()
        # Without its journal the server knows what its flags say, and a has other answers.
        self.start("--lora-modules", f"a={self.adapters[0]}")
        self.assertEqual(self.names(), ["m", "a"])
        self.assertNotEqual(self.answer(model="a", **body), answers["a"])


if __name__ == "__main__":
    INVAR = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
