#!/usr/bin/env python3
"""OpenAI's files and batches: answers to the lines of a file, also when the server is killed meanwhile.
Usage: batches_test.py INVAR [unittest arguments]"""
import json
import pathlib
import signal
import sys
import tempfile
import time
import unittest

from served import Served

INVAR = None  # the program; set by main
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
BOUNDARY = "b0undary"


def form(**fields):
    """The body of a form; a field of bytes is a file."""
    parts = []
    for name, value in fields.items():
        kind = '; filename="a.jsonl"\r\nContent-Type: application/octet-stream' if isinstance(value, bytes) else ""
        parts.append(f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{kind}\r\n\r\n'.encode()
                     + (value if isinstance(value, bytes) else value.encode()) + b"\r\n")
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def line(i, url=CHAT, **body):
    asked = {"messages": [{"role": "user", "content": f"say {i}"}]} if url == CHAT else {"prompt": f"say {i}"} if url == COMPLETIONS else {"input": f"say {i}"}
    sampled = {} if url == EMBEDDINGS else {"max_tokens": 8, "seed": i}
    return {"custom_id": f"line-{i}", "method": "POST", "url": url, "body": {**asked, **sampled, **body}}


def content(lines):
    return "".join(json.dumps(one) + "\n" for one in lines).encode()


