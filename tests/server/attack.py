#!/usr/bin/env python3
"""Attacks that must not take the server down. Usage: attack.py INVAR [ATTACK ...] [--quick] [--busy] [--no-bars]

Each attack runs against its own server of models/story on two threads, to which a well-behaved client sends short
requests, one after another, alone and beside the attack. Bars: the longest of them beside it waits less than 250 ms more
than the median of those alone; the server's memory grows by less than 96 MiB, and all but 16 of it is given back within
two seconds; every answer of the attack has a status that is expected. --quick makes the attacks smaller. --busy is for a
machine that has other work: a wait is the time that the server's threads computed in it, by its two threads, and not what
the clock says (below 8 s), and beside it stands how long they waited for cores; --most-ms takes another bar than 250 for it. ctest uses all three. --no-bars only measures, and ends with 0.

  chunks       chunk extensions without end, without a key
  bodies       bodies of 32 MiB that are never complete, without a key and with one
  answers      2048 texts and n 128; requests of 800 answers whose client leaves; two SIGTERMs in the middle
  logprobs     prompt_logprobs 1024 and 20 on four long prompts
  embeddings   long texts, and clients that leave before the answer
  marks        prompts of combining marks, which normalization has to sort
  prompts      20 prompts of 10 MB
  grammars     forms of answers that take long to compile
  forms        200 regular expressions of 16 KB, alternations of thousands of counted classes, look-aheads that are refused;
               a hundred answers whose masks each take nearly what one may; what the server keeps of them
  fields       each field of docs/openapi.yaml at its limit with n 128, which is answered, and far beyond it, which is refused; of
               another key, whose share of the places they take
  journal      large bodies that the journal must not keep, GETs of their lines, responses that go on from a large one
  dripping     bodies that take all room and then come 64 KiB at a time
  tokens       60 KB to /tokenize, many at a time
  keys         one key fills its places at the lowest priority number, beside another one's requests
  rollouts, members, likelihoods, vectors, texts, lists, trees, heads: tests/server/door_attacks.py
"""
import argparse
import http.client
import json
import multiprocessing
import os
import pathlib
import random
import re
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time

import door_attacks
import fields as openapi
from served import Served

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_MS, MOST_GROWN_MIB, MOST_KEPT_MIB = 250, 96, 16
THREADS = 2  # that the server computes on
MOST_STILL_MS = 8000  # by the clock, with --busy: in which it waits for something else
KEY = {"Authorization": "Bearer k"}
COMPLETIONS, EMBEDDINGS = "/v1/completions", "/v1/embeddings"
SECONDS = 40  # no attack lasts longer but one
MIB = 1 << 20


def status_of(connection):
    """Of the answer that is there or comes; 0: none, the connection was closed."""
    try:
        line = connection.recv(64)
        return int(line.split()[1]) if line.startswith(b"HTTP/1.1 ") else 0
    except (OSError, IndexError, ValueError):
        return 0


def head(path, more, key="k", method="POST"):
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{f'Authorization: Bearer {key}' + chr(13) + chr(10) if key else ''}{more}\r\n\r\n".encode()


