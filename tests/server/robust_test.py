#!/usr/bin/env python3
"""What must not end the server, keep others waiting or confuse who stands before it. Usage: robust_test.py INVAR [unittest arguments]"""
import concurrent.futures
import json
import os
import select
import signal
import sys
import tempfile
import time
import unittest

from served import Served, children, read_all

INVAR = None  # the program; set by main
COMPLETIONS = "/v1/completions"


class Replies:
    """The replies on one connection, each read by its head and, unless it answers HEAD, its Content-Length."""

    def __init__(self, connection):
        self.connection, self.data = connection, b""

    def next(self, is_head):
        while b"\r\n\r\n" not in self.data:
            piece = self.connection.recv(65536)
            assert piece, self.data
            self.data += piece
        head, _, self.data = self.data.partition(b"\r\n\r\n")
        size = 0 if is_head else int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(self.data) < size:
            self.data += self.connection.recv(65536)
        body, self.data = self.data[:size], self.data[size:]
        return head, body


class Heads(unittest.TestCase):
    def test_a_head_has_no_body(self):
        """Whole, streamed, large and refused answers: what comes behind the head is the next request's answer."""
        with tempfile.NamedTemporaryFile(suffix=".journal") as journal:
            served = Served(INVAR, "--journal", journal.name, "--max-logprobs", "20")
            self.addCleanup(served.stop)
            small = served.post(COMPLETIONS, prompt="x", max_tokens=5, seed=1)["id"]
            large = served.post(COMPLETIONS, prompt="x", max_tokens=400, seed=1, logprobs=20, ignore_eos=True)["id"]
            for path, status in (("/version", 200), (f"{COMPLETIONS}/{small}", 200), (f"{COMPLETIONS}/{small}?stream=true", 200),
                                 (f"{COMPLETIONS}/{large}?stream=true", 200), (f"{COMPLETIONS}/{large}", 200), ("/nothing", 404), (COMPLETIONS, 405)):
                with self.subTest(path=path):
                    connection = served.raw(f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                    self.addCleanup(connection.close)
                    replies = Replies(connection)
                    head, _ = replies.next(is_head=True)
                    self.assertTrue(head.startswith(b"HTTP/1.1 %d " % status), head)
                    connection.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
                    head, body = replies.next(is_head=False)
                    self.assertTrue(head.startswith(b"HTTP/1.1 200 "), head)
                    self.assertIn(b'"weights"', body)
                    self.assertEqual(replies.data, b"")
            connection = served.raw(b"HEAD /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")  # is refused before its body
            head, _ = Replies(connection).next(is_head=True)
            self.assertTrue(head.startswith(b"HTTP/1.1 404 "), head)
            self.assertEqual(connection.recv(1), b"")
            connection.close()
            served.wait_until(lambda: served.ask("GET", "/load")[2] == {"server_load": 0})


class Bodies(unittest.TestCase):
    def test_a_dripping_body_takes_no_room_of_others(self):
        """Room is taken for what has come; who sends too slowly while others wait is ended."""
        served = Served(INVAR, "--max-bodies-mib", "2")
        self.addCleanup(served.stop)
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "

        def send(size):
            return served.raw(f"{head}{size}\r\n\r\n".encode() + b'{"prompt": "' + b"x" * (size - 14) + b'"}')

        def status(connection):
            return int(read_all(connection).split(b" ")[1])

        dripping = [served.raw(f"{head}500000\r\n\r\n".encode() + b" " * 70_000) for _ in range(3)]
        time.sleep(0.2)
        self.assertEqual(status(send(200_000)), 400)  # its prompt is too long
        self.assertEqual(select.select(dripping, [], [], 0)[0], [])
        self.assertEqual(status(send(900_000)), 400)
        self.assertIn(408, [status(connection) for connection in dripping])

    def test_bodies_that_grow_do_not_wait_for_each_other(self):
        """Together they are far more than there is room for, each is sent piece by piece, and each is answered."""
        served = Served(INVAR, "--max-bodies-mib", "2")
        self.addCleanup(served.stop)
        size, head = 700_000, f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        whole = b'{"prompt": "' + b"x" * (size - 14) + b'"}'
        chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (size, whole)

        def ask(i):
            more, body = ("Transfer-Encoding: chunked", chunked) if i % 2 else (f"Content-Length: {size}", whole)
            connection = served.raw(f"{head}{more}\r\n\r\n".encode())
            for at in range(0, len(body), 100_000):
                connection.sendall(body[at:at + 100_000])
                time.sleep(0.02)
            return int(read_all(connection).split(b" ")[1])

        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            self.assertEqual(set(pool.map(ask, range(12))), {400})


class Limits(unittest.TestCase):
    def test_a_limit_names_what_was_found(self):
        served = Served(INVAR)
        self.addCleanup(served.stop)
        for field, value, words in (("stop", ["s"] * 65, "at most 64 stop strings in stop, found 65"), ("stop", "s" * 1025, "stop of at most 1024 bytes, found 1025"),
                                    ("stop_token_ids", [1] * 4097, "at most 4096 stop_token_ids, found 4097"), ("bad_words", ["w" * 20_000], "bad_words of at most 16384 bytes together, found 20000"),
                                    ("cache_salt", "s" * 1025, "cache_salt of at most 1024 bytes, found 1025"), ("guided_regex", "a" * 20_000, "(regex) of at most 16384 bytes, found 20000"),
                                    ("guided_choice", ["a"] * 4097, "at most 4096 texts in a choice, found 4097"), ("guided_json", {"enum": ["a" * 300_000]}, "(json) of at most 131072 bytes"),
                                    ("allowed_token_ids", [1] * 100_000, "allowed_token_ids, found 100000"), ("n", 129, "n must be in [1, 128], not 129")):
            status, _, answer = served.ask("POST", COMPLETIONS, {"prompt": "x", "max_tokens": 1, field: value})
            self.assertEqual(status, 400, field)
            self.assertIn(words, answer["error"]["message"])
        many = {f"unknown{i}": i for i in range(1024)}
        self.assertIn("at most 1024 fields in the body, found 1026", served.ask("POST", COMPLETIONS, {"prompt": "x", "max_tokens": 1, **many})[2]["error"]["message"])
        same = served.post(COMPLETIONS, prompt="x", max_tokens=30, seed=1, stop=["e", "e", "a"], stop_token_ids=[7, 7, 5])
        self.assertEqual(same["choices"], served.post(COMPLETIONS, prompt="x", max_tokens=30, seed=1, stop=["e", "a"], stop_token_ids=[5, 7])["choices"])


class Signals(unittest.TestCase):
    def test_signals_of_others_end_nothing(self):
        """In the middle of an answer, to the server and to its engine's process."""
        served = Served(INVAR, "--engine-process")
        self.addCleanup(served.stop)
        body = dict(prompt="x", max_tokens=400, seed=1, ignore_eos=True)
        alone = served.post(COMPLETIONS, **body)["choices"]
        connection = served.connect()
        connection.request("POST", COMPLETIONS, json.dumps(body))
        served.wait_until(lambda: served.ask("GET", "/load")[2]["server_load"] > 0)
        engine = children(served.process.pid)
        for process in [served.process.pid] + engine:
            for one in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF):
                os.kill(process, one)
        time.sleep(0.1)
        self.assertEqual(json.loads(connection.getresponse().read())["choices"], alone)
        self.assertEqual(children(served.process.pid), engine)
        self.assertEqual(served.said().count("SIGHUP is ignored"), 1)
        self.assertIsNone(served.process.poll())


def main():
    global INVAR
    INVAR = sys.argv[1]
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:])


if __name__ == "__main__":
    main()
