#!/usr/bin/env python3
"""An hour of a server's life: a trace's lengths, every protocol, two keys, kills and engines that stand still.
Usage: hour.py INVAR [--minutes M] [--trace CSV] [--rate R] [--every SECONDS] [--patience SECONDS] [--control]

Two keys ask a server of models/story with --engine-process and a journal, R requests a second of the trace's lengths (a quarter of
them; without one they are drawn), each whole or as a stream, again until it is answered as a whole. Every SECONDS, but not before
some answers came, something happens: in the first third of the time the server or its engine is killed (SIGKILL) or the engine stands still (SIGSTOP), in the second
its engine alone, in the last one nothing. A server that nobody disturbed has answered every request before; afterwards no answer
may be lost or have another text, and the memory at rest, of the server since the first third and of its engine since the
second, may grow by less than 1 MiB a minute. --control plants an answer of another text, one that never comes whole, and memory that
grows: all three must be found."""
import argparse
import collections
import csv
import json
import os
import pathlib
import random
import re
import signal
import statistics
import sys
import tempfile
import threading
import time

from served import Served, ask_once, children, free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEYS = ("one", "two")
MOST_MIB_A_MINUTE, MOST_STILL_SECONDS = 1, 15
MIB = 1 << 20


def openai(path, **body):
    return lambda text, tokens, seed: (path, {"max_tokens": tokens, "seed": seed, "temperature": 0.8, "logits_hash": True, **{key: make(text) for key, make in body.items()}})


def messages_of(text):
    return [{"role": "user", "content": text}]