class Attacker:
    """What an attack has to do with: one server's port, a size, an end."""

    def __init__(self, port, quick):
        self.port, self.quick = port, quick
        self.last(8 if quick else SECONDS)
        self.statuses = {}
        self.lock = threading.Lock()

    def last(self, seconds):
        self.end = time.monotonic() + seconds

    def saw(self, status):
        with self.lock:
            self.statuses[status] = self.statuses.get(status, 0) + 1

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=max(1, self.end - time.monotonic()))

    def pour(self, begin, piece, times):
        """Sends `piece` so often, or until the server has enough of it."""
        connection = self.connect()
        try:
            connection.sendall(begin)
            for _ in range(times):
                if time.monotonic() > self.end:
                    break
                connection.sendall(piece)
        except OSError:
            pass
        return connection

    def ask(self, path, body, leave_after=None, key="k"):
        """One whole request. Returns the answer's bytes; of a client that leaves before it ends the status that it saw."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection = self.connect()
            connection.sendall(head(path, f"Connection: close\r\nContent-Length: {len(data)}", key) + data)
            if leave_after is not None:
                connection.settimeout(leave_after)
                try:
                    line = connection.recv(64)
                    status = int(line.split()[1]) if line.startswith(b"HTTP/1.1 ") else 0
                except TimeoutError:
                    status = "left"
                self.saw(status)
                connection.close()
                return status
            self.saw(status_of(connection))
            answer = b""
            while (piece := connection.recv(1 << 16)) and time.monotonic() < self.end:
                answer += piece
            connection.close()
            return answer
        except TimeoutError:
            self.saw("no answer in time")
        except OSError:
            self.saw(0)
        return 0 if leave_after is not None else b""

    def at_once(self, tasks):
        threads = [threading.Thread(target=task) for task in tasks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def chunks(a):
    piece = b"x" * MIB
    for key in ("", "k"):
        for begin, more, times in ((b"1;", piece, 96 if a.quick else 400), (b"", (b"1;" + b"y" * 4000 + b"\r\nA\r\n") * 200, 100 if a.quick else 500)):
            connection = a.pour(head(COMPLETIONS, "Transfer-Encoding: chunked", key) + begin, more, times)
            a.saw(status_of(connection))
            connection.close()


def bodies(a):
    def one(key):
        connection = a.pour(head(COMPLETIONS, f"Content-Length: {32 * MIB}", key), b" " * MIB, 31)
        if not key:
            a.saw(status_of(connection))
        time.sleep(max(0, min(0.5 if a.quick else 3, a.end - time.monotonic())))
        connection.close()
    a.at_once([lambda: one("")] * (6 if a.quick else 12))
    a.at_once([lambda: one("k")] * (4 if a.quick else 12))


def answers(a):
    for _ in range(2 if a.quick else 5):
        a.ask(COMPLETIONS, {"prompt": ["many texts"] * 2048, "n": 128, "max_tokens": 200, "ignore_eos": True}, leave_after=3)
    for _ in range(4 if a.quick else 20):
        a.ask(COMPLETIONS, {"prompt": ["many texts"] * 100, "n": 8, "max_tokens": 200, "ignore_eos": True}, leave_after=0.1)


def logprobs(a):
    prompts = [[random.Random(i).randrange(256, 2900) for _ in range(1990)] for i in range(4)]
    for n in (1024, 20):
        for _ in range(1 if a.quick else 3):
            a.ask(COMPLETIONS, {"prompt": prompts[:2 if a.quick and n == 20 else 4], "max_tokens": 1, "prompt_logprobs": n})


def embeddings(a):
    texts = [[random.Random(i).randrange(256, 2900) for _ in range(2000)] for i in range(2 if a.quick else 8)]
    a.ask(EMBEDDINGS, {"input": texts})
    for _ in range(1 if a.quick else 3):
        a.ask(EMBEDDINGS, {"input": texts * 4}, leave_after=0.1)
    time.sleep(1)


def marks(a):
    random.seed(1)
    for size in (100_000,) if a.quick else (100_000, 400_000, 1_000_000):
        for text in ("a" + "\u0301" * (size // 2), "".join(random.choice("\u0301\u0316\u0327\u0345\u0591") for _ in range(size // 2)), "\u1100\u1161" * (size // 6)):
            a.ask(COMPLETIONS, {"prompt": text, "max_tokens": 1})


def prompts(a):
    data = json.dumps({"prompt": "many words of one prompt " * 400_000, "max_tokens": 1}).encode()
    a.at_once([lambda: a.ask(COMPLETIONS, data)] * (8 if a.quick else 20))


def grammars(a):
    value = {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": 200} for i in range(40)}}
    for i in range(1 if a.quick else 4):
        a.ask(COMPLETIONS, {"prompt": "x", "max_tokens": 4, "guided_json": value}, leave_after=3)
        a.ask(COMPLETIONS, {"prompt": "x", "max_tokens": 4, "guided_regex": f"(a|b)*a(a|b){{{20 + i}}}c"}, leave_after=3)


def forms(a):
    rng = random.Random(5)
    pieces = ["[^{0}]{{{1},{2}}}", "({0}|{0}{0})?", "[{0}-z]+{1}", "({0}{{{1},{2}}})*"]

    def regex():
        text = ""
        while len(text) < 16_000:
            low = rng.randrange(200)
            text += rng.choice(pieces).format(rng.choice("abcdefgh"), low, low + rng.randrange(9))
        return text
    def counted(count, step, more=0, name=""):
        return " | ".join(f'[^x]{{{i * step + more},}} "n{name}{i}"' for i in range(count))
    count = 20 if a.quick else 200
    a.last(SECONDS)
    a.at_once([lambda form=regex(): a.ask(COMPLETIONS, {"prompt": "x", "max_tokens": 4, "guided_regex": form}) for _ in range(count)])
    for step in (1, 7):
        rules = " | ".join(f'[^x]{{{i % 300},{i % 300 + step}}} "n{i}"' for i in range(4500))
        a.at_once([lambda: a.ask(COMPLETIONS, {"prompt": "x", "max_tokens": 40, "guided_grammar": f"root ::= ({rules})*"})] * 2)
        # Few enough tokens for the cache: whoever waits for its memory waits for no form.
        a.at_once([lambda: a.ask(COMPLETIONS, {"prompt": "x", "max_tokens": 100 if a.quick else 200, "n": 8, "guided_grammar": f"root ::= ({counted(20, step)})*"})] * 4)
    # Each mask of a hundred answers takes nearly what one may. They have a block of the cache each, and leave some of its 128.
    for turn in range(1 if a.quick else 4):
        a.at_once([lambda form=f"root ::= ({counted(110, 1, turn, f'{i}y')})*": a.ask(COMPLETIONS, {"prompt": "x", "max_tokens": 16, "n": 8, "guided_grammar": form}) for i in range(14)])
    a.at_once([lambda: a.ask(COMPLETIONS, {"prompt": "x", "max_tokens": 4, "guided_regex": "(?=.*a.{18}b)(?=.*c.{17}d).*"})] * (8 if a.quick else 40))


def fields(a):
    n = 16 if a.quick else 128
    a.last(seconds_of(fields, a.quick))
    for bodies, expected in ((openapi.bodies(n), (200, 429)), (openapi.too_large(n), (400,))):
        for field, path, body in bodies:
            if time.monotonic() > a.end:
                return a.saw("no time for all")
            status = a.ask(path, body, leave_after=20, key="other")
            if status not in (*expected, 0):
                a.saw(f"{status} to {field} of {path}")


def journal(a):
    size, count = (2 * MIB, 8) if a.quick else (14 * MIB, 40)
    said = json.dumps({"input": [{"role": "user", "content": "word " * 20, "metadata": "x" * min(size, 3 * MIB)}], "max_output_tokens": 2, "metadata": {"m": "x" * size}}).encode()
    answer = a.ask("/v1/responses", said)
    found = re.search(rb'"id": ?"(resp_[0-9a-f]+)"', answer or b"")
    if not found:
        return
    name = found[1].decode()

    def get():
        connection = a.connect()
        connection.sendall(head(f"/v1/responses/{name}", "Connection: close", method="GET"))
        a.saw(status_of(connection))
        connection.close()
    a.at_once([get] * count)
    a.at_once([lambda: a.ask("/v1/responses", {"input": "x", "max_output_tokens": 2, "previous_response_id": name})] * (4 if a.quick else 24))
    a.ask("/v1/responses", {"input": "word " * (size // 5), "max_output_tokens": 2, "truncate_prompt_tokens": 100})


def dripping(a):
    bodies = [a.pour(head(COMPLETIONS, f"Content-Length: {20 * MIB}"), b" " * (64 << 10), 2) for _ in range(8)]
    data = json.dumps({"prompt": "many words of one prompt " * 400_000, "max_tokens": 1}).encode()
    a.at_once([lambda: a.ask(COMPLETIONS, data)] * 4)
    for connection in bodies:
        connection.close()


def tokens(a):
    data = json.dumps({"prompt": "many words of one prompt " * 2400}).encode()
    a.at_once([lambda: a.ask("/tokenize", data)] * (12 if a.quick else 48))


def keys(a):
    """Of another key than the bystander's."""
    body = {"prompt": "x", "max_tokens": 1000, "ignore_eos": True, "priority": -1000, "n": 8}
    a.at_once([lambda: a.ask(COMPLETIONS, body, leave_after=4 if a.quick else 20, key="other")] * 60)


