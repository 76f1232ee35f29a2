#!/usr/bin/env python3
"""A server under valid, invalid and aborted requests for a long time.
Usage: soak.py INVAR [--minutes N] [--seed N] [--control] [-- FLAGS]

Answers to the same request must be equal all the time, refusals must be refusals, and at the end nothing may be left: no
request, no block, no descriptor, no thread; the memory may not have grown by more than a tenth and 32 MiB since the first
quarter; the process must end with 0 and have said nothing of a sanitizer (INVAR may be a build with one). Every request
there is must have been made.

--control plants a request without a seed, a refusal that is none, a stream that is held open and a signal that ends the
server, and adds to what memory and threads were measured: each must be found.
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
import signal
import sys
import tempfile
import threading
import time

from served import Served

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
STREAMED = (COMPLETIONS, CHAT, "/v1/responses")
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
    (COMPLETIONS, {"prompt": "x", "guided_regex": "(((a{1,99}){1,99}){1,99}){1,99}"}, {}, 400),
    (COMPLETIONS, {"prompt": "x", "model": "../../etc/passwd"}, {}, 404), (COMPLETIONS, {"prompt": [1] * 5000}, {}, 400),
    (CHAT, {"messages": [{"role": 1}]}, {}, 400), (CHAT, {"messages": HI, "tools": [{}]}, {}, 400),
    (COMPLETIONS, '{"prompt": "\\ud800"}', {}, 400), ("/v1/embeddings", {"input": []}, {}, 400),
    ("/nothing/../here", "{}", {}, 404), ("/detokenize", {"tokens": [-1]}, {}, 400),
    (COMPLETIONS, {"prompt": "x"}, {"X-Request-Timeout": "soon"}, 400),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 480, "ignore_eos": True}, {"X-Request-Timeout": "0.001"}, 504),
    (COMPLETIONS, "x" * (2 << 20), {}, 413), ("/admin/weights", {"model": "x"}, {}, 403)]


class Soak:
    def __init__(self, served, seed, valid=VALID, invalid=INVALID, most_faults=20):
        self.served, self.seed, self.all_valid, self.all_invalid, self.most_faults = served, seed, valid, invalid, most_faults
        self.lock, self.said, self.counts, self.faults = threading.Lock(), {}, collections.Counter(), []
        self.refused, self.begin = collections.Counter(), time.monotonic()

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
        number = draws.randrange(len(self.all_valid))
        path, body, headers = self.all_valid[number]
        stream = path in STREAMED and draws.randrange(2) == 0
        headers = dict(headers)
        if draws.randrange(4) == 0:
            headers["Idempotency-Key"] = f"{draws.random()}"
        status, _, answer = self.served.ask("POST", path, {**body, "stream": True} if stream else body, headers)
        if status != 200:
            return self.fault("refused", body, status, answer)
        self.is_new((number, stream), answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def invalid(self, draws):
        number = draws.randrange(len(self.all_invalid))
        path, body, headers, wanted = self.all_invalid[number]
        try:
            status, _, answer = self.served.ask("POST", path, body, headers)
        except (BrokenPipeError, ConnectionResetError):
            if wanted != 413:  # whose answer may come before all of the body is sent
                raise
            status, answer = wanted, {"error": {"message": "not read"}}
        with self.lock:
            self.refused[number] += 1
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
        while time.monotonic() < end and len(self.faults) < self.most_faults:
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

    def report(self):
        """One line a minute: what was done so far, and how fast."""
        with self.lock:
            seconds, counts = time.monotonic() - self.begin, sorted(self.counts.items())
        return ", ".join(f"{count} {kind} ({count / seconds:.1f}/s)" for kind, count in counts)

    def never_made(self):
        """Requests that were not made, as faults."""
        wanted = [(i, stream) for i, (path, _, _) in enumerate(self.all_valid)
                  for stream in ([False, True] if path in STREAMED else [False])]
        with self.lock:
            faults = [f"never asked: {self.all_valid[i][:2]}, stream {stream}" for i, stream in wanted if (i, stream) not in self.said]
            faults += [f"never asked: {request[:2]}"[:300] for i, request in enumerate(self.all_invalid) if not self.refused[i]]
            return faults + [f"never {kind}" for kind in ("valid", "invalid", "aborted", "smuggled") if not self.counts[kind]]

    def rest(self):
        """(resident bytes, descriptors, threads) when every request is over."""
        for left in ("invar:answers", "vllm:num_requests_running", "vllm:num_requests_waiting"):
            self.served.wait_until(lambda: self.served.metric(left) == 0, 120)
        self.served.wait_until(lambda: self.served.metric("invar:connections") == 1, 120)
        time.sleep(0.3)  # its connection was the last
        return self.measure()

    def measure(self):
        process = pathlib.Path(f"/proc/{self.served.process.pid}")
        return self.served.resident_bytes(), len(list((process / "fd").iterdir())), len(list((process / "task").iterdir()))


def faults_at_end(soak, first, last, left, ended, said):
    """What the end of a soak is held to: (resident bytes, descriptors, threads) after a quarter and at the end, blocks that
    did not come back, the exit status and the words on the error stream."""
    faults = [str(fault)[:3000] for fault in soak.faults] + soak.never_made()
    faults += [f"{left:.0f} blocks did not come back"] * (left != 0)
    faults += [f"memory grew from {first[0]} to {last[0]} bytes"] * (last[0] > first[0] * 1.1 + (32 << 20))
    faults += [f"descriptors grew from {first[1]} to {last[1]}"] * (last[1] > first[1])
    faults += [f"threads grew from {first[2]} to {last[2]}"] * (last[2] > first[2])
    faults += [f"it ended with {ended}"] * (ended != 0)
    return faults + [said] * ("Sanitizer" in said or "runtime error" in said)


def soak_for(served, minutes, seed):
    """Everything, twice: until memory has settled, and three times as long after that."""
    soak, over = Soak(served, seed), threading.Event()

    def tell():
        while not over.wait(60):
            print(f"{(time.monotonic() - soak.begin) / 60:.0f} minutes: {soak.report()}", flush=True)

    threading.Thread(target=tell, daemon=True).start()
    soak.run_for(15 * minutes)
    first = soak.rest()
    soak.run_for(45 * minutes)
    last = soak.rest()
    over.set()
    blocks, free = served.metric("invar:kv_blocks"), served.metric("invar:kv_blocks_free")
    ended = served.stop()
    print(f"{minutes:g} minutes, {soak.report()}; {len(soak.said)} different requests with one answer each; {free:.0f} of {blocks:.0f} "
          f"blocks free, memory {first[0] >> 20} -> {last[0] >> 20} MiB, descriptors {first[1]} -> {last[1]}, threads {first[2]} -> "
          f"{last[2]}, exit status {ended}, sanitizer: {has_sanitizer(served)}")
    faults = faults_at_end(soak, first, last, blocks - free, ended, served.last_words)
    print("\n".join(faults[:20]) if faults else "no fault")
    return 1 if faults else 0


def control(served, seed):
    """One fault of each kind is planted; returns 0 when each was found."""
    drawn = (COMPLETIONS, {"prompt": "x", "max_tokens": 20, "ignore_eos": True}, {})
    soak = Soak(served, seed, [drawn], [(COMPLETIONS, {"prompt": "x", "max_tokens": 1}, {}, 400)], most_faults=1000)
    soak.run_for(3, workers=2)
    first = soak.rest()
    body = json.dumps({"prompt": "x" * 300, "max_tokens": 400, "ignore_eos": True, "stream": True})
    held = served.raw(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    while b"data: " not in held.recv(4096):
        pass
    left = served.metric("invar:kv_blocks") - served.metric("invar:kv_blocks_free")
    last = soak.measure()
    last = (last[0] + last[0] // 5 + (32 << 20), last[1], last[2] + 1)  # as if it had grown
    ended = served.stop(signal.SIGSEGV)
    soak.all_valid = VALID  # most of which were not asked
    faults = "\n".join(faults_at_end(soak, first, last, left, ended, served.last_words))
    wanted = ["another answer", "not refused", "never asked", "blocks did not", "memory grew", "descriptors grew", "threads grew", "it ended with"]
    wanted += ["Sanitizer"] if has_sanitizer(served) else []
    missed = [what for what in wanted if what not in faults]
    print(f"control: {len(wanted) - len(missed)} of {len(wanted)} kinds of fault found" + "".join(f"; missed: {what}" for what in missed))
    return 1 if missed else 0


def has_sanitizer(served):
    return b"__asan_init" in pathlib.Path(served.program).read_bytes() or b"__tsan_init" in pathlib.Path(served.program).read_bytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("invar")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--control", action="store_true")
    parser.add_argument("flags", nargs="*", help="of the server, behind --")
    asked = parser.parse_args()
    # Without this, what the sanitizer keeps of freed memory looks like a leak.
    os.environ.setdefault("ASAN_OPTIONS", "quarantine_size_mb=8:detect_leaks=1")
    Served.patience = 300  # a build with a sanitizer on a busy machine
    with tempfile.TemporaryDirectory(prefix="invar-soak-") as folder:
        served = Served(str(pathlib.Path(asked.invar).resolve()), "--journal", folder + "/journal", "--max-body-mib", "1",
                        "--max-queued-requests", "4096", *asked.flags)
        return control(served, asked.seed) if asked.control else soak_for(served, asked.minutes, asked.seed)


if __name__ == "__main__":
    sys.exit(main())
