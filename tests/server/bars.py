#!/usr/bin/env python3
"""Measures what the server costs beside the engine. Usage: bars.py INVAR [ttft|rate|streams|unique ...]

ttft     time to the first token of requests one after another at an idle server of the made model, whose step takes
         less than a millisecond: an upper bound of what HTTP, admission and journal add
rate     tokens per second of 64 streams over HTTP beside the same requests from a file (model bench-100m)
streams  2000 idle connections and 512 streams at the same time: memory for each, and whether all are complete
unique   answers to one prompt among random neighbours; and of the conventional arithmetic (--arith control)
"""
import concurrent.futures
import json
import os
import pathlib
import random
import re
import resource
import selectors
import subprocess
import sys
import tempfile
import time

from served import Served, events

INVAR = None
COMPLETIONS = "/v1/completions"


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def client_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def request_bytes(**body):
    text = json.dumps(body)
    return (f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(text)}\r\n\r\n{text}"
            .encode())


def all_streams(served, requests, on_first=lambda: None):
    """Sends all requests at once and returns each answer's bytes; one thread."""
    selector, answers = selectors.DefaultSelector(), [bytearray() for _ in requests]
    for i, request in enumerate(requests):
        connection = served.raw(request)
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ, i)
    begun = set()
    while selector.get_map():
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
            print(f"ttft, {name}: P50 {percentile(times, .5):.2f} ms, P99 {percentile(times, .99):.2f} ms, with connecting and the "
                  f"engine's step")


def rate():
    streams, tokens = 64, 128
    with tempfile.TemporaryDirectory() as folder:
        model, flags = folder + "/model", ["--max-num-seqs", "64", "--max-model-len", "512", "--kv-cache-memory", "2"]
        subprocess.run([INVAR, "make-model", model, "--preset", "bench-100m"], check=True, stdout=subprocess.DEVNULL)
        draws = random.Random(1)
        bodies = [dict(prompt=[draws.randrange(1000) for _ in range(32)], max_tokens=tokens, seed=i, ignore_eos=True)
                  for i in range(streams)]
        lines = pathlib.Path(folder, "in.jsonl")
        lines.write_text("".join(json.dumps({"custom_id": str(i), "url": COMPLETIONS, "body": {**b, "logits_hash": False}}) + "\n"
                                 for i, b in enumerate(bodies)))
        best = {"offline": 0, "HTTP": 0}
        for _ in range(3):
            done = subprocess.run([INVAR, "generate", model, "--input", lines, "--output", folder + "/out.jsonl", *flags],
                                  capture_output=True, check=True)
            best["offline"] = max(best["offline"], float(re.search(rb"([\d.]+) tok/s", done.stderr)[1]))
            served = Served(INVAR, command=[INVAR, "serve", model, "--host", "127.0.0.1", "--port", "0", *flags])
            all_streams(served, [request_bytes(**{**b, "max_tokens": 1}, stream=True) for b in bodies])
            begin, cpu = time.perf_counter(), client_seconds()
            answers = all_streams(served, [request_bytes(**b, stream=True) for b in bodies])
            seconds, cpu = time.perf_counter() - begin, client_seconds() - cpu
            served.stop()
            assert all(a.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for a in answers)
            # The client takes its time from the engine's cores.
            best["HTTP"] = max(best["HTTP"], streams * tokens / (seconds - cpu / os.cpu_count()))
            print(f"rate: offline {best['offline']:.0f} tok/s, HTTP {best['HTTP']:.0f} tok/s "
                  f"({100 * best['HTTP'] / best['offline']:.1f} %), client's CPU time {cpu:.2f} s of {seconds:.2f} s")


def streams():
    served = Served(INVAR, "--max-num-seqs", "512", "--max-num-batched-tokens", "512", "--max-connections", "4096",
                    "--timeout-keep-alive", "600")
    all_streams(served, [request_bytes(prompt="x", max_tokens=2, stream=True)] * 32)
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
    print(f"streams: {(with_idle - base) / 2000 / 1024:.1f} KiB for an idle connection of 2000, "
          f"{(peak[0] - with_idle) / 512 / 1024:.1f} KiB for a stream with all 512 begun ({live[0]:.0f} live then), {whole} of 512 complete")


def unique():
    for arith in ("portable", "control"):
        served = Served(INVAR, "--arith", arith)
        for temperature in (0, 0.8):
            def one(i):
                draws = random.Random(i)
                if i % 4:  # a neighbour
                    served.post(COMPLETIONS, prompt=[draws.randrange(300) for _ in range(draws.randrange(1, 200))],
                                max_tokens=draws.randrange(1, 32), seed=i)
                    return None
                done = served.post(COMPLETIONS, prompt="The bits of an answer", max_tokens=32, seed=1, ignore_eos=True,
                                   temperature=temperature, logits_hash=True)
                return done["choices"][0]["logits_hash"], done["choices"][0]["text"]

            with concurrent.futures.ThreadPoolExecutor(32) as pool:
                found = [answer for answer in pool.map(one, range(4000)) if answer]
            print(f"unique, {arith}, temperature {temperature}: {len(found)} answers, {len({t for _, t in found})} texts, "
                  f"{len({h for h, _ in found})} logits hashes")
        served.stop()


if __name__ == "__main__":
    INVAR = str(pathlib.Path(sys.argv[1]).resolve())
    for name in sys.argv[2:] or ["ttft", "rate", "streams", "unique"]:
        globals()[name]()
