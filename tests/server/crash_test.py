#!/usr/bin/env python3
"""Kills a server under load, again and again, with kill -9: its engine's process, the server itself and, with
--tensor-parallel-size or --pipeline-parallel-size, its ranks' processes. Every answer has to come out complete and
every byte as without kills, from one rank; no line of the journal may be lost or doubled.

With --speculative-config the killed server drafts, and those that its answers are held to do not. --model: a directory,
instead of the made model. --device: where the killed server computes, its ranks as processes; the others compute on the CPU. --mpi: the killed server is a job
of MPI, which a rank that is killed ends; the job is started again.

Usage: crash_test.py INVAR [--kills N] [--streams N] [--tokens N] [--seed N] [--speculative-config JSON] [--model MODEL]
                    [--tensor-parallel-size N] [--pipeline-parallel-size N] [--data-parallel-size N] [--device DEVICE [--exchange NAME]] [--mpi]
"""
import argparse
import collections
import http.client
import json
import os
import pathlib
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

from mpi_test import mpirun, ranks_of
from served import free_port, made

DONE = b"data: [DONE]\n\n", b'event: message_stop\ndata: {"type": "message_stop"}\n\n'  # how streams end
CONTROLS = 8  # answers whose seeds only the first journal keeps
MODEL = made()
MODEL_FLAGS = ["--threads", "1", "--max-model-len", "512", "--max-num-seqs", "16", "--kv-cache-memory", "0.05",
               "--served-model-name", "tiny"]


def children(pid):
    try:
        return [int(child) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
                for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


class Server:
    """A server that is started again when it dies."""

    def __init__(self, invar, journal, log, *flags, launch=()):
        self.port, self.log = free_port(), log
        self.command = [*launch, invar, "serve", *MODEL, *MODEL_FLAGS, "--host", "127.0.0.1", "--port", str(self.port), "--journal",
                        str(journal), *flags]
        self.stopping = False
        self.deaths = 0  # grows before and after each
        self.lock = threading.Lock()
        self.start()
        threading.Thread(target=self.watch, daemon=True).start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=self.log)

    def watch(self):
        while True:
            self.process.wait()
            with self.lock:
                if self.stopping:
                    return
                self.start()

    def is_ready(self):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False

    def wait_until_ready(self, seconds=60):
        deadline = time.time() + seconds
        while not self.is_ready():
            if time.time() > deadline:
                raise TimeoutError("the server did not become ready")
            time.sleep(0.02)

    def kill_server(self):
        self.deaths += 1
        os.kill(self.process.pid, signal.SIGKILL)
        self.deaths += 1

    def kill_engine(self, rng):
        """One of them, where there are replicas."""
        engines = children(self.process.pid)
        if engines:
            os.kill(rng.choice(engines), signal.SIGKILL)
        return bool(engines)

    def kill_rank(self, rng):
        """One of the processes that the engine's process has started. False when it has none at present."""
        ranks = [rank for engine in children(self.process.pid) for rank in children(engine)]
        if ranks:
            os.kill(rng.choice(ranks), signal.SIGKILL)
        return bool(ranks)

    def kill_job(self, rng):
        """A process of the job of MPI, which ends with it. Until it has ended connections may break at any time."""
        job, ranks = self.process, ranks_of(self.process.pid)
        if not ranks:
            return False
        self.deaths += 1
        os.kill(rng.choice(ranks), signal.SIGKILL)
        while self.process is job:
            time.sleep(0.01)
        self.deaths += 1
        return True

    def stop(self):
        with self.lock:
            self.stopping = True
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


def difference(before, after):
    """Where two bodies part, and what each has there."""
    at = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
    return f"event {before[:at].count(b'data: ')}, before {before[max(at - 40, 0):at + 40]}, after {after[max(at - 40, 0):at + 40]}"