# The attack and the statuses that it may see ("left": the client went before the answer; 0: the connection was closed).
ATTACKS = {chunks: {400, 401, 413, 0}, bodies: {401, 0}, answers: {400, 429, "left"}, logprobs: {200, 400}, embeddings: {200, 400, 429, "left"}, marks: {200, 400}, prompts: {400, 503},
           grammars: {200, 400, "left"}, forms: {200, 400, 429}, fields: {200, 400, 429}, journal: {200, 400, 429}, dripping: {400, 503}, tokens: {200}, keys: {200, 429, "left"}, **door_attacks.ATTACKS}


# What the server of an attack has beside the flags of all.
FLAGS = {**{attack: ["--api-key", "other"] for attack in (keys, *door_attacks.ATTACKS)}, fields: ["--api-key", "other", "--reasoning-parser", "qwen3"]}


# A template that shows of tools only their names: 128 fit into the context.
NAMES_OF_TOOLS = "{% for tool in tools or [] %}{{ (tool.function or tool).name }} {% endfor %}{% for message in messages %}{{ message.content }} {% endfor %}"


def seconds_of(attack, quick):
    return SECONDS * (4 if attack is fields and not quick else 1)


def run_attacker(attack, port, quick, pipe):
    attacker = Attacker(port, quick)
    attack(attacker)
    pipe.send(attacker.statuses)


