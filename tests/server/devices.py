#!/usr/bin/env python3
"""Text, log-probabilities and the hash of all logits of 48 requests at once, greedy and sampled, in both orders: those of a
server on the CPU, and whether a server on a GPU and on two ranks of it answers the same. Ends with 1 when any differs, or when
other seeds do not change every sampled answer."""
import argparse
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
    def ask(i):
        return served.post("/v1/completions", **request(i, first_seed + i))["choices"][0]

    with concurrent.futures.ThreadPoolExecutor(REQUESTS) as pool:
        return list(pool.map(ask, range(REQUESTS)))


def answers_of(invar, model, flags, first_seeds):
    """Of one server, for each of the first seeds."""
    served = Served(invar, command=[invar, "serve", model, "--host", "127.0.0.1", "--port", "0", "--max-model-len", "512",
                                    "--kv-cache-memory", "0.25", *flags.split()])
    found = [answers(served, seed) for seed in first_seeds]
    assert served.stop() == 0
    return found


def main(invar, model, ways):
    failed = False
    for order in "--arith portable", "--arith hopper":
        [expected, others] = answers_of(invar, model, f"{order} --device cpu", [0, REQUESTS])
        changed = sum(a != b for a, b in zip(expected, others))
        print(f"{order} --device cpu: other seeds change {changed} of {REQUESTS // 2} sampled answers", flush=True)
        failed |= changed < REQUESTS // 2
        for way in map(str.strip, ways):
            [found] = answers_of(invar, model, f"{order} {way}", [0])
            same = sum(a == b for a, b in zip(found, expected))
            print(f"{order} {way}: {same} of {REQUESTS} as on the CPU", flush=True)
            failed |= same < REQUESTS
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("invar", metavar="INVAR", help="the program")
    parser.add_argument("model", metavar="MODEL", help="a model's directory")
    parser.add_argument("ways", metavar="FLAGS", nargs="*", default=["--device cuda", "--device cuda --tensor-parallel-size 2"],
                        help="a server's flags in one word with a space before them (default: %(default)s)")
    arguments = parser.parse_args()
    sys.exit(main(arguments.invar, arguments.model, arguments.ways))
