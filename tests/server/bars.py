#!/usr/bin/env python3
"""Measures what the server costs beside the engine. Usage: bars.py INVAR [ttft|rate|streams|unique|cost|all ...]
[--peer NAME=URL ...]

ttft     time to the first token of requests one after another at an idle server of the made model, whose step takes
         less than a millisecond: an upper bound of what HTTP, admission and journal add
rate     tokens per second of 64 streams over HTTP beside the same requests from a file (model bench-100m); with
         `--rate-model qwen3-8b --rate-streams 64,256 --rate-tokens 512 --rate-repeats 3 --rate-kv 40 --rate-flags "--device cuda --arith hopper"`
         those of a preset with made weights on a GPU, and how long it was idle between steps
streams  2000 idle connections and 512 streams at the same time: memory for each, and whether all are complete
unique   answers to one prompt among random neighbours; and of the conventional arithmetic (--arith control); models/story, since
         the made model's logits lie so far apart that texts seldom differ
stalls   time between two tokens of 4 streams alone, beside prompts of 2040 tokens and beside embeddings of 2000 (models/story,
         two threads)
cost     1000 requests of 90 to 110 tokens by `invar bench serve` (model bench-100m): `control`, Invar, and any peer by its URL
all      all of them

What they print last are tables in Markdown, as docs/benchmarks.md has them.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import resource
import selectors
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from served import Served, events

INVAR, PEERS, ARGUMENTS = None, [], None
BARS, COSTS = [], []  # lines of the two tables
COMPLETIONS = "/v1/completions"


def bar(measure, wanted, found):
    print(f"{measure}: {found} (bar: {wanted})", flush=True)
    BARS.append((measure, wanted, found))


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def client_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def thread_seconds(pid):
    """CPU time of a process's first thread: of a server, the one that talks to clients."""
    fields = pathlib.Path(f"/proc/{pid}/task/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def request_bytes(**body):
    text = json.dumps(body)
    return (f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(text)}\r\n\r\n{text}"
            .encode())


def all_streams(served, requests, on_first=lambda: None, pause=0):
    """Sends all requests at once and returns each answer's bytes; one thread, which looks every `pause` seconds."""
    selector, answers = selectors.DefaultSelector(), [bytearray() for _ in requests]
    for i, request in enumerate(requests):
        connection = served.raw(request)
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ, i)
    begun = set()
    while selector.get_map():
        time.sleep(pause)
        for key, _ in selector.select():
            piece = key.fileobj.recv(1 << 16)
            answers[key.data] += piece
            begun.add(key.data)
            if len(begun) == len(requests):
                on_first()
            if not piece:
                selector.unregister(key.fileobj)
                key.fileobj.close()
    return answers


def ttft():
    with tempfile.TemporaryDirectory() as folder:
        for name, flags in (("default journal", ("--journal", folder + "/journal")), ("without a journal", ())):
            served = Served(INVAR, *flags)
            times = []
            for i in range(1100):
                request = request_bytes(prompt=[1, 2, 3], max_tokens=1, seed=i, stream=True)
                begin = time.perf_counter()
                connection = served.raw(request)
                data = b""
                while b"data: " not in data:
                    data += connection.recv(1 << 16)
                times.append(1000 * (time.perf_counter() - begin))
                connection.close()
            served.stop()
            times = times[100:]
            bar(f"TTFT of an idle engine, {name}, with connecting and the step", "P99 < 2 ms",
                f"P50 {percentile(times, .5):.2f} ms, P99 {percentile(times, .99):.2f} ms")


def rate():
    for streams in ARGUMENTS.rate_streams:
        rate_of(streams, ARGUMENTS.rate_tokens)


def idle_seconds(served):
    text = served.ask("GET", "/metrics")[2].decode()
    return float(re.search(r"^invar:device_idle_seconds_total\{.*\} (\S+)$", text, re.M)[1])