class Bystander:
    """Short requests one after another over one connection; the longest wait, and what memory the server has meanwhile."""

    def __init__(self, served):
        self.served, self.most_memory = served, 0
        self.refused, self.most_busy, self.most_queued = 0, 0, 0

    def times(self):
        """(computed, waited for a core) by the server's threads so far, in ms."""
        computed = waited = 0
        for thread in pathlib.Path(f"/proc/{self.served.process.pid}/task").iterdir():
            try:
                ns = (thread / "schedstat").read_text().split()
            except OSError:
                continue  # it has ended
            computed, waited = computed + int(ns[0]), waited + int(ns[1])
        return computed / 1e6, waited / 1e6

    def wait_ms(self):
        begin, (computed, waited) = time.monotonic(), self.times()
        connection = http.client.HTTPConnection("127.0.0.1", self.served.port, timeout=5 * SECONDS)
        connection.request("POST", COMPLETIONS, json.dumps({"prompt": "Once", "max_tokens": 1, "seed": 1}), KEY)
        reply = connection.getresponse()
        reply.read()
        connection.close()
        self.refused += reply.status != 200
        now = self.times()
        self.most_busy = max(self.most_busy, (now[0] - computed) / THREADS)
        self.most_queued = max(self.most_queued, (now[1] - waited) / THREADS)
        return (time.monotonic() - begin) * 1000

    def waits_until(self, is_over):
        waits = []
        while not is_over():
            waits.append(self.wait_ms())
            time.sleep(0.02)
        return waits

    def watch(self, over):
        while not over.wait(0.01):
            self.most_memory = max(self.most_memory, self.served.resident_bytes())


def warm_up(served):
    """What the server takes once and keeps: blocks, the largest step's activations, buffers of connections."""
    long = [[random.Random(i).randrange(256, 2900) for _ in range(2000)] for i in range(4)]
    for body in ({"prompt": long, "max_tokens": 2}, {"prompt": long[0], "max_tokens": 1, "prompt_logprobs": 1}, {"prompt": ["x"] * 64, "max_tokens": 20, "ignore_eos": True}):
        status, _, answer = served.ask("POST", COMPLETIONS, body, KEY)
        assert status == 200, answer
    served.ask("POST", EMBEDDINGS, {"input": [long[0]]}, KEY)