class Batches(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="invar-batches-")
        self.addCleanup(self.folder.cleanup)
        self.served = None
        self.addCleanup(lambda: self.served and self.served.stop())

    def start(self, *flags):
        self.served = Served(INVAR, "--journal", self.folder.name + "/journal", *flags)

    def send(self, data, key=None, purpose="batch", status=200):
        headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}", **({"Authorization": f"Bearer {key}"} if key else {})}
        found, _, file = self.served.ask("POST", "/v1/files", form(purpose=purpose, file=data), headers)
        self.assertEqual(found, status, file)
        return file

    def get(self, path, key=None, status=200, method="GET", body=None):
        found, _, answer = self.served.ask(method, path, body, {"Authorization": f"Bearer {key}"} if key else {})
        self.assertEqual(found, status, answer)
        return answer

    def begin(self, lines, endpoint=CHAT, key=None, status=200, **more):
        file = self.send(content(lines), key)
        return self.get("/v1/batches", key, status, "POST", {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h", **more})

    def wait(self, batch, key=None):
        end = time.monotonic() + 60
        while batch["status"] in ("in_progress", "cancelling"):
            self.assertLess(time.monotonic(), end, batch)
            time.sleep(0.02)
            batch = self.get("/v1/batches/" + batch["id"], key)
        return batch

    def answers(self, file, key=None):
        said = [json.loads(one) for one in self.get(f"/v1/files/{file}/content", key).decode().splitlines()]
        return {one["custom_id"]: one["response"] for one in said}

    def test_each_line_has_the_answer_that_it_has_alone(self):
        self.start()
        for endpoint in (CHAT, COMPLETIONS, EMBEDDINGS):
            lines = [line(i, endpoint) for i in range(40)]
            batch = self.wait(self.begin(lines, endpoint, metadata={"a": "b"}))
            self.assertEqual((batch["status"], batch["request_counts"], batch["error_file_id"], batch["metadata"]),
                             ("completed", {"total": 40, "completed": 40, "failed": 0}, None, {"a": "b"}))
            answers = self.answers(batch["output_file_id"])
            self.assertEqual(list(answers), [one["custom_id"] for one in lines])
            for one in lines[::13]:
                alone = self.served.post(endpoint, **one["body"])
                said = answers[one["custom_id"]]
                self.assertEqual(said["status_code"], 200)
                part = "data" if endpoint == EMBEDDINGS else "choices"
                self.assertEqual(said["body"][part], alone[part])

    def test_lines_that_are_refused_stand_in_a_file_of_their_own(self):
        self.start()
        batch = self.wait(self.begin([line(0), line(1, temperature=-1), line(2, model="other")]))
        self.assertEqual(batch["request_counts"], {"total": 3, "completed": 1, "failed": 2})
        self.assertEqual(list(self.answers(batch["output_file_id"])), ["line-0"])
        errors = self.answers(batch["error_file_id"])
        self.assertEqual([errors[f"line-{i}"]["status_code"] for i in (1, 2)], [400, 404])
        self.assertIn("temperature", errors["line-1"]["body"]["error"]["message"])

    def test_a_file_that_is_no_batch_fails_with_a_sentence_for_each_line(self):
        self.start()
        bad = [line(0), line(0), line(1, COMPLETIONS), {"custom_id": "x", "url": CHAT, "body": 3}, line(2, stream=True)]
        batch = self.begin(bad)
        self.assertEqual(batch["status"], "failed")
        said = [(one["line"], one["message"]) for one in batch["errors"]["data"]]
        for (number, text), (at, words) in zip(said, [(2, "custom_id"), (3, "url"), (4, "body"), (5, "stream")], strict=True):
            self.assertEqual(number, at)
            self.assertIn(words, text)
        self.assertEqual(self.begin([])["errors"]["data"][0]["message"], "expected lines, found none")
        broken = self.get("/v1/batches", None, 200, "POST", {"input_file_id": self.send(b"{\n")["id"], "endpoint": CHAT})
        self.assertEqual(broken["status"], "failed")

    def test_files(self):
        self.start()
        data = content([line(0)])
        file = self.send(data)
        self.assertEqual((file["bytes"], file["filename"], file["purpose"]), (len(data), "a.jsonl", "batch"))
        self.assertEqual(self.get("/v1/files")["data"], [file])
        self.assertEqual(self.get("/v1/files/" + file["id"]), file)
        self.assertEqual(self.get(f"/v1/files/{file['id']}/content"), data)
        self.assertTrue(self.get("/v1/files/" + file["id"], method="DELETE")["deleted"])
        self.get("/v1/files/" + file["id"], status=404)
        self.send(data, purpose="vision", status=400)
        for body, kind in ((b"x", "text/plain"), (b"--b", "multipart/form-data; boundary=b"), (form(purpose="batch"), f"multipart/form-data; boundary={BOUNDARY}")):
            status, _, answer = self.served.ask("POST", "/v1/files", body, {"Content-Type": kind})
            self.assertEqual(status, 400, answer)
        self.get("/v1/batches", None, 404, "POST", {"input_file_id": "file-none", "endpoint": CHAT})
        self.get("/v1/batches", None, 400, "POST", {"input_file_id": "file-none", "endpoint": "/v1/images"})

    def test_keys_see_their_own(self):
        self.start("--api-key", "a", "--api-key", "b")
        batch = self.wait(self.begin([line(0)], key="a"), "a")
        for path in (f"/v1/batches/{batch['id']}", f"/v1/files/{batch['output_file_id']}", f"/v1/files/{batch['output_file_id']}/content"):
            self.get(path, "a")
            self.get(path, "b", 404)
            self.get(path, None, 401)
        self.get(f"/v1/batches/{batch['id']}/cancel", "b", 404, "POST")
        self.assertEqual(self.get("/v1/batches", "b")["data"], [])
        self.assertEqual(self.get("/v1/batches", "a")["data"], [batch])

    def test_a_batch_is_cancelled(self):
        self.start()
        batch = self.begin([line(i, max_tokens=200, ignore_eos=True) for i in range(400)])
        self.get(f"/v1/batches/{batch['id']}/cancel", method="POST")
        batch = self.wait(batch)
        self.assertEqual(batch["status"], "cancelled")
        self.assertLess(batch["request_counts"]["completed"], 400)
        self.get(f"/v1/batches/{batch['id']}/cancel", method="POST", status=409)

    def test_a_killed_server_goes_on(self):
        self.start()
        lines = [line(i, max_tokens=60, ignore_eos=True) for i in range(120)]
        for one in lines[::2]:
            del one["body"]["seed"]  # drawn once, whatever happens
        batch = self.begin(lines)
        kills = 0
        while batch["status"] == "in_progress" and kills < 3:
            done = batch["request_counts"]["completed"]
            self.served.wait_until(lambda: self.get("/v1/batches/" + batch["id"])["request_counts"]["completed"] > done, 30)
            self.served.stop(signal.SIGKILL)
            kills += 1
            self.start()
            batch = self.get("/v1/batches/" + batch["id"])
        self.assertEqual(kills, 3)
        batch = self.wait(batch)
        self.assertEqual((batch["status"], batch["request_counts"]["completed"]), ("completed", 120))
        answers = self.answers(batch["output_file_id"])
        for one in lines[1::40]:
            self.assertEqual(answers[one["custom_id"]]["body"]["choices"], self.served.post(CHAT, **one["body"])["choices"])
        self.assertEqual(len({said["body"]["id"] for said in answers.values()}), 120)

    def test_a_server_without_a_journal_says_so(self):
        self.served = Served(INVAR)
        self.assertIn("--journal", self.get("/v1/files", status=400)["error"]["message"])


if __name__ == "__main__":
    INVAR = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
