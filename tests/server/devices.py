#!/usr/bin/env python3
"""The server's answers on the CPU, on a GPU and on two ranks of it: text, log-probabilities and the hash of all logits of 48
requests at once, greedy and sampled, in both orders. Ends with 1 when any differs, or when other seeds change nothing.
Usage: devices.py INVAR MODEL [FLAGS ...], by default "--device cuda" and "--device cuda --tensor-parallel-size 2\""""
import concurrent.futures
import random
import sys

from served import Served

REQUESTS = 48


def request(i, seed):
    draw = random.Random(i)
    return dict(prompt=[draw.randrange(5, 4000) for _ in range(10 + i % 40)], max_tokens=64, temperature=0.8 * (i % 2),
                seed=seed, logprobs=2, ignore_eos=True)


def answers(served, first_seed=0):
    ask = lambda i: served.post("/v1/completions", **request(i, first_seed + i))["choices"][0]
    with concurrent.futures.ThreadPoolExecutor(REQUESTS) as pool:
        return list(pool.map(ask, range(REQUESTS)))


def main(invar, model, ways):
    failed = False
    for order in "portable", "hopper":
        expected = None
        for way in ["--device cpu", *ways]:
            served = Served(invar, command=[invar, "serve", model, "--host", "127.0.0.1", "--port", "0", "--arith", order,
                                            "--max-model-len", "512", "--kv-cache-memory", "0.25", *way.split()])
            found, others = answers(served), answers(served, REQUESTS)
            assert served.stop() == 0
            expected = expected or found
            same = sum(a == b for a, b in zip(found, expected))
            changed = sum(a != b for a, b in zip(found, others))
            print(f"{order}, {way}: {same} of {REQUESTS} as on the CPU; other seeds change {changed} of {REQUESTS // 2} sampled")
            failed |= same < REQUESTS or changed < REQUESTS // 2
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3], sys.argv[3:] or ["--device cuda", "--device cuda --tensor-parallel-size 2"]))
