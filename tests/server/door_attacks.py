"""Attacks on single doors (docs/limits.md), for attack.py; each but `heads` and `lists` by another key than the bystander's."""
import json
import random
import socket
import time

MIB = 1 << 20
OTHER = "other"
COMPLETIONS, EMBEDDINGS, GENERATE, TOKENIZE, COUNT = "/v1/completions", "/v1/embeddings", "/generate", "/tokenize", "/v1/messages/count_tokens"


def rollouts(a):
    """Bodies of /generate that are read and refused, and some that are answered."""
    large = json.dumps({"text": "many words " * ((4 if a.quick else 30) * MIB // 11), "sampling_params": {"max_new_tokens": 1}}).encode()
    small = {"text": "x", "sampling_params": {"max_new_tokens": 4, "n": 8}, "return_logprob": True}
    a.at_once([lambda: a.ask(GENERATE, large, key=OTHER)] * (2 if a.quick else 6) + [lambda: a.ask(GENERATE, small, key=OTHER)] * 8)


def members(a):
    """Answers of many members, with what trainers ask of each token."""
    tokens = 60 if a.quick else 1500
    body = {"input_ids": [5, 6, 7], "return_logprob": True, "sampling_params": {"max_new_tokens": tokens, "n": 128, "ignore_eos": True}}
    a.at_once([lambda: a.ask(GENERATE, body, leave_after=a.end - time.monotonic(), key=OTHER)] * 4)


def likelihoods(a):
    """Answers whose log-probabilities are many times their text."""
    body = {"prompt": "x", "max_tokens": 1500, "n": 128, "logprobs": 20, "ignore_eos": True}
    a.at_once([lambda: a.ask(COMPLETIONS, body, leave_after=a.end - time.monotonic(), key=OTHER)] * 4)


def vectors(a):
    """2048 short texts in each of 400 requests; few long ones."""
    short = json.dumps({"input": ["x"] * 2048}).encode()
    long = {"input": [[random.Random(i).randrange(256, 2900) for _ in range(2000)] for i in range(16)]}
    a.at_once([lambda: a.ask(EMBEDDINGS, short, leave_after=max(1, a.end - time.monotonic()), key=OTHER)] * (40 if a.quick else 400))
    a.at_once([lambda: a.ask(EMBEDDINGS, long, leave_after=2 if a.quick else 20, key=OTHER)] * 4)


def texts(a):
    """Texts that are only counted: far beyond the context, at its bound, and many at a time."""
    for size in (30 * MIB, 3 * MIB, 1 * MIB - 100):
        plain = json.dumps({"prompt": "x" * size}).encode()
        said = json.dumps({"messages": [{"role": "user", "content": "x " * (size // 2)}]}).encode()
        a.at_once([lambda: a.ask(TOKENIZE, plain, key=OTHER), lambda: a.ask(COUNT, said, key=OTHER)] * (2 if a.quick else 4))
    most = {"prompt": "".join(chr(33 + i * 7919 % 90) for i in range(250_000)), "return_token_strs": True}
    a.at_once([lambda: a.ask(TOKENIZE, most, key=OTHER)] * (8 if a.quick else 48))
    a.at_once([lambda: a.ask("/detokenize", {"tokens": [5] * 8192}, key=OTHER)] * (8 if a.quick else 48))


def lists(a):
    """Bodies of as many values and names as JSON may have, and of more."""
    count = 100_000 if a.quick else 500_000

    def object_of(size):
        return ("{" + ",".join(f'"k{i:06x}":1' for i in range(size)) + "}").encode()
    names = object_of(count)
    kept = b'{"prompt":"x","max_tokens":1,"metadata":' + object_of(130_000) + b"}"
    nested = ("[" + ",".join(["[]"] * (2 * count)) + "]").encode()
    a.at_once([lambda body=body: a.ask(COMPLETIONS, body) for body in (names, kept, nested) for _ in range(2 if a.quick else 4)])


def trees(a):
    """Bodies whose values take many times their bytes once they are parsed, each beside its own kind; some just within the bound."""
    size = 5 if a.quick else 1

    def prompt_of(item, count):
        return b'{"prompt":[' + b",".join([item] * (count // size)) + b"]}"
    for item, count in ((b'"aaaaaaaaaaaaaaaa"', 1_000_000), (b"[1]", 1_000_000), (b'"aaaaaaaaaaaaaaaa"', 550_000), (b'{"k":[1]}', 130_000)):
        a.at_once([lambda body=prompt_of(item, count): a.ask(COMPLETIONS, body)] * 3)


def heads(a):
    """Headers that never come as a whole: many small ones, and some that are as large as they may be."""
    connections = []
    for i in range(200 if a.quick else 2000):
        filler = "x" * (60_000 if i % 4 == 0 else 500)
        try:
            connection = socket.create_connection(("127.0.0.1", a.port), timeout=5)
            connection.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nX-Filler: {filler}".encode())
            connections.append(connection)
        except OSError:
            a.saw(0)
    time.sleep(1 if a.quick else 5)
    for connection in connections:
        connection.setblocking(False)
        try:
            line = connection.recv(64)
            a.saw(int(line.split()[1]) if line.startswith(b"HTTP/1.1 ") else 0)
        except BlockingIOError:
            a.saw("waits")
        except OSError:
            a.saw(0)
        connection.close()
    time.sleep(1)  # for the server to see that they have gone


# With the statuses that it may see, as attack.py's.
ATTACKS = {rollouts: {200, 400, 429, 503}, members: {200, 429, 0, "left"}, likelihoods: {200, 400, 429, 0, "left"}, vectors: {200, 429, 0, "left"}, texts: {200, 400, 413, 429, 0},
           lists: {200, 400, 503}, trees: {400, 503}, heads: {503, 408, 0, "waits"}}
