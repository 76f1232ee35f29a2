#!/usr/bin/env python3
"""What must not end the server, keep others waiting or confuse who stands before it. Usage: robust_test.py INVAR [unittest arguments]"""
import concurrent.futures
import json
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from served import FAST, Endless, Served, children, events, fast_and, made, read_all

INVAR = None  # the program; set by main
COMPLETIONS = "/v1/completions"
ROOT = pathlib.Path(__file__).resolve().parents[2]


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


class Prefixes(unittest.TestCase):
    def cached_tokens(self, *flags):
        """Tokens of the second of two requests that came from the cache: of one key, of two."""
        served = Served(INVAR, "--api-key", "a", "--api-key", "b", *flags)
        self.addCleanup(served.stop)
        found = []
        for i, keys in enumerate(("aa", "ab")):
            for key in keys:
                before = served.metric("vllm:prefix_cache_hits_total")
                body = dict(prompt=[5 + i] * 200, max_tokens=1, seed=1)
                self.assertEqual(served.ask("POST", COMPLETIONS, body, {"Authorization": f"Bearer {key}"})[0], 200)
                served.wait_until(lambda: served.metric("vllm:prefix_cache_queries_total") > 0)
            found.append(served.metric("vllm:prefix_cache_hits_total") - before)
        return found

    def test_the_cache_does_not_tell_another_key_s_prompts(self):
        same, other = self.cached_tokens()
        self.assertGreater(same, 100)
        self.assertEqual(other, 0)
        same, other = self.cached_tokens("--share-prefixes")
        self.assertGreater(other, 100)
        self.assertEqual(same, other)


class Lines(unittest.TestCase):
    def test_the_journal_keeps_what_answers_are_made_from(self):
        """Not the rest of a body, and each part of a conversation once."""
        with tempfile.TemporaryDirectory(prefix="invar-robust-") as directory:
            served = Served(INVAR, "--journal", f"{directory}/journal")
            self.addCleanup(served.stop)
            size = lambda: sum(path.stat().st_size for path in pathlib.Path(directory).iterdir())
            before = size()
            large = "x" * (2 << 20)
            bodies = {COMPLETIONS: dict(prompt="x", max_tokens=5, seed=1, user=large, unknown=large, stop=["never"], logprobs=2),
                      "/v1/chat/completions": dict(messages=[{"role": "user", "content": "hi", "unknown": large}], max_tokens=5, metadata={"m": large}, seed=1),
                      "/v1/messages": dict(messages=[{"role": "user", "content": "hi"}], max_tokens=5, metadata={"user_id": large}, seed=1),
                      "/v1/responses": dict(input=[{"role": "user", "content": "hi", "unknown": large}], max_output_tokens=5, metadata={"m": large}, seed=1)}
            for path, body in bodies.items():
                status, _, first = served.ask("POST", path, body, {"Idempotency-Key": path})
                self.assertEqual(status, 200, first)
                self.assertEqual(served.ask("POST", path, body, {"Idempotency-Key": path})[2], first)
                self.assertEqual(served.ask("GET", f"{path}/{first['id']}")[2], first)
                self.assertEqual(served.ask("POST", path, {**body, "seed": 2}, {"Idempotency-Key": path})[0], 422)
            self.assertLess(size() - before, 1 << 20)
            items = first["output"]
            again = served.post("/v1/responses", input="and", previous_response_id=first["id"], max_output_tokens=5, seed=1)
            said = [*bodies["/v1/responses"]["input"], *items, {"role": "user", "content": "and"}]
            whole = served.post("/v1/responses", input=said, max_output_tokens=5, seed=1)
            self.assertEqual(again["output"][0]["content"], whole["output"][0]["content"])
            self.assertEqual(again["usage"]["input_tokens"], whole["usage"]["input_tokens"])
            third = served.post("/v1/responses", input="so", previous_response_id=again["id"], max_output_tokens=5, seed=1)
            said += [*again["output"], {"role": "user", "content": "so"}]  # the first of them, too
            whole = served.post("/v1/responses", input=said, max_output_tokens=5, seed=1)
            self.assertEqual(third["usage"]["input_tokens"], whole["usage"]["input_tokens"])
            for size, store, status in ((1 << 20, True, 200), (2 << 20, True, 400), ((2 << 20) - 1000, False, 200), (3 << 20, False, 400)):
                body = dict(input="y " * size, truncate_prompt_tokens=10, max_output_tokens=2, store=store)
                self.assertEqual(served.ask("POST", "/v1/responses", body)[0], status, size)