def rate_of(streams, tokens):
    with tempfile.TemporaryDirectory() as folder:
        model, own = folder + "/model", ARGUMENTS.rate_flags.split()
        flags = ["--max-num-seqs", str(streams), "--max-num-batched-tokens", "512", "--max-model-len", str(tokens + 256),
                 "--kv-cache-memory", str(ARGUMENTS.rate_kv), *own]
        if ARGUMENTS.rate_model == "bench-100m":
            subprocess.run([INVAR, "make-model", model, "--preset", "bench-100m"], check=True, stdout=subprocess.DEVNULL)
        else:
            model = ARGUMENTS.rate_model
            flags += ["--load-format", "dummy:1"]
        draws = random.Random(1)
        bodies = [dict(prompt=[draws.randrange(1000) for _ in range(32)], max_tokens=tokens, seed=i, ignore_eos=True)
                  for i in range(streams)]
        lines = pathlib.Path(folder, "in.jsonl")
        lines.write_text("".join(json.dumps({"custom_id": str(i), "url": COMPLETIONS, "body": {**b, "logits_hash": False}}) + "\n"
                                 for i, b in enumerate(bodies)))

        def offline():
            done = subprocess.run([INVAR, "generate", model, "--input", lines, "--output", folder + "/out.jsonl", *flags],
                                  capture_output=True, check=True)
            return float(re.search(rb"([\d.]+) tok/s", done.stderr)[1])

        def over_http():
            served = Served(INVAR, command=[INVAR, "serve", model, "--host", "127.0.0.1", "--port", "0", *flags])
            all_streams(served, [request_bytes(**{**b, "max_tokens": 1}, stream=True) for b in bodies])
            idle.append(-idle_seconds(served))
            begin, cpu, talk = time.perf_counter(), client_seconds(), thread_seconds(served.process.pid)
            # It looks seldom: every event that woke it would be work of the engine's cores.
            answers = all_streams(served, [request_bytes(**b, stream=True) for b in bodies], pause=0.05)
            seconds, cpu = time.perf_counter() - begin, client_seconds() - cpu
            talking.append((thread_seconds(served.process.pid) - talk) / (streams * tokens))
            idle[-1] = (idle[-1] + idle_seconds(served)) / seconds
            served.stop()
            assert all(a.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for a in answers)
            client.append(cpu / seconds)
            # The client takes its time from the engine's cores.
            return streams * tokens / (seconds - cpu / os.cpu_count())

        # What else goes on comes and goes: each is compared with its neighbours in time.
        rates, shares, client, talking, idle = [offline()], [], [], [], []
        for _ in range(ARGUMENTS.rate_repeats):
            rates += [over_http(), offline()]
            shares.append(2 * rates[-2] / (rates[-3] + rates[-1]))
        device = f", the GPU idle for {100 * statistics.median(idle):.2f} % of the time" if max(idle) > 0 else ""
        bar(f"tok/s of {streams} streams over HTTP, median of {len(shares)}, each beside offline before and after it", ">= 97 % of offline",
            f"{100 * statistics.median(shares):.1f} % ({100 * min(shares):.1f} to {100 * max(shares):.1f}), "
            f"{statistics.median(rates[1::2]):.0f} of {statistics.median(rates[::2]):.0f}; client's CPU time "
            f"{100 * statistics.median(client):.1f} % of the time, the serving thread's {1e6 * statistics.median(talking):.0f} us a token{device}")