def measure(asked, attack):
    directory = tempfile.TemporaryDirectory(prefix="invar-attack-")
    more = FLAGS.get(attack, ["--journal", f"{directory.name}/journal"] if attack is journal else [])
    if attack is fields:
        template = pathlib.Path(directory.name, "template.jinja")
        template.write_text(NAMES_OF_TOOLS)
        more = more + ["--receipt-key", f"{directory.name}/key.pem", "--chat-template", str(template)]
    served = Served(asked.invar, command=[asked.invar, "serve", str(ROOT / "models/story"), "--host", "127.0.0.1", "--port", "0", "--threads", "2", "--kv-cache-memory", "0.0625", "--api-key", "k", *more])
    served.patience = 5 * SECONDS
    try:
        warm_up(served)
        bystander = Bystander(served)
        alone = statistics.median([bystander.wait_ms() for _ in range(10)])
        before, bystander.most_busy, bystander.most_queued = served.resident_bytes(), 0, 0
        over = threading.Event()
        watcher = threading.Thread(target=bystander.watch, args=(over,))
        watcher.start()
        here, there = multiprocessing.Pipe(duplex=False)
        attacker = multiprocessing.Process(target=run_attacker, args=(attack, served.port, asked.quick, there))
        attacker.start()
        end = time.monotonic() + seconds_of(attack, asked.quick) + 10
        waits, fault, kept = [0], "", 0
        try:
            waits = bystander.waits_until(lambda: not attacker.is_alive() or time.monotonic() > end) or [0]
        except (OSError, http.client.HTTPException) as error:
            fault = f"a short request: {error!r}"
        statuses = here.recv() if here.poll() else {}
        attacker.kill()
        attacker.join()
        over.set()
        watcher.join()
        for _ in range(0 if fault else 20):
            time.sleep(0.1)
            kept = served.resident_bytes() - before
            if kept < MOST_KEPT_MIB * MIB:
                break
        ends = end_of(served, attack, asked)
    finally:
        served.process.kill()
        served.stop()
    return {"attack": attack.__name__, "alone": alone, "more": max(waits) - alone, "busy": bystander.most_busy, "queued": bystander.most_queued, "grown": (bystander.most_memory - before) / MIB, "kept": kept / MIB,
            "refused": bystander.refused, "statuses": statuses, "ends": ends, "fault": fault}


def end_of(served, attack, asked):
    """Seconds from the second SIGTERM to the end, in the middle of the attack of many answers."""
    if attack is not answers:
        return None
    a = Attacker(served.port, asked.quick)
    threading.Thread(target=lambda: a.ask(COMPLETIONS, {"prompt": ["many texts"] * 100, "n": 8, "max_tokens": 2000, "ignore_eos": True}), daemon=True).start()
    time.sleep(0.5)
    served.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    served.process.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    try:
        served.process.wait(20)
    except Exception:
        pass
    return time.monotonic() - begin


def faults_of(row, expected, asked):
    faults = [row["fault"]] * bool(row["fault"])
    waits = row["busy"] if asked.busy else row["more"]
    faults += [f"waits {waits:.0f} ms more"] * (waits >= asked.most_ms or row["more"] >= MOST_STILL_MS) + [f"grows {row['grown']:.0f} MiB"] * (row["grown"] >= MOST_GROWN_MIB)
    faults += [f"keeps {row['kept']:.0f} MiB"] * (row["kept"] >= MOST_KEPT_MIB)
    faults += [f"{row['refused']} short requests refused"] * (row["refused"] > 0)
    odd = [status for status in row["statuses"] if status not in expected]
    faults += [f"answered {odd}"] * bool(odd) + ["never over"] * (not row["statuses"])
    return faults + ["outlives two SIGTERMs by 5 s"] * (row["ends"] is not None and row["ends"] >= 5)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("invar")
    parser.add_argument("attacks", nargs="*", help="all, unless some are named")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--most-ms", type=float, default=MOST_MS)
    parser.add_argument("--no-bars", action="store_true")
    asked = parser.parse_intermixed_args()
    asked.invar = str(pathlib.Path(asked.invar).resolve())
    known = {attack.__name__: attack for attack in ATTACKS}
    chosen = [known[name] for name in asked.attacks] or list(ATTACKS)
    bad = 0
    print("| attack | answers | alone, ms | waits more, ms | computed meanwhile, ms | waited for cores, ms | grows, MiB | keeps, MiB | |\n|---|---|---|---|---|---|---|---|---|")
    for attack in chosen:
        row = measure(asked, attack)
        faults = faults_of(row, ATTACKS[attack], asked)
        bad += bool(faults)
        seen = ", ".join(f"{count} x {status or 'closed'}" for status, count in sorted(row["statuses"].items(), key=str))
        note = f"second SIGTERM: {row['ends']:.1f} s; " if row["ends"] is not None else ""
        print(f"| {row['attack']} | {seen} | {row['alone']:.0f} | {row['more']:.0f} | {row['busy']:.0f} | {row['queued']:.0f} | {row['grown']:.0f} | {row['kept']:.0f} | {note}{'; '.join(faults) or 'holds'} |", flush=True)
    return 1 if bad and not asked.no_bars else 0


if __name__ == "__main__":
    sys.exit(main())