class Answer:
    """One request's answer as its client has it: whole events; continued after every break."""

    def __init__(self, path, body, key):
        self.path, self.body, self.key = path, body, key
        self.bytes, self.breaks, self.unexplained, self.resumed, self.errors = b"", 0, 0, 0, []
        self.arriving = 0  # bytes of all attempts

    @property
    def complete(self):
        return self.bytes.endswith(DONE)

    @property
    def id(self):
        return re.search(rb'"id": "([^"]+)"', self.bytes)[1].decode() if self.bytes else None

    def ask(self, connection, rng):
        """The first time a POST; then either the stream from where it broke, or the same POST once more."""
        if self.bytes and rng.random() < 0.5:
            self.resumed += 1
            connection.request("GET", f"{self.path}/{self.id}?stream=true&starting_after={self.bytes.count(b'data: ') - 1}")
            return self.bytes
        headers = {"Content-Type": "application/json", "Idempotency-Key": self.key}
        connection.request("POST", self.path, json.dumps(self.body), headers)
        return b""

    def attempt(self, server, rng):
        deaths, got, begun = server.deaths, b"", False
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        try:
            got = self.ask(connection, rng)
            response = connection.getresponse()
            begun = True
            if response.status != 200:
                self.errors.append((response.status, response.read()))
                return
            while piece := response.read1(65536):
                got += piece
                self.arriving += len(piece)
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        if not got.endswith(DONE):
            self.breaks += 1
            # An engine's death breaks no connection; while a server dies its count is odd.
            self.unexplained += begun and server.deaths == deaths and deaths % 2 == 0
        self.take(got[:got.rfind(b"\n\n") + 2] if b"\n\n" in got else b"")

    def take(self, whole):
        """Whole events. A repeated POST starts over: what came before has to come again."""
        common = min(len(whole), len(self.bytes))
        if whole[:common] != self.bytes[:common]:
            self.errors.append((200, difference(self.bytes, whole)))
        if len(whole) > len(self.bytes):
            self.bytes = whole

    def fetch(self, server, rng, may_give_up):
        while not self.complete and not self.errors and not may_give_up():
            self.attempt(server, rng)
            if not self.complete:
                time.sleep(rng.uniform(0.01, 0.1))