class Limits(unittest.TestCase):
    def test_a_limit_names_what_was_found(self):
        served = Served(INVAR)
        self.addCleanup(served.stop)
        for field, value, words in (("stop", ["s"] * 65, "at most 64 stop strings in stop, found 65"), ("stop", "s" * 1025, "stop of at most 1024 bytes, found 1025"),
                                    ("stop_token_ids", [1] * 4097, "at most 4096 stop_token_ids, found 4097"), ("bad_words", ["w" * 20_000], "bad_words of at most 16384 bytes together, found 20000"),
                                    ("cache_salt", "s" * 1025, "cache_salt of at most 1024 bytes, found 1025"), ("guided_regex", "a" * 20_000, "(regex) of at most 16384 bytes, found 20000"),
                                    ("guided_choice", ["a"] * 4097, "at most 4096 texts in a choice, found 4097"), ("guided_json", {"enum": ["a" * 300_000]}, "(json) of at most 262144 bytes"),
                                    ("allowed_token_ids", [1] * 100_000, "allowed_token_ids, found 100000"), ("n", 129, "n must be in [1, 128], not 129")):
            status, _, answer = served.ask("POST", COMPLETIONS, {"prompt": "x", "max_tokens": 1, field: value})
            self.assertEqual(status, 400, field)
            self.assertIn(words, answer["error"]["message"])
            self.assertEqual(answer["error"]["param"], field)
        self.assertEqual(served.ask("POST", COMPLETIONS, {"prompt": "x", "cache_salt": "s" * (4 << 20)})[2]["error"]["param"], "cache_salt")
        many = {f"unknown{i}": i for i in range(1024)}
        self.assertIn("at most 1024 fields in the body, found 1026", served.ask("POST", COMPLETIONS, {"prompt": "x", "max_tokens": 1, **many})[2]["error"]["message"])
        same = served.post(COMPLETIONS, prompt="x", max_tokens=30, seed=1, stop=["e", "e", "a"], stop_token_ids=[7, 7, 5])
        self.assertEqual(same["choices"], served.post(COMPLETIONS, prompt="x", max_tokens=30, seed=1, stop=["e", "a"], stop_token_ids=[5, 7])["choices"])

    def test_the_pages_say_them(self):
        header = (ROOT / "src/frontend/request_limits.h").read_text()
        limits = {name: eval(value) for name, value in re.findall(r"(k\w+) = ([\d <]+)", header)}
        self.assertGreater(len(limits), 10)
        page, api = (ROOT / "docs/requests.md").read_text(), (ROOT / "docs/openapi.yaml").read_text()
        for name, limit in limits.items():
            said = f"{limit >> 20} MiB" if limit >> 20 else f"{limit:,}"
            self.assertIn(said, page.partition("### How much")[2].partition("A request beyond them")[0], name)
        for name in ("kMaxFormBytes", "kMaxRegexBytes"):
            self.assertIn(f"at most {limits[name]:,} bytes", api, name)

    def test_what_requests_hold_is_bounded(self):
        """Each holds 1.5 MiB: the automaton of its stop strings."""
        served = Endless(INVAR, "--max-queued-mib", "8", "--max-num-seqs", "1")
        self.addCleanup(served.stop)
        stops = [f"{i:02}" + "ab" * 511 for i in range(64)]
        ask = lambda i: served.ask("POST", COMPLETIONS, dict(prompt="x", max_tokens=300, ignore_eos=True, seed=i, stop=stops))[0]
        first = served.begin()  # has the only place
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            asked = [pool.submit(ask, i) for i in range(12)]
            served.wait_until(lambda: served.metric("vllm:num_requests_waiting") + sum(one.done() for one in asked) == 12)
            first.close()
            self.assertEqual({one.result() for one in asked}, {200, 429})
        self.assertEqual(ask(1), 200)  # what was held is free again

    def test_routed_experts_count_before_they_are_kept(self):
        """Of a token so many numbers as its experts in all layers, and of every answer."""
        with tempfile.TemporaryDirectory(prefix="invar-experts-") as model:
            subprocess.run([INVAR, "make-model", model, "--preset", "tiny-moe"], check=True, capture_output=True)
            served = Served(INVAR, "--max-queued-mib", "1", command=[INVAR, "serve", model, "--host", "127.0.0.1", "--port", "0", "--served-model-name", "m",
                                                                     *fast_and(["--max-queued-mib", "1"])])
            self.addCleanup(served.stop)
            body = dict(prompt=[5] * 100, max_tokens=400, ignore_eos=True, temperature=1, seed=1)
            self.assertEqual(served.ask("POST", COMPLETIONS, dict(body, n=128, max_tokens=2))[0], 200)
            status, _, answer = served.ask("POST", COMPLETIONS, dict(body, n=128, return_routed_experts=True))
            self.assertEqual((status, answer["error"]["code"]), (400, "request_too_large"), answer)
            choice = served.post(COMPLETIONS, **dict(body, max_tokens=5), return_routed_experts=True, return_token_ids=True)["choices"][0]
            self.assertEqual((choice["prompt_token_ids"], len(choice["token_ids"])), ([5] * 100, 5))
            rows = choice["prompt_routed_experts"], choice["routed_experts"]
            self.assertEqual([len(part) for part in rows], [100, 4])
            self.assertEqual({len(row) for part in rows for row in part}, {len(rows[0][0])})