def streams():
    served = Served(INVAR, "--max-num-seqs", "512", "--max-num-batched-tokens", "512", "--max-connections", "4096",
                    "--timeout-keep-alive", "600", "--kv-cache-memory", "0.125", "--max-model-len", "2200")
    # The keys and values, 1024 blocks, are the model's memory: they are all there before anything is counted.
    touched = all_streams(served, [request_bytes(prompt=[(7 * i + j) % 500 for j in range(2100)], max_tokens=1, stream=True)
                                   for i in range(32)])
    assert all(b"[DONE]" in a for a in touched), touched[0]
    base = served.resident_bytes()
    idle = [served.raw() for _ in range(2000)]
    served.wait_until(lambda: served.metric("invar:connections") >= 2000)
    with_idle = served.resident_bytes()
    peak, live = [0], [0]

    def all_live():
        if not live[0]:
            peak[0] = served.resident_bytes()
            live[0] = served.metric("invar:answers")

    tokens = 64
    answers = all_streams(served, [request_bytes(prompt=[i % 200], max_tokens=tokens, seed=i, stream=True, ignore_eos=True,
                                                 stream_options={"include_usage": True}) for i in range(512)], all_live)
    whole = sum(a.endswith(b"[DONE]\n\n\r\n0\r\n\r\n") and f'"completion_tokens": {tokens}'.encode() in a for a in answers)
    for connection in idle:
        connection.close()
    served.stop()
    bar("2000 idle connections, memory for each", "", f"{(with_idle - base) / 2000 / 1024:.1f} KiB")
    bar("512 streams, memory for each beside keys and values, all begun", "< 64 KiB, none starved",
        f"{(peak[0] - with_idle) / 512 / 1024:.1f} KiB, {live[0]:.0f} live then, {whole} of 512 complete")


def unique():
    Served.patience = 300
    for arith in ("portable", "control"):
        story = pathlib.Path(__file__).resolve().parents[2] / "models" / "story"
        served = Served(INVAR, command=[INVAR, "serve", story, "--host", "127.0.0.1", "--port", "0", "--arith", arith,
                                        "--max-model-len", "512", "--kv-cache-memory", "1", "--max-num-seqs", "64"])
        for temperature in (0, 0.8):
            def one(i):
                draws = random.Random(i)
                if i % 4:  # a neighbour
                    served.post(COMPLETIONS, prompt=[draws.randrange(300) for _ in range(draws.randrange(1, 200))],
                                max_tokens=draws.randrange(1, 32), seed=i)
                    return None
                done = served.post(COMPLETIONS, prompt="Once upon a time", max_tokens=200, seed=1, ignore_eos=True,
                                   temperature=temperature, logits_hash=True)
                return done["choices"][0]["logits_hash"], done["choices"][0]["text"]

            with concurrent.futures.ThreadPoolExecutor(32) as pool:
                found = [answer for answer in pool.map(one, range(4000)) if answer]
            bar(f"{len(found)} answers to one prompt of 200 tokens among neighbours, {arith}, temperature {temperature}",
                "1 unique" if arith == "portable" else "more", f"{len({t for _, t in found})} texts, "
                f"{len({h for h, _ in found})} logits hashes")
        served.stop()


def token_times(served, seed, times, stopped):
    """Streams one answer after the other until told to stop; appends when each event came."""
    while not stopped.is_set():
        connection = served.connect()
        connection.request("POST", COMPLETIONS, json.dumps(dict(prompt="Once upon a time", max_tokens=1000, seed=seed,
                                                                ignore_eos=True, stream=True)))
        own = []
        times.append(own)
        for line in connection.getresponse():
            if line.startswith(b"data: {"):
                own.append(time.monotonic())
            if stopped.is_set():
                break
        connection.close()


def stalls():
    draws = random.Random(1)
    model = str(pathlib.Path(__file__).resolve().parents[2] / "models" / "story")
    disturbers = {"alone": None,
                  "beside prompts of 2040 tokens": lambda ids: (COMPLETIONS, dict(prompt=ids(2040), max_tokens=1)),
                  "beside embeddings of 2000 tokens": lambda ids: ("/v1/embeddings", dict(input=ids(2000)))}
    served = Served(INVAR, command=[INVAR, "serve", model, "--threads", "2", "--host", "127.0.0.1", "--port", "0"])
    print(served.said().strip(), flush=True)
    for what, disturber in disturbers.items():
        times, stopped, waits = [], threading.Event(), []
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            streams = [pool.submit(token_times, served, seed, times, stopped) for seed in range(4)]
            try:
                served.wait_until(lambda: len(times) == 4 and all(len(t) > 20 for t in times))
                begin = time.monotonic()
                for _ in range(8):
                    if disturber:
                        path, body = disturber(lambda n: [draws.randrange(200, 4000) for _ in range(n)])
                        asked = time.monotonic()
                        served.post(path, **body)
                        waits.append(time.monotonic() - asked)
                    time.sleep(0.2 if disturber else 0.5)
            finally:
                stopped.set()  # the pool waits for its streams
            [s.result() for s in streams]
        gaps = [1000 * (b - a) for own in times for a, b in zip(own, own[1:]) if b > begin]
        bar(f"time between tokens {what}, P50 / P99 / longest, ms", "P99 200", f"{statistics.median(gaps):.0f} / "
            f"{percentile(gaps, 0.99):.0f} / {max(gaps):.0f}" + (f"; they take {statistics.median(waits):.2f} s" if waits else ""))
    served.stop()


