#!/usr/bin/env python3
"""A server under valid, invalid and aborted requests for a long time. Usage: soak.py INVAR [--minutes N] [--seed N] [-- FLAGS]

Answers to the same request must be equal all the time, refusals must be refusals, and at the end nothing may be left: no
request, no page, no descriptor, no thread; the memory may not have grown by more than a tenth and 32 MiB since the first
quarter; the process must end with 0 and have said nothing of a sanitizer (INVAR may be a build with one).
"""
import argparse
import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib
import random
import re
import sys
import tempfile
import threading
import time

from served import Served

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
          "required": ["a", "b"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
# (path, body, headers): each is answered, and always alike but for ids and times.
VALID = [(COMPLETIONS, {"prompt": f"text {i}", "max_tokens": 4 + 9 * i, "seed": i, "temperature": i / 4, "n": 1 + i % 3}, {})
         for i in range(6)] + [
    (COMPLETIONS, {"prompt": [i] * (20 + 60 * i), "max_tokens": 12, "seed": 1, "logprobs": 3, "echo": i % 2 == 1}, {}) for i in range(4)] + [
    (COMPLETIONS, {"prompt": "x", "max_tokens": 20, "seed": 1, "stop": ["a", "e"], "prompt_logprobs": 2}, {}),
    (COMPLETIONS, {"prompt": "x", "guided_regex": "(ab|cd){1,9}", "max_tokens": 30, "seed": 1}, {}),
    (CHAT, {"messages": HI, "max_tokens": 20, "seed": 2, "logprobs": True, "top_logprobs": 2}, {}),
    (CHAT, {"messages": HI, "max_tokens": 60, "seed": 3, "tools": [TOOL], "tool_choice": "required"}, {}),
    (CHAT, {"messages": HI, "max_tokens": 60, "seed": 4,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}}, {}),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 20, "seed": 5}, {}),
    ("/v1/embeddings", {"input": ["a", [1, 2, 3], "b c"]}, {}),
    ("/tokenize", {"prompt": "some text"}, {}), ("/detokenize", {"tokens": [50, 60, 70]}, {})]
# (path, body, headers, status)
INVALID = [
    (COMPLETIONS, "{", {}, 400), (COMPLETIONS, b"\xff\xfe\x00", {}, 400), (COMPLETIONS, "[" * 5000, {}, 400),
    (COMPLETIONS, {"prompt": 3}, {}, 400), (COMPLETIONS, {"prompt": "x", "max_tokens": -1}, {}, 400),
    (COMPLETIONS, {"prompt": "x", "guided_regex": "((((a{1,99}){1,99}){1,99}){1,99}"}, {}, 400),
    (COMPLETIONS, {"prompt": "x", "model": "../../etc/passwd"}, {}, 404), (COMPLETIONS, {"prompt": [1] * 5000}, {}, 400),
    (CHAT, {"messages": [{"role": 1}]}, {}, 400), (CHAT, {"messages": HI, "tools": [{}]}, {}, 400),
    (COMPLETIONS, '{"prompt": "\\ud800"}', {}, 400), ("/v1/embeddings", {"input": []}, {}, 400),
    ("/nothing/../here", "{}", {}, 404), ("/detokenize", {"tokens": [-1]}, {}, 400),
    (COMPLETIONS, {"prompt": "x"}, {"X-Request-Timeout": "soon"}, 400),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 480, "ignore_eos": True}, {"X-Request-Timeout": "0.001"}, 504),
    (COMPLETIONS, "x" * (2 << 20), {}, 413), ("/admin/weights", {"model": "x"}, {}, 403)]