def make_body(rng, tokens):
    """A request of one of the shapes that a server has to frame; most with a seed of their own."""
    words = [rng.choice(["bits", "answer", "request", "alone", "engine", "token"]) for _ in range(rng.randrange(4, 40))]
    body = {"model": "tiny", "stream": True, "ignore_eos": True, "max_tokens": rng.randrange(tokens // 2, tokens),
            "temperature": rng.choice([0, 0.8, 1.3])}
    if rng.random() < 0.8:
        body["seed"] = rng.randrange(1 << 40)
    if body["temperature"] > 0 and rng.random() < 0.3:
        body["n"] = 2
    if rng.random() < 0.5:
        body["stream_options"] = {"include_usage": True}
    if rng.random() < 0.3:
        body["stop"] = ["zz", "q"]
    chat = rng.random() < 0.5
    if rng.random() < 0.3:
        body.update({"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2})
    if rng.random() < 0.15:
        body["guided_regex"] = "[a-z ]{40,80}"
    elif rng.random() < 0.3:
        body.update(rng.choice([{"bad_words": ["e", "the", "a b"]}, {"allowed_token_ids": list(range(60, 300))},
                                {"truncate_prompt_tokens": 5}, {"skip_special_tokens": False}]))
    if rng.random() < 0.2:
        for name in ("n", "logprobs", "top_logprobs", "stream_options"):
            body.pop(name, None)
        return "/v1/messages", body | {"messages": [{"role": "user", "content": " ".join(words)}]}
    if chat:
        return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": " ".join(words)}]}
    return "/v1/completions", body | {"prompt": " ".join(words)}


def controls(server, tokens):
    """Answers whose seeds are drawn: another server's must be others, however few the rest is."""
    body = {"model": "tiny", "stream": True, "ignore_eos": True, "max_tokens": tokens, "temperature": 1.3}
    answers = [Answer("/v1/completions", body | {"prompt": f"control {i}"}, key=f"control {i}") for i in range(CONTROLS)]
    deadline = time.time() + 300
    for answer in answers:
        answer.fetch(server, random.Random(0), lambda: time.time() > deadline)
    return answers


def content(answer):
    """What does not depend on when an answer was asked for."""
    data = [block.partition(b"data: ")[2] for block in answer.bytes.split(b"\n\n")]
    events = [json.loads(text) for text in data if text.startswith(b"{")]
    for event in events:
        for name in ("id", "created", "seed"):  # a seed is drawn where the request has none; in the first event
            event.get("message", event).pop(name, None)
    return events


class Load:
    """Streams that ask one request after the other until told to end."""

    def __init__(self, server, rng, streams, tokens):
        self.server, self.rng, self.tokens = server, rng, tokens
        self.answers, self.ending, self.ended_at = [], threading.Event(), None
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(rng.random(),)) for _ in range(streams)]
        for thread in self.threads:
            thread.start()

    def run(self, seed):
        rng = random.Random(seed)
        while not self.ending.is_set():
            answer = Answer(*make_body(rng, self.tokens), key=f"{rng.getrandbits(128):x}")
            with self.lock:
                self.answers.append(answer)
            # Kills may come faster than an answer of theirs: its client waits until they have ended, and then a while.
            answer.fetch(self.server, rng, lambda: self.ended_at and time.time() > self.ended_at + 120)

    def wait_for_bytes(self, seconds=60):
        """Until an answer has more of it than now."""
        def received():
            with self.lock:
                return sum(len(answer.bytes) + answer.arriving for answer in self.answers)
        before, deadline = received(), time.time() + seconds
        while received() == before:
            if time.time() > deadline:
                raise TimeoutError(f"no answer went on for {seconds} seconds")
            time.sleep(0.005)

    def end(self):
        self.ended_at = time.time()
        self.ending.set()
        for thread in self.threads:
            thread.join()


def disturb(server, rng, kills, kinds, load):
    """Kills at random moments; returns how often what. Ranks take a while to start: the next one is not killed before
    somebody got a token, since requests whose engine dies again and again without one fail."""
    counts = collections.Counter()
    while sum(counts.values()) < kills:
        if counts["rank"] or counts["job"]:
            load.wait_for_bytes()
        server.wait_until_ready()
        time.sleep(rng.expovariate(1 / 0.15))
        what = rng.choice(kinds)
        try:
            if what == "server":
                server.kill_server()
            elif not {"rank": server.kill_rank, "job": server.kill_job, "engine": server.kill_engine}[what](rng):
                continue
        except ProcessLookupError:
            continue
        counts[what] += 1
        if what == "server":
            time.sleep(0.05)
    return counts


def ask_again(server, answers):
    """The same requests once more, a few at a time; answers in their order."""
    again = [Answer(a.path, a.body, a.key) for a in answers]
    todo = collections.deque(again)

    def run():
        while todo:
            try:
                answer = todo.popleft()
            except IndexError:
                return
            deadline = time.time() + 900
            answer.fetch(server, random.Random(0), lambda: time.time() > deadline)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return again


def journal_faults(journal, answers):
    """Lines that are lost, doubled or have no end."""
    lines = sqlite3.connect(journal).execute("SELECT id, idempotency_key, outcome FROM line").fetchall()
    ids, keys = collections.Counter(l[0] for l in lines), collections.Counter(l[1] for l in lines)
    faults = [f"{n} lines {id_}" for id_, n in ids.items() if n != 1] + [f"{n} lines of the key {k}" for k, n in keys.items() if n != 1]
    faults += [f"no line of {a.id}" for a in answers if ids[a.id] != 1 or keys[a.key] != 1]
    faults += [f"no end of {id_}" for id_, _, outcome in lines if outcome is None]
    faults += [f"{len(lines)} lines of {len(answers)} requests"] if len(lines) != len(answers) else []
    return faults


def wait_until_all_ended(journal, seconds=60):
    """What a kill cut off goes on without its client: its line ends when it is computed."""
    deadline = time.time() + seconds
    while time.time() < deadline:
        left = sqlite3.connect(journal).execute("SELECT count(*) FROM line WHERE outcome IS NULL").fetchone()[0]
        if left == 0:
            return
        time.sleep(0.05)


def run(options, directory, log):
    rng = random.Random(options.seed)
    journal = directory / "journal"
    drafting = ["--speculative-config", options.speculative_config] if options.speculative_config else []
    ranks = ["--tensor-parallel-size", str(options.tensor_parallel_size),
             "--pipeline-parallel-size", str(options.pipeline_parallel_size)]
    if options.device != "cpu":
        ranks += ["--device", options.device] + (["--exchange", options.exchange] if options.exchange != "auto" else [])
    if options.device != "cpu" or options.data_parallel_size > 1:
        ranks += ["--distributed-executor-backend", "mp"]
    engines = ["--data-parallel-size", str(options.data_parallel_size)] if options.data_parallel_size > 1 else ["--engine-process"]
    if options.mpi:
        processes = options.tensor_parallel_size * options.pipeline_parallel_size
        server = Server(options.invar, journal, log, *ranks, *drafting, launch=mpirun(processes))
    else:
        server = Server(options.invar, journal, log, *engines, *ranks, *drafting)
    server.wait_until_ready()
    first = controls(server, options.tokens)
    start = time.time()
    load = Load(server, rng, options.streams, options.tokens)
    try:
        has_ranks = options.tensor_parallel_size * options.pipeline_parallel_size > 1
        kinds = ["job"] if options.mpi else ["engine", "engine", "server"] + has_ranks * 6 * ["rank"]
        counts = disturb(server, rng, options.kills, kinds, load)
    finally:
        load.end()
        wait_until_all_ended(journal)
        server.stop()
    seconds = time.time() - start
    answers = first + load.answers
    broken = [a for a in answers if not a.complete or a.errors or a.unexplained]
    faults = journal_faults(journal, answers)

    # The same journal behind a server that nobody kills, with the engine in its own process.
    calm = Server(options.invar, journal, log)
    calm.wait_until_ready()
    again = ask_again(calm, answers)
    calm.stop()
    late = [b for b in again if not b.complete and not b.errors]  # nothing to compare: the machine was too slow for this test
    different = [a for a, b in zip(answers, again) if a.bytes != b.bytes and b not in late]

    # And a server that knows nothing of it: all but ids, times and drawn seeds is the same.
    sample = first + load.answers[:: max(1, len(load.answers) // 200)]
    fresh = Server(options.invar, directory / "another", log)
    fresh.wait_until_ready()
    anew = ask_again(fresh, sample)
    fresh.stop()
    seeded = [(a, b) for a, b in zip(sample, anew) if "seed" in a.body or a.body["temperature"] == 0]
    drawn = [(a, b) for a, b in zip(sample, anew) if "seed" not in a.body and a.body["temperature"] > 0]
    unequal = [a for a, b in seeded if content(a) != content(b)]
    control = sum(content(a) != content(b) for a, b in drawn)
    blind = [a for a, b in zip(first, anew) if content(a) == content(b)]

    killed = f"{counts['job']} jobs of MPI killed" if options.mpi else \
        f"{counts['engine']} kills of the engine, {counts['server']} of the server and {counts['rank']} of ranks"
    print(f"{killed} in {seconds:.0f} s, "
          f"{options.streams} streams: {len(answers)} answers, {sum(len(a.bytes) for a in answers)} bytes, "
          f"{sum(a.breaks for a in answers)} broken connections, {sum(a.resumed for a in answers)} continued in the middle")
    print(f"incomplete, with an error or cut off by an engine's death: {len(broken)}; other bytes than undisturbed: {len(different)}; "
          f"not fetched again in time: {len(late)}; other content than on another server: {len(unequal)} of {len(seeded)}; journal: {len(faults)} faults")
    print(f"control, seeds that no journal kept: {control} of {len(drawn)} answers differ")
    for answer in broken[:3]:
        print("broken:", answer.path, answer.key, answer.errors[:1], answer.unexplained, answer.bytes[-200:])
    for answer, other in [(a, b) for a, b in zip(answers, again) if a in different and a not in broken][:3]:
        print("different:", answer.key, difference(answer.bytes, other.bytes))
    for fault in faults[:3]:
        print("journal:", fault)
    return sum(counts.values()) == options.kills and not (broken or different or late or unequal or faults or blind)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("invar")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--streams", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--speculative-config")
    parser.add_argument("--model")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--pipeline-parallel-size", type=int, default=1)
    parser.add_argument("--data-parallel-size", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--exchange", default="auto")
    parser.add_argument("--mpi", action="store_true")
    options = parser.parse_args()
    if options.model:
        MODEL[:] = [options.model]
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="invar-crash-") as name:
        directory = pathlib.Path(name)
        with open(directory / "log", "w") as log:
            good = run(options, directory, log)
        if not good:
            print("".join(sorted(set((directory / "log").read_text().splitlines(True))))[-4000:])
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
