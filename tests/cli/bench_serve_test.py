#!/usr/bin/env python3
"""invar bench serve against a server whose times and answers are known. Usage: bench_serve_test.py INVAR"""
import http.server
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest

INVAR = None
FIRST, GAP = 0.10, 0.02  # seconds that the server takes for its first and each further event


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies, self.seen = [], itertools.count()
        self.mode = "plain"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, value):
        body = json.dumps(value, indent=1).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply(200, {"object": "list", "data": [{"id": "fake"}]})

    def event(self, value):
        data = value if isinstance(value, str) else json.dumps(value)
        bytes_ = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(bytes_), bytes_))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append((time.time(), self.path, body))
        number, mode = next(self.server.seen), self.server.mode
        if mode == "busy" and number % 2:
            return self.reply(429, {"error": {"message": "too many requests"}})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        chat = self.path == "/v1/chat/completions"
        if chat:
            self.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for i in range(5):
            time.sleep(GAP if i else FIRST)
            text = f"word{number if mode == 'random' and i > 2 else 0} "
            self.event({"choices": [{"delta": {"content": text}} if chat else {"text": text}]})
            if mode == "cut" and i == 2:
                self.wfile.write(b"0\r\n\r\n")
                return
        self.event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}})
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")


class BenchServeTest(unittest.TestCase):
    def setUp(self):
        self.server = Server()

    def tearDown(self):
        self.server.shutdown()
        self.server.server_close()

    def bench(self, *args, status=0):
        done = subprocess.run(
            [INVAR, "bench", "serve", "--url", self.server.url, "--json", "--input-len", "20",
             "--output-len", "5", *args], capture_output=True, timeout=60)
        self.assertEqual(done.returncode, status, done.stderr)
        return json.loads(done.stdout) if done.stdout else done.stderr.decode()

    def test_times_are_the_servers(self):
        for backend in ("openai", "openai-chat"):
            r = self.bench("--num-prompts", "8", "--backend", backend, "--goodput", "ttft:1")
            self.assertEqual((r["completed"], r["failed"], r["model"]), (8, 0, "fake"))
            self.assertEqual((r["total_input_tokens"], r["total_output_tokens"]), (56, 40))
            # A chat's first event has no text: it is no token.
            self.assertGreaterEqual(r["p50_ttft_ms"], 1000 * FIRST)
            # One gap is less where the event before it came late; all together they are not.
            self.assertGreaterEqual(r["mean_e2el_ms"], 1000 * (FIRST + 4 * GAP))
            self.assertAlmostEqual(r["mean_itl_ms"], r["mean_tpot_ms"], 3)
            self.assertAlmostEqual(r["mean_tpot_ms"] * 4 + r["mean_ttft_ms"], r["mean_e2el_ms"], 3)
            self.assertEqual(r["request_goodput"], 0)
            self.assertGreater(r["client_cpu_seconds"], 0)
        self.assertGreater(self.bench("--num-prompts", "2", "--goodput", "ttft:9000", "e2el:9000")[
            "request_goodput"], 0)

    def test_requests_are_those_that_were_asked_for(self):
        self.bench("--num-prompts", "6", "--temperature", "0.8", "--top-k", "5", "--ignore-eos",
                   "--extra-body", '{"min_tokens": 2}', "--random-range-ratio", "0.5")
        bodies = [body for _, _, body in self.server.bodies]
        self.assertEqual(len({body["prompt"] for body in bodies}), 6)
        for body in bodies:
            self.assertEqual((body["temperature"], body["top_k"], body["ignore_eos"], body["min_tokens"],
                              body["stream"]), (0.8, 5, True, 2, True))
            self.assertTrue(10 <= len(body["prompt"].split()) <= 30)
        self.server.bodies.clear()
        self.bench("--num-prompts", "6", "--temperature", "0.8", "--random-range-ratio", "0.5")
        again = [body for _, _, body in self.server.bodies]
        key = json.dumps
        self.assertEqual(sorted(key(b["prompt"]) for b in bodies), sorted(key(b["prompt"]) for b in again))

    def test_rate_and_concurrency(self):
        start = time.time()
        self.bench("--num-prompts", "20", "--request-rate", "40")
        times = sorted(t - start for t, _, _ in self.server.bodies)
        self.assertGreater(times[-1] - times[0], 0.2)
        r = self.bench("--num-prompts", "6", "--max-concurrency", "2")
        self.assertEqual(r["max_concurrent_requests"], 2)
        self.assertGreaterEqual(r["duration"], 3 * (FIRST + 4 * GAP))

    def test_counts_different_answers_to_one_prompt(self):
        r = self.bench("--num-prompts", "12", "--same-prompt", "6")
        self.assertEqual((r["same_prompt_answers"], r["unique_answers"], r["first_difference_byte"]), (6, 1, None))
        self.server.mode = "random"  # the other side: a server whose answers differ
        r = self.bench("--num-prompts", "12", "--same-prompt", "6")
        self.assertEqual((r["same_prompt_answers"], r["unique_answers"]), (6, 6))
        self.assertGreaterEqual(r["first_difference_byte"], len("word0 " * 3 + "word"))

    def test_what_fails_is_counted_and_said(self):
        self.server.mode = "busy"
        r = self.bench("--num-prompts", "6", "--save-detailed", status=1)
        self.assertEqual((r["completed"], r["failed"]), (3, 3))
        self.assertTrue(any("found 429" in e and "too many requests" in e for e in r["errors"]), r["errors"])
        self.server.mode = "cut"
        r = self.bench("--num-prompts", "2", "--save-detailed", status=1)
        self.assertEqual(r["errors"], ["expected a stream that ends with [DONE], found one cut off"] * 2)

    def test_wrong_calls(self):
        for args in (["--goodput", "tpt:3"], ["--num-prompts", "0"], ["--random-range-ratio", "1"],
                     ["--request-rate", "0"], ["--same-prompt", "2000"], ["--extra-body", "[1]"]):
            self.assertEqual(len(self.bench(*args, status=2).strip().splitlines()), 1)
        self.server.shutdown()
        self.server.server_close()
        self.assertIn("/v1/models", self.bench(status=1))

    def test_writes_files(self):
        with tempfile.TemporaryDirectory() as directory:
            result, page = pathlib.Path(directory, "r.json"), pathlib.Path(directory, "r.html")
            self.bench("--num-prompts", "4", "--result-filename", str(result), "--html", str(page))
            self.assertEqual(json.loads(result.read_text())["completed"], 4)
            text = page.read_text()
            self.assertEqual(text.count("<svg"), 5)
            # Nothing is loaded from elsewhere; a namespace is a name.
            self.assertNotIn("http://www", text.replace('xmlns="http://www.w3.org/2000/svg"', ""))


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main()
