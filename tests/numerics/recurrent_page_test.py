#!/usr/bin/env python3
"""What the kernels of recurrent layers give, bit by bit, against recurrent_from_the_page.py, which was made from
docs/numerics.md alone. Usage: recurrent_page_test.py WRITE_RECURRENT_CASE"""
import os, subprocess, sys, tempfile
import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import recurrent_from_the_page as page
from recurrent_from_the_page import F32

ROWS, TAPS, R, V, HEADS = 76, 4, 40, 24, 2


def read(path):
    """[(name of the case, arrays by name)]"""
    data, at, cases = open(path, "rb").read(), 0, []
    while at < len(data):
        end = data.index(b"\n", at)
        words, at = data[at:end].decode().split(), end + 1
        if words[0] == "case":
            cases.append((words[1:], {}))
            continue
        size = 4 * int(words[1])
        cases[-1][1][words[0]] = np.frombuffer(data[at:at + size], F32)
        at += size
    return cases


def computed(kind, order, type_name, given):
    """Arrays by name, as the page has them."""
    n, space = page.Numbers(order, type_name == "f32"), kind == "state_space"
    key_heads = 2 if kind == "channel_delta" else 1
    keys, values = key_heads * R, HEADS * V
    rows = lambda name: given[name].reshape(ROWS, -1)
    mixed = page.short_conv(n, rows("x"), given["conv"].reshape(TAPS, -1), given["conv_bias"] if space else None, True)
    g, b = page.gates(kind, rows("a"), rows("z"), given["dt_bias"], given["a_log"], kind == "delta", F32(0.01), F32(0.3))
    v, k, q = np.split(mixed, [values, values + keys], 1) if space else (mixed[:, 2 * keys:], mixed[:, keys:2 * keys], mixed[:, :keys])
    o = np.zeros((ROWS, HEADS, V), F32)
    for h in range(HEADS):
        at = slice(h * key_heads // HEADS * R, (h * key_heads // HEADS + 1) * R)
        q_h, k_h = page.keys(n, kind, q[:, at], k[:, at])
        head = page.Head(n, kind, R, V)
        for t in range(ROWS):
            o[t, h] = head.row(q_h[t], k_h[t], v[t, h * V:(h + 1) * V], g[t, h], b[t, h], given["skips"][h] if space else None)
    groups = (ROWS, 1, values) if space else (ROWS, HEADS, V)
    y = page.gated_norm(o.reshape(groups), given["gate"].reshape(groups), given["weight"], 1e-5, kind == "channel_delta", space)
    padded = np.zeros((ROWS, -(-values // 32) * 32), F32)
    padded[:, :values] = y.reshape(ROWS, values)
    return {"decays": g, "factors": b, "o": o, "y": padded}


def differing(a, b):
    return int(np.count_nonzero(a.ravel().view(np.uint32) != b.ravel().view(np.uint32)))


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "case")
        subprocess.run([sys.argv[1], path], check=True)
        cases = read(path)
    assert len(cases) == 12, len(cases)
    failed, outputs = 0, {}
    for name, given in cases:
        for what, array in computed(*name, given).items():
            wrong = differing(np.ascontiguousarray(array, F32), given[what])
            failed += wrong > 0
            print(f"{' '.join(name)}: {what}: {wrong} of {given[what].size} differ")
        outputs[tuple(name)] = given["o"]
    # The orders and types are different arithmetics.
    for (kind, order, type_name), o in outputs.items():
        others = [other for name, other in outputs.items() if name[0] == kind and name[1:] != (order, type_name)]
        assert len(others) == 3 and all(differing(o, other) > 0 for other in others), (kind, order, type_name)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