class Shares(unittest.TestCase):
    """Beside a key that fills all it can at the lowest priority number."""

    def beside_a_flood(self, *flags):
        """How many tokens the flood got while the other key's request was answered, and the status of a large one."""
        served = Served(INVAR, "--api-key", "a", "--api-key", "b", "--max-num-seqs", "4", "--max-queued-requests", "64",
                        "--max-model-len", "1024", *flags)
        self.addCleanup(served.stop)

        def request(method, path, key, **body):
            data = json.dumps(body) if body else ""
            return f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(data)}\r\n\r\n{data}".encode()

        flood = [served.raw(request("POST", COMPLETIONS, "a", prompt="x", max_tokens=800, ignore_eos=True, priority=-1000, n=4)) for _ in range(16)]
        refused = lambda: [connection for connection in select.select(flood, [], [], 0)[0] if connection.recv(12, socket.MSG_PEEK) == b"HTTP/1.1 429"]
        served.wait_until(lambda: served.metric("vllm:num_requests_running") == 4)
        if flags:
            time.sleep(0.2)
            self.assertEqual(refused(), [])
        else:  # a key has half of the places, and these the flood's first
            served.wait_until(refused)
        # In one piece: the server's clock, not this test's.
        metrics = request("GET", "/metrics", "b")
        connection = served.raw(metrics + request("POST", COMPLETIONS, "b", prompt="y", max_tokens=20, seed=1, ignore_eos=True) + metrics)
        replies = Replies(connection)
        (_, before), (head, answer), (_, after) = (replies.next(is_head=False) for _ in range(3))
        tokens = lambda text: float(re.search(rb"^vllm:generation_tokens_total{[^}]*} (\S+)$", text, re.M)[1])
        for one in (*flood, connection):
            one.close()
        return int(head.split()[1]), tokens(after) - tokens(before), json.loads(answer)

    def test_a_key_that_floods_delays_nobody_else(self):
        status, during, answer = self.beside_a_flood()
        self.assertEqual(status, 200)
        self.assertLess(during, 400)  # about four at a time
        free, longer, _ = self.beside_a_flood("--fair-by", "none")
        self.assertTrue(free == 429 or longer > 1000, (free, longer))  # the control
        alone = Served(INVAR)
        self.addCleanup(alone.stop)
        self.assertEqual(alone.post(COMPLETIONS, prompt="y", max_tokens=20, seed=1, ignore_eos=True)["choices"], answer["choices"])

    def test_priority_orders_a_key_s_own_requests(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        log = pathlib.Path(folder.name, "log")
        served = Endless(INVAR, "--api-key", "a", "--api-key", "b", "--api-key", "c", "--admin-key", "c", "--max-num-seqs", "1", "--log-requests", str(log))
        self.addCleanup(served.stop)
        late, soon, other, admin = names = range(1, 5)  # seeds, which the log names

        def ask(name, key, priority):
            served.ask("POST", COMPLETIONS, dict(prompt="x", seed=name, max_tokens=20, ignore_eos=True, priority=priority), {"Authorization": f"Bearer {key}"})

        def ended():
            """In the server's order: clients may hear of it in another one."""
            return [json.loads(line)["seed"] for line in log.read_text().splitlines()]

        def live():
            return served.metric("vllm:num_requests_running") + served.metric("vllm:num_requests_waiting")

        first = served.begin({"Authorization": "Bearer a"}, seed=0, priority=0)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for name, key, priority in zip(names, "aabc", (5, -5, 7, -1)):
                pool.submit(ask, name, key, priority)
                served.wait_until(lambda: live() + len(ended()) == name + 1)
            served.wait_until(lambda: admin in ended())  # beside the first, which has the only place and gives it up
            self.assertNotIn(late, ended())
            first.close()
        self.assertLess(ended().index(soon), ended().index(late))
        self.assertLess(ended().index(other), ended().index(late))


class AdminsDoors(unittest.TestCase):
    """What changes the server for everybody."""

    def documented(self):
        """Paths of the table in docs/server.md."""
        section = (ROOT / "docs/server.md").read_text().split("| path, all of them POST |")[1].split("\n\n")[0]
        return {path for row in section.splitlines()[2:] for path in re.findall(r"`(/[^`]+)`", row.split("|")[1])}

    def test_the_table_has_all_of_them(self):
        rows = re.findall(r'\{"(?:GET|POST|DELETE)", "([^"]+)",[^}]*?\b(?:admin|trainer)\b', (ROOT / "src/server/routes.cc").read_text())
        self.assertGreater(len(rows), 25)
        self.assertEqual(set(rows), self.documented())

    def test_they_are_shut_to_one_of_several_keys(self):
        served = Served(INVAR, "--api-key", "a", "--api-key", "b")
        self.addCleanup(served.stop)
        for path in sorted(self.documented()):
            for key in ("a", "b"):
                status, _, answer = served.ask("POST", path, {}, {"Authorization": f"Bearer {key}"})
                self.assertEqual((status, answer["error"]["code"]), (403, "no_admin_key"), (path, answer))
        self.assertEqual(served.ask("GET", "/flush_cache", headers={"Authorization": "Bearer a"})[0], 403)
        self.assertEqual(served.ask("POST", COMPLETIONS, dict(prompt="x", max_tokens=1), {"Authorization": "Bearer a"})[0], 200)

    def test_the_admins_key_opens_them(self):
        served = Served(INVAR, "--api-key", "a", "--api-key", "b", "--admin-key", "root")
        self.addCleanup(served.stop)
        for path in sorted(self.documented()):
            self.assertEqual(served.ask("POST", path, {}, {"Authorization": "Bearer a"})[0], 401, path)
        for path in ("/pause", "/resume", "/sleep", "/wake_up", "/abort_requests", "/flush_cache"):
            self.assertEqual(served.ask("POST", path, {}, {"Authorization": "Bearer root"})[0], 200, path)
        self.assertEqual(served.ask("POST", COMPLETIONS, dict(prompt="x", max_tokens=1), {"Authorization": "Bearer b"})[0], 200)

    def test_a_lab_has_one_key(self):
        done = subprocess.run([INVAR, "serve", "--lab", "--port", "0", "--api-key", "a", "--api-key", "b", *made(), *FAST], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--lab lets each client change the engine for all: expected one --api-key, found 2", done.stderr)


class Pages(unittest.TestCase):
    def test_without_a_key_it_is_for_this_machine_and_its_own_pages(self):
        served = Served(INVAR, command=[INVAR, "serve", *made(), "--port", "0", *FAST])  # listens on 127.0.0.1 alone
        self.addCleanup(served.stop)
        ask = lambda **headers: served.ask("GET", "/v1/models", headers={name.title(): value for name, value in headers.items()})
        own = f"127.0.0.1:{served.port}"
        for host in (own, f"localhost:{served.port}", "LOCALHOST", "invar", "[::1]:80", "10.1.2.3"):
            self.assertEqual(ask(host=host)[0], 200, host)
        for host in ("evil.example", f"evil.example:{served.port}", "127.0.0.1.evil.example", "[evil.example]", "localhost.evil.example"):
            status, _, answer = ask(host=host)
            self.assertEqual((status, answer["error"]["code"]), (403, "host_not_allowed"), host)
        self.assertEqual(ask(host=own, origin=f"http://{own}")[0], 200)
        for origin in ("null", "https://evil.example", f"http://evil.example/{own}", f"http://localhost:{served.port + 1}", own):
            status, headers, answer = ask(host=own, origin=origin)
            self.assertEqual((status, answer["error"]["code"]), (403, "origin_not_allowed"), origin)
            self.assertNotIn("Access-Control-Allow-Origin", headers)
        # A page needs no permission to send this one: it must not be answered.
        body = json.dumps(dict(prompt="x", max_tokens=1))
        status, _, _ = served.ask("POST", COMPLETIONS, body, {"Origin": "https://evil.example", "Content-Type": "text/plain"})
        self.assertEqual(status, 403)
        self.assertEqual(served.metric("vllm:prompt_tokens_total"), 0)

    def test_who_may_ask_is_said_as_vllm_does(self):
        served = Served(INVAR, "--allowed-origins", '["https://a.example", "https://b.example"]', "--allowed-hosts", "invar.example")
        self.addCleanup(served.stop)
        for origin, status in (("https://a.example", 200), ("https://b.example", 200), ("https://c.example", 403)):
            found, headers, _ = served.ask("GET", "/v1/models", headers={"Origin": origin, "Host": "invar.example"})
            self.assertEqual((found, headers["Access-Control-Allow-Origin"]), (status, origin if status == 200 else None))
        served = Served(INVAR, "--allowed-hosts", "*.internal,*.local")
        self.addCleanup(served.stop)
        for host, status in (("host.docker.internal:8000", 200), ("box.local", 200), ("internal.example", 403), ("local", 200)):
            found, _, answer = served.ask("GET", "/v1/models", headers={"Host": host})
            self.assertEqual(found, status, host)
        self.assertIn("*.internal", served.ask("GET", "/v1/models", headers={"Host": "a.example"})[2]["error"]["message"])
        served = Served(INVAR, "--allowed-origins", '["*"]')
        self.addCleanup(served.stop)
        self.assertEqual(served.ask("GET", "/v1/models", headers={"Origin": "null"})[1]["Access-Control-Allow-Origin"], "*")

    def test_a_stream_that_waits_says_that_it_does(self):
        for seconds, expected in ((1, True), (15, False)):
            served = Endless(INVAR, "--max-num-seqs", "1", "--stream-comment-seconds", str(seconds))
            self.addCleanup(served.stop)
            busy = served.begin()
            body = json.dumps({"prompt": "x", "max_tokens": 2, "stream": True}).encode()
            waits = served.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            waits.settimeout(3)
            found = b""
            try:
                while b": still here\n\n" not in found:
                    found += waits.recv(4096)
            except TimeoutError:
                pass
            self.assertEqual(b": still here\n\n" in found, expected, found)
            busy.close()
            waits.settimeout(served.patience)
            while b"[DONE]" not in found:
                found += waits.recv(4096)
            waits.close()

    def test_a_lab_is_not_for_everybody(self):
        done = subprocess.run([INVAR, "serve", "--lab", "--host", "0.0.0.0", "--port", "0", *made(), *FAST], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--lab lets clients change the engine: expected --api-key", done.stderr)


class StandingStill(unittest.TestCase):
    """SIGSTOP to an engine's process: nothing comes from it, and its socket stands."""

    def test_its_answers_come_from_another_one(self):
        ask = [dict(prompt=f"question {i}", max_tokens=24, seed=i, temperature=0.9, ignore_eos=True, logits_hash=True) for i in range(6)]
        plain = Served(INVAR)
        self.addCleanup(plain.stop)
        answer_of = lambda served, body: served.post(COMPLETIONS, **body)["choices"]
        expected = [answer_of(plain, body) for body in ask]
        self.assertNotEqual(expected[0], expected[1])  # the control: they can differ
        for flags in (("--engine-process",), ("--data-parallel-size", "2", "--distributed-executor-backend", "mp")):
            served = Served(INVAR, *flags)
            self.addCleanup(served.stop)
            engines = children(served.process.pid)
            self.assertEqual(len(engines), 2 if "mp" in flags else 1)
            os.kill(engines[0], signal.SIGSTOP)
            before = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(len(ask)) as pool:
                found = list(pool.map(lambda body: answer_of(served, body), ask))
            self.assertEqual(found, expected)
            self.assertLess(time.monotonic() - before, 15)
            self.assertNotIn(engines[0], children(served.process.pid))
            self.assertIn("the engine's process gives no sign of life", served.said())
            self.assertEqual(served.ask("GET", "/health")[0], 200)


class Signals(unittest.TestCase):
    def test_signals_of_others_end_nothing(self):
        """In the middle of an answer, to the server and to its engine's process."""
        served = Served(INVAR, "--engine-process")
        self.addCleanup(served.stop)
        body = dict(prompt="x", max_tokens=400, seed=1, ignore_eos=True)
        texts = lambda data: [event["choices"] for event in events(data)]
        alone = texts(served.stream(COMPLETIONS, **body))
        connection = served.connect()
        connection.request("POST", COMPLETIONS, json.dumps({**body, "stream": True}))
        reply = connection.getresponse()
        data = reply.read(100)  # the engine has begun
        engine = children(served.process.pid)
        for process in [served.process.pid] + engine:
            for one in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF):
                os.kill(process, one)
        self.assertEqual(texts(data + reply.read()), alone)
        self.assertEqual(children(served.process.pid), engine)
        served.wait_until(lambda: "SIGHUP is ignored" in served.said())
        self.assertEqual(served.said().count("SIGHUP is ignored"), 1)
        self.assertIsNone(served.process.poll())


def main():
    global INVAR
    INVAR = sys.argv[1]
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:])


if __name__ == "__main__":
    main()