# A protocol's path and body of (text, tokens, seed), the member "stream" aside.
PROTOCOLS = {
    "completions": openai("/v1/completions", prompt=str, ignore_eos=bool),
    "chat": openai("/v1/chat/completions", messages=messages_of),
    "messages": lambda text, tokens, seed: ("/v1/messages", {"model": "m", "messages": messages_of(text), "max_tokens": tokens, "temperature": 0}),
    "responses": lambda text, tokens, seed: ("/v1/responses", {"input": text, "max_output_tokens": tokens, "seed": seed}),
    "sglang": lambda text, tokens, seed: ("/generate", {"text": text, "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}}),
    "ollama": lambda text, tokens, seed: ("/api/generate", {"model": "m", "prompt": text, "options": {"num_predict": tokens, "seed": seed}}),
    "ollama chat": lambda text, tokens, seed: ("/api/chat", {"model": "m", "messages": messages_of(text), "options": {"num_predict": tokens, "seed": seed}}),
    "llama.cpp": lambda text, tokens, seed: ("/completion", {"prompt": text, "n_predict": tokens, "seed": seed}),
    "embeddings": lambda text, tokens, seed: ("/v1/embeddings", {"input": text}),
}
ENDS = re.compile(rb'data: \[DONE\]|"message_stop"|"response\.(completed|incomplete)"|"done": ?true|"stop": ?true')
TOLD = ("text", "content", "response", "delta", "embedding", "finish_reason", "stop_reason", "done_reason", "completion_tokens", "output_tokens", "eval_count",
        "tokens_predicted", "logits_hash")


def told(value):
    """What an answer says, in its order: texts of events follow one another."""
    if isinstance(value, list):
        return "".join(map(told, value))
    if not isinstance(value, dict):
        return ""
    return "".join(f"{one}" if key in TOLD and isinstance(one, (str, int, float)) or key == "embedding" else told(one) for key, one in value.items())


def said_by(data):
    """What the bytes of an answer say; None where they are no whole one."""
    lines = [line.removeprefix(b"data: ") for line in data.split(b"\n") if line and not line.startswith((b"event:", b":")) and b"[DONE]" not in line]
    try:
        values = [json.loads(data)]
    except ValueError:
        if not ENDS.search(data.rstrip().rsplit(b"\n", 1)[-1]):  # the last line, which has the whole prompt in some protocols
            return None
        values = [json.loads(line) for line in lines]
    return None if any(isinstance(value, dict) and value.get("error") for value in values) else "".join(map(told, values))


def requests_of(trace, count, draws):
    """(protocol, path, body): lengths of the trace's first rows."""
    rows = [(int(row["num_prefill_tokens"]), int(row["num_decode_tokens"])) for row in csv.DictReader(open(trace))] if trace else []
    lengths = rows[:count] or [(int(draws.lognormvariate(6, 1)), int(draws.lognormvariate(4.5, 1))) for _ in range(count)]
    words = "once upon a time there was a little girl who liked to play with her red ball in the garden and a dog ran to see".split()
    made = []
    for i, (prompt, answer) in enumerate(lengths):
        text = " ".join(draws.choice(words) for _ in range(min(max(prompt // 4, 1), 1200)))
        name = list(PROTOCOLS)[i % len(PROTOCOLS)]
        path, body = PROTOCOLS[name](text, min(max(answer // 4, 1), 400), i)
        streams = name not in ("embeddings", "sglang") and i // len(PROTOCOLS) % 2 == 0
        made.append((name, path, body if name == "embeddings" else {**body, "stream": streams}))
    return made


class Hour:
    def __init__(self, asked, folder):
        self.asked, self.folder, self.over = asked, folder, threading.Event()
        self.lock, self.faults, self.counts, self.memory = threading.Lock(), [], collections.Counter(), []
        # deaths: odd while the server is not there.
        self.deaths, self.still, self.begin, self.port, self.never = 0, [], time.monotonic(), free_port(), None
        self.waits = []  # seconds until an answer is whole
        self.requests = requests_of(asked.trace, asked.requests, random.Random(asked.seed))

    def start(self, *flags):
        keys = [word for key in KEYS for word in ("--api-key", key)]
        self.served = Served(self.asked.invar, command=[self.asked.invar, "serve", str(ROOT / "models/story"), "--host", "127.0.0.1", "--port", str(self.port), "--threads", "2",
                                                        "--kv-cache-memory", "0.03", "--served-model-name", "m", *keys, *flags])

    def again(self):
        self.start("--engine-process", "--journal", f"{self.folder}/journal")

    def ask(self, number, key, name=None):
        """(status, data), or None where the connection broke."""
        _, path, body = self.requests[number]
        if number == self.never:
            return None
        names = {"Idempotency-Key": name} if name and path.startswith("/v1/") else {}
        return ask_once(self.port, "POST", path, body, {"Authorization": f"Bearer {key}", **names}, self.asked.patience)

    def fault(self, number, what):
        with self.lock:
            self.faults.append(f"after {(time.monotonic() - self.begin) / 60:.1f} minutes, request {number} ({self.requests[number][0]}): {what}")

    def check(self, number, key, name):
        """Asks until the answer is whole, which it must be at once unless the server died meanwhile."""
        begin = time.monotonic()
        end = begin + (5 if self.asked.control else self.asked.patience)
        while time.monotonic() < end:
            deaths = self.deaths
            found = self.ask(number, key, name)
            said = said_by(found[1]) if found and found[0] == 200 else None
            if said is not None:
                self.counts["whole"] += 1
                self.waits.append(time.monotonic() - begin)
                return said == self.expected[number] or self.fault(number, f"other text: {said[:200]!r} instead of {self.expected[number][:200]!r}")
            if found and found[0] not in (200, 429, 503):
                return self.fault(number, f"status {found[0]}: {found[1][:200]!r}")
            if deaths == self.deaths and deaths % 2 == 0 and not (found and found[0] in (429, 503)):
                self.counts["broken while no server died"] += 1
            self.counts["asked again"] += 1
            time.sleep(0.3)
        self.fault(number, "lost")

    def work(self, worker):
        draws, count = random.Random(f"{self.asked.seed}.{worker}"), 0
        while not self.over.is_set():
            begin, count = time.monotonic(), count + 1
            self.check(draws.randrange(len(self.requests)), draws.choice(KEYS), f"{worker}-{count}")
            self.over.wait(max(0, begin + self.asked.workers / self.asked.rate - time.monotonic()))

    def measure(self):
        while not self.over.wait(1):
            try:
                pids = [self.served.process.pid, *children(self.served.process.pid)]
                sizes = [int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) / 1024 for pid in pids]
            except (OSError, TypeError):
                continue  # one has just ended
            if len(sizes) == 2:
                self.memory.append((time.monotonic() - self.begin, *sizes))

    def engine(self):
        try:
            return next(iter(children(self.served.process.pid)), 0)
        except OSError:  # a thread of the server's has just ended
            return -1

    def disturb(self, kind):
        if kind == "server":
            self.deaths += 1
            self.served.process.kill()
            self.served.process.wait()
            self.again()
            self.deaths += 1
        elif (engine := self.engine()) > 0:
            os.kill(engine, signal.SIGKILL if kind == "engine" else signal.SIGSTOP)
            begin = time.monotonic()
            while self.engine() in (engine, -1) and time.monotonic() < begin + 60:
                time.sleep(0.05)
            if kind == "still":
                self.still.append(time.monotonic() - begin)
        self.counts[kind] += 1

    def run(self):
        self.start()
        answers = [self.ask(i, KEYS[0]) for i in range(len(self.requests))]
        self.expected = [said_by(found[1]) if found and found[0] == 200 else None for found in answers]
        self.faults += [f"{self.requests[i][0]} is not answered: {answers[i]}"[:400] for i, said in enumerate(self.expected) if not said]
        if len(set(self.expected)) < 0.8 * len(self.expected):
            self.faults.append("answers of different requests are equal")
        if self.served.stop() or self.faults:
            return
        if self.asked.control:
            self.expected[0] += "?"
            self.never = 1
        self.again()
        self.begin = time.monotonic()
        threads = [threading.Thread(target=self.work, args=(i,)) for i in range(self.asked.workers)] + [threading.Thread(target=self.measure)]
        for thread in threads:
            thread.start()
        draws, seconds, whole = random.Random(self.asked.seed), 60 * self.asked.minutes, 0
        while (left := self.begin + seconds - time.monotonic()) > 0:
            time.sleep(min(self.asked.every, left))
            while self.counts["whole"] < whole + self.asked.workers and time.monotonic() < self.begin + seconds:
                time.sleep(0.1)  # on a slow machine, too, something is answered between two disturbances
            whole = self.counts["whole"]
            spent = (time.monotonic() - self.begin) / seconds
            if spent < 2 / 3:
                self.disturb(draws.choice(["server", "engine", "still"] if spent < 1 / 3 else ["engine", "still"]))
            if self.served.process.poll() is not None:
                self.faults.append(f"the server ended by itself: {self.served.said()[-500:]}")
                break
        self.over.set()
        for thread in threads:
            thread.join()
        status = self.served.stop()
        self.faults += [f"it ended with {status}"] * (status != 0)

    def slope(self, which, since):
        """MiB a minute by least squares over what there is least of in each minute; the first fifth is warming up."""
        end = 60 * self.asked.minutes
        of_minute = {}
        for row in self.memory:
            if row[0] > since * end + (1 - since) * end / 5:
                at = row[0] // 60
                of_minute[at] = min(of_minute.get(at, row[which]), row[which])
        if len(of_minute) < 3:
            return 0.0, 0.0
        return statistics.linear_regression(list(of_minute), list(of_minute.values())).slope, max(of_minute.values())

    def report(self):
        for name, which, since in (("server", 1, 1 / 3), ("engine", 2, 2 / 3)):
            slope, most = self.slope(which, since)
            print(f"memory of the {name}: {slope:+.3f} MiB a minute, {most:.0f} MiB at rest")
            self.faults += [f"the {name}'s memory grows by {slope:.2f} MiB a minute"] * (slope >= MOST_MIB_A_MINUTE)
        still = max(self.still, default=0)
        self.faults += [f"an engine stood still for {still:.1f} s"] * (still > MOST_STILL_SECONDS)
        if self.waits:
            print(f"an answer is whole after {statistics.median(self.waits):.1f} s (median), {max(self.waits):.1f} s (longest)")
        print(f"{self.asked.minutes:g} minutes, {', '.join(f'{count} {kind}' for kind, count in sorted(self.counts.items()))}; "
              f"engines that stood still were replaced after {still:.1f} s at most; {len(self.faults)} faults")
        print("\n".join(fault[:500] for fault in self.faults[:20]))


def control(hour):
    """Whether what was planted was found."""
    hour.memory = [(60 * minute, 100 + 2 * minute, 100 + 2 * minute) for minute in range(30)]
    hour.asked.minutes = 30
    hour.report()
    wanted = ("other text", "lost", "the server's memory grows", "the engine's memory grows")
    missed = [what for what in wanted if not any(what in fault for fault in hour.faults)]
    print(f"control: {len(wanted) - len(missed)} of {len(wanted)} kinds of fault found")
    return 1 if missed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("invar")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--trace", type=pathlib.Path, help="num_prefill_tokens,num_decode_tokens")
    parser.add_argument("--requests", type=int, default=180, help="that differ")
    parser.add_argument("--rate", type=float, default=5, help="requests a second, at most")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--every", type=float, default=45, help="seconds from one disturbance to the next")
    parser.add_argument("--patience", type=float, default=240, help="seconds until an answer that is not whole is lost; a build with checks of threads wants more, and fewer disturbances")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--control", action="store_true")
    asked = parser.parse_args()
    asked.invar = str(pathlib.Path(asked.invar).resolve())
    Served.patience = 120
    if asked.control:
        asked.minutes, asked.requests, asked.every = 0.5, 4, 1000
    with tempfile.TemporaryDirectory(prefix="invar-hour-") as folder:
        hour = Hour(asked, folder)
        hour.run()
        if asked.control:
            return control(hour)
        hour.report()
    return 1 if hour.faults else 0


if __name__ == "__main__":
    sys.exit(main())