def load(url, model):
    done = subprocess.run([INVAR, "bench", "serve", "--url", url, "--json", "--num-prompts", "1000", "--input-len", "100",
                           "--output-len", "100", "--random-range-ratio", "0.1", "--ignore-eos", "--tokenizer", model,
                           "--request-timeout", "3000"], capture_output=True, check=True)
    return json.loads(done.stdout)


def cost():
    with tempfile.TemporaryDirectory() as folder:
        model = folder + "/model"
        subprocess.run([INVAR, "make-model", model, "--preset", "bench-100m"], check=True, stdout=subprocess.DEVNULL)
        for arith in ("control", "portable"):
            served = Served(INVAR, command=[INVAR, "serve", model, "--host", "127.0.0.1", "--port", "0", "--arith", arith,
                                            "--max-model-len", "512", "--kv-cache-memory", "2"])
            COSTS.append((arith, load(f"http://127.0.0.1:{served.port}", model)))
            assert COSTS[-1][1]["completed"] == 1000, COSTS[-1]
            served.stop()
        for peer in PEERS:
            name, url = peer.split("=", 1)
            COSTS.append((name, load(url, model)))
    for name, found in COSTS:
        print(f"cost, {name}: {found['duration']:.1f} s, {found['output_throughput']:.0f} tok/s", flush=True)


def tables():
    if BARS:
        print("\n| measure | bar | found |\n|---|---|---|")
        for line in BARS:
            print("| " + " | ".join(line) + " |")
    if COSTS:
        print("\n| 1000 requests of 90 to 110 tokens | " + " | ".join(name for name, _ in COSTS) + " |\n|---" + "|---:" * len(COSTS) + "|")
        for title, form in (("seconds in all", "{duration:.1f}"), ("tokens of answers per second", "{output_throughput:.0f}"),
                            ("TTFT, median / P99, ms", "{median_ttft_ms:.0f} / {p99_ttft_ms:.0f}"),
                            ("TPOT, median / P99, ms", "{median_tpot_ms:.1f} / {p99_tpot_ms:.1f}"),
                            ("completed", "{completed}"), ("client's CPU time, s", "{client_cpu_seconds:.1f}")):
            print(f"| {title} | " + " | ".join(form.format(**found) for _, found in COSTS) + " |")


if __name__ == "__main__":
    NAMES = ["ttft", "rate", "streams", "unique", "stalls", "cost"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("invar")
    parser.add_argument("names", nargs="*", choices=[*NAMES, "all"], default="all")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=URL")
    parser.add_argument("--rate-model", default="bench-100m", help="preset (default: %(default)s)")
    parser.add_argument("--rate-streams", type=lambda text: [int(n) for n in text.split(",")], default=[64])
    parser.add_argument("--rate-tokens", type=int, default=256, help="of an answer (default: %(default)s)")
    parser.add_argument("--rate-repeats", type=int, default=10)
    parser.add_argument("--rate-kv", type=float, default=2, help="GiB of keys and values (default: %(default)s)")
    parser.add_argument("--rate-flags", default="", help="more flags of the server")
    asked = ARGUMENTS = parser.parse_args()
    INVAR, PEERS = str(pathlib.Path(asked.invar).resolve()), asked.peer
    for name in NAMES if "all" in asked.names else asked.names:
        globals()[name]()
    tables()
