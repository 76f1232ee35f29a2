#!/usr/bin/env python3
"""Answers that do not follow their schema where that is checked at their end: on every protocol, whole and streamed, in journals, batches
and files. Usage: schema_end_test.py INVAR [unittest arguments]"""
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

from served import Served

INVAR = None  # the program; set by main
CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
HI = [{"role": "user", "content": "Hi"}]


def schema(unique):
    """Of eleven digits two are equal."""
    digits = {"type": "array", "minItems": 11, "maxItems": 11, "items": {"type": "integer", "minimum": 0, "maximum": 9}}
    digits |= {"uniqueItems": True} if unique else {}
    return {"type": "object", "properties": {"a": digits}, "required": ["a"], "additionalProperties": False}


def bodies(unique):
    """A request of each protocol."""
    form = {"type": "json_schema", "name": "x", "schema": schema(unique)}
    return {COMPLETIONS: dict(prompt="x", max_tokens=60, seed=1, guided_json=schema(unique)),
            CHAT: dict(messages=HI, max_tokens=60, seed=1, response_format={"type": "json_schema", "json_schema": form}),
            MESSAGES: dict(messages=HI, max_tokens=60, seed=1, output_config={"format": form}),
            RESPONSES: dict(input="Hi", max_output_tokens=60, seed=1, text={"format": form}),
            "/api/chat": dict(model="m", messages=HI, options={"num_predict": 60, "seed": 1}, format=schema(unique)),
            "/completion": dict(prompt="x", n_predict=60, seed=1, json_schema=schema(unique)),
            "/generate": dict(text="x", sampling_params={"max_new_tokens": 60, "json_schema": json.dumps(schema(unique))})}


def said(data):
    """What the events or lines of a stream say."""
    blocks = [block.split("data: ", 1)[-1] for block in data.decode().strip().split("\n") if block and not block.startswith("event: ")]
    return [json.loads(block) for block in blocks if block != "[DONE]"]


class AtTheEnd(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="invar-schemas-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.flags = ("--journal", str(self.folder / "journal"), "--max-model-len", "2048", "--receipt-key", str(self.folder / "key"))
        self.served = Served(INVAR, *self.flags)
        self.addCleanup(lambda: self.served.stop())

    def is_named(self, error):
        self.assertIn("uniqueItems", error["message"])
        self.assertIn(error.get("code", "schema_not_followed"), ("schema_not_followed", 422), error)
        self.assertIn(error.get("type", "error"), ("error", "invalid_request_error"), error)

    def test_a_whole_answer(self):
        for path, body in bodies(True).items():
            with self.subTest(path=path):
                status, _, answer = self.served.ask("POST", path, body | {"stream": False})
                self.assertEqual(status, 422, answer)
                error = answer["error"]
                self.is_named({"message": error} if isinstance(error, str) else error)
        for path, body in bodies(False).items():
            self.assertEqual(self.served.ask("POST", path, body | {"stream": False})[0], 200, "the control: they may be equal")

    def test_a_stream(self):
        streams = {path: body for path, body in bodies(True).items() if path != "/generate"}  # which has none
        for path, body in streams.items():
            with self.subTest(path=path):
                status, _, data = self.served.ask("POST", path, body | {"stream": True})
                self.assertEqual(status, 200)
                events = said(data)
                self.assertGreater(len(events), 11, "the answer was shown first")
                end = events[-2] if path == RESPONSES else events[-1]
                self.is_named(end if path == RESPONSES else {"message": end["error"]} if path == "/api/chat" else end["error"])
                if path == RESPONSES:
                    self.assertEqual((end["type"], events[-1]["type"]), ("error", "response.failed"))
                    self.assertEqual(events[-1]["response"]["status"], "failed")
                    self.is_named(events[-1]["response"]["error"])
        for path in streams:
            self.assertNotIn(b"uniqueItems", self.served.ask("POST", path, bodies(False)[path] | {"stream": True})[2], "the control")

    def test_a_call_that_must_be_made(self):
        tool = lambda unique: {"type": "function", "function": {"name": "f", "parameters": schema(unique)}}
        body = lambda unique: dict(messages=HI, tools=[tool(unique)], tool_choice="required", max_tokens=100, seed=1)
        status, _, answer = self.served.ask("POST", CHAT, body(True))
        self.assertEqual(status, 422, answer)
        self.is_named(answer["error"])
        self.assertEqual(self.served.ask("POST", CHAT, body(False))[0], 200)

    def test_one_of_several_answers(self):
        self.assertEqual(self.served.ask("POST", CHAT, bodies(True)[CHAT] | {"n": 3})[0], 422)

    def test_it_fails_again_in_every_life(self):
        """By its Idempotency-Key, by its id, in another life of the server; nothing goes on from it, and nothing proves it."""
        key = {"Idempotency-Key": "k"}
        first = self.served.ask("POST", CHAT, bodies(True)[CHAT], key)
        streamed = self.served.ask("POST", RESPONSES, bodies(True)[RESPONSES] | {"stream": True})[2]
        response = said(streamed)[0]["response"]["id"]
        chat = said(self.served.ask("POST", CHAT, bodies(True)[CHAT] | {"stream": True})[2])[0]["id"]
        for life in range(2):
            again = self.served.ask("POST", CHAT, bodies(True)[CHAT], key)
            self.assertEqual((again[0], again[2]), (422, first[2]))
            status, _, answer = self.served.ask("GET", f"{RESPONSES}/{response}?stream=false")
            self.assertEqual((status, answer["error"]["code"]), (422, "schema_not_followed"))
            self.assertEqual(self.served.ask("GET", f"{RESPONSES}/{response}?stream=true")[2], streamed)
            status, _, answer = self.served.ask("GET", f"/v1/receipts/{chat}")
            self.assertEqual(status, 422, answer)
            status, _, answer = self.served.ask("POST", RESPONSES, dict(input="x", previous_response_id=response, max_output_tokens=2))
            self.assertEqual((status, answer["error"]["code"]), (400, "previous_response_incomplete"))
            self.served.stop()
            self.served = Served(INVAR, *self.flags)

    def test_in_the_background(self):
        queued = self.served.post(RESPONSES, **bodies(True)[RESPONSES], background=True)
        end = time.monotonic() + 60
        while (told := self.served.ask("GET", f"{RESPONSES}/{queued['id']}")[2])["status"] in ("queued", "in_progress"):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        self.assertEqual((told["status"], told["output"]), ("failed", []))
        self.is_named(told["error"])

    def test_files_of_requests(self):
        lines, out = self.folder / "in.jsonl", self.folder / "out.jsonl"
        lines.write_text("".join(json.dumps({"custom_id": str(unique), "url": COMPLETIONS, "body": bodies(unique)[COMPLETIONS]}) + "\n"
                                 for unique in (True, False)))
        subprocess.run([INVAR, "generate", "--load-format", "dummy:1", "--threads", "1", "--kv-cache-memory", "0.1", "--max-model-len", "512",
                        "--input", lines, "--output", out], capture_output=True)
        bad, good = map(json.loads, out.read_text().splitlines())
        self.assertEqual(bad["error"]["code"], 422, bad)
        self.assertIn("uniqueItems", bad["error"]["message"])
        self.assertIsNone(good["error"])


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main()