class Soak:
    def __init__(self, served, seed):
        self.served, self.seed = served, seed
        self.lock, self.said, self.counts, self.faults = threading.Lock(), {}, collections.Counter(), []

    def fault(self, *what):
        with self.lock:
            self.faults.append(what)

    def is_new(self, key, text):
        """Holds what was said first; anything else later is a fault."""
        digest = hashlib.sha256(re.sub(rb'"(id|call_id|item_id)": "[^"]*"|"created(_at)?": \d+', b"", text)).digest()
        with self.lock:
            if self.said.setdefault(key, digest) != digest:
                self.faults.append(("another answer", key, text[:2000]))

    def valid(self, draws):
        number = draws.randrange(len(VALID))
        path, body, headers = VALID[number]
        stream = path in (COMPLETIONS, CHAT, "/v1/responses") and draws.randrange(2) == 0
        headers = dict(headers)
        if draws.randrange(4) == 0:
            headers["Idempotency-Key"] = f"{draws.random()}"
        status, _, answer = self.served.ask("POST", path, {**body, "stream": True} if stream else body, headers)
        if status != 200:
            return self.fault("refused", body, status, answer)
        self.is_new((number, stream), answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def invalid(self, draws):
        path, body, headers, wanted = draws.choice(INVALID)
        try:
            status, _, answer = self.served.ask("POST", path, body, headers)
        except (BrokenPipeError, ConnectionResetError):
            if wanted != 413:  # whose answer may come before all of the body is sent
                raise
            return
        if status != wanted or not answer["error"]["message"]:
            self.fault("not refused", path, str(body)[:200], status, answer)

    def aborted(self, draws):
        body = json.dumps({"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": draws.randrange(2) == 0, "n": 1 + draws.randrange(3)})
        text = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        cut = draws.randrange(1, len(text)) if draws.randrange(3) == 0 else len(text)
        connection = self.served.raw(text[:cut])
        if cut == len(text) and draws.randrange(2):
            connection.recv(draws.randrange(1, 4000))
        time.sleep(draws.random() * 0.05)
        connection.close()

    def smuggled(self, draws):
        connection = self.served.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
                                     b"0\r\n\r\nGET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        data = b""
        while piece := connection.recv(4096):
            data += piece
        connection.close()
        if not data.startswith(b"HTTP/1.1 400") or len(re.findall(rb"HTTP/1.1 \d", data)) != 1:
            self.fault("smuggled", data)

    def work(self, worker, end):
        draws = random.Random(f"{self.seed}.{worker}")
        while time.monotonic() < end and len(self.faults) < 20:
            kind = draws.choices(["valid", "invalid", "aborted", "smuggled"], [12, 6, 5, 1])[0]
            try:
                getattr(self, kind)(draws)
            except Exception as error:  # of the connection: the server is gone, or does not answer
                self.fault(kind, repr(error))
                time.sleep(0.1)
            with self.lock:
                self.counts[kind] += 1

    def run_for(self, seconds, workers=8):
        end = time.monotonic() + seconds
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            [done.result() for done in [pool.submit(self.work, f"{workers}.{i}.{end}", end) for i in range(workers)]]

    def rest(self):
        """(resident bytes, descriptors, threads) when every request is over."""
        self.served.wait_until(lambda: self.served.metric("invar:answers") == 0, 60)
        self.served.wait_until(lambda: self.served.metric("vllm:num_requests_running") + self.served.metric("vllm:num_requests_waiting") == 0)
        self.served.wait_until(lambda: self.served.metric("invar:connections") == 1, 60)
        time.sleep(0.3)  # its connection was the last
        process = pathlib.Path(f"/proc/{self.served.process.pid}")
        return self.served.resident_bytes(), len(list((process / "fd").iterdir())), len(list((process / "task").iterdir()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("invar")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("flags", nargs="*", help="of the server, behind --")
    asked = parser.parse_args()
    # Without this, what the sanitizer keeps of freed memory looks like a leak.
    os.environ.setdefault("ASAN_OPTIONS", "quarantine_size_mb=8:detect_leaks=1")
    with tempfile.TemporaryDirectory(prefix="invar-soak-") as folder:
        served = Served(str(pathlib.Path(asked.invar).resolve()), "--journal", folder + "/journal", "--max-body-mib", "1",
                        "--max-queued-requests", "4096", *asked.flags)
        soak = Soak(served, asked.seed)
        soak.run_for(15 * asked.minutes)
        first = soak.rest()
        soak.run_for(45 * asked.minutes)
        last = soak.rest()
        pages, free = served.metric("invar:kv_pages"), served.metric("invar:kv_pages_free")
        ended = served.stop()
        said = served.last_words
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(soak.counts.items()))
    print(f"{asked.minutes:g} minutes, {counts}; {len(soak.said)} different requests with one answer each; {free:.0f} of {pages:.0f} "
          f"pages free, memory {first[0] >> 20} -> {last[0] >> 20} MiB, descriptors {first[1]} -> {last[1]}, threads {first[2]} -> "
          f"{last[2]}, exit status {ended}")
    faults = [str(fault)[:3000] for fault in soak.faults]
    faults += [f"{free} of {pages} pages came back"] * (free != pages)
    faults += [f"memory grew from {first[0]} to {last[0]} bytes"] * (last[0] > first[0] * 1.1 + (32 << 20))
    faults += [f"descriptors grew from {first[1]} to {last[1]}"] * (last[1] > first[1])
    faults += [f"threads grew from {first[2]} to {last[2]}"] * (last[2] > first[2])
    faults += [f"it ended with {ended}"] * (ended != 0)
    faults += [said] * ("Sanitizer" in said or "runtime error" in said)
    print("\n".join(faults[:20]) if faults else "no fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
