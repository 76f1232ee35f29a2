#!/usr/bin/env python3
"""The digest of weights (docs/numerics.md, 8) of every way to store them, computed from the page alone, beside the program's.
Usage: digests_page_test.py INVAR

Made models in bf16, as W8A8, as FP8 with a scale for each block of 128 x 128, and as GGUF files of bf16, q8_0, q4_0 and q4_k.
The controls: each choice that the page makes, made otherwise, gives other digests.
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import from_the_page as page

INVAR = sys.argv[1]
# ggml's numbers of types, by the page's names.
GGUF_TYPES = {0: "f32", 1: "f16", 2: "q4_0", 8: "q8_0", 12: "q4_k", 30: "bf16"}
CODES = {"f32": "<f4", "f16": "<f2", "bf16": "<u2"}


class Reader:
    """Values of a GGUF file one after the other."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, code):
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def text(self):
        size = self.take("Q")
        self.at += size
        return self.data[self.at - size:self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            of = self.take("I")
            return [self.value(of) for _ in range(self.take("Q"))]
        return self.take("BbHhIif?__Qqd"[kind])


def gguf_tensors(path, reverses=True):
    r = Reader(open(path, "rb").read())
    magic, _, count, keys = r.take("I"), r.take("I"), r.take("Q"), r.take("Q")
    assert magic == 0x46554747, "no GGUF file"
    metadata = {}
    for _ in range(keys):
        name = r.text()
        metadata[name] = r.value(r.take("I"))
    heads = [(r.text(), [r.take("Q") for _ in range(r.take("I"))], GGUF_TYPES[r.take("I")], r.take("Q")) for _ in range(count)]
    alignment = metadata.get("general.alignment", 32)
    begin, tensors = -(-r.at // alignment) * alignment, {}
    for name, dims, kind, offset in heads:
        shape = dims[::-1] if reverses else dims
        if kind in page.BLOCKS:
            size, bytes_of = page.BLOCKS[kind]
            shape = shape[:-1] + [shape[-1] // size * bytes_of]
        code = CODES.get(kind, "u1")
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(code).itemsize
        tensors[name] = (kind, np.frombuffer(r.data[begin + offset:begin + offset + size], code).reshape(shape))
    return tensors


E4M3 = np.array([(-1 if b & 128 else 1) * ((b & 7) * 2.0**-9 if not b & 120 else (8 + (b & 7)) * 2.0**((b >> 3 & 15) - 10)) for b in range(256)], np.float32)


def e4m3_twins(folder):
    """Of an FP8 directory, whose matrices stand beside scales of blocks of 128 x 128."""
    tensors = page.read_tensors(folder)
    for name in [name for name in tensors if name.endswith(".weight_scale_inv")]:
        of = name.removesuffix("_scale_inv")
        scales, elements = tensors.pop(name)[1], E4M3[tensors[of][1]]
        rows, columns = elements.shape
        spread = np.repeat(np.repeat(scales, 128, 0), 128, 1)[:rows, :columns]
        twin = page.bf16(elements * spread.astype(np.float32))
        tensors[of] = ("bf16", (twin.view(np.uint32) >> 16).astype(np.uint16))
    return tensors


def run(*words):
    return subprocess.run([INVAR, *map(str, words)], check=True, capture_output=True, text=True).stdout


def digest_of(model):
    return json.loads(run("inspect", model, "--json", "--digest"))["weights_digest"]


def main():
    page.DTYPES.update({"I8": ("i8", "i1"), "F8_E4M3": ("e4m3", "u1")})
    failed, all_digests = 0, set()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run("make-model", folder / "bf16", "--preset", "tiny", "--layers", 2, "--hidden", 256, "--ffn", 512)
        for how in ("w8a8", "fp8"):
            run("convert", folder / "bf16", folder / how, f"--{how}")
        for kind in ("bf16", "q8_0", "q4_0", "q4_k"):
            run("convert", folder / "bf16", folder / f"{kind}.gguf", "--gguf", kind)
        cases = [(folder / "bf16", page.read_tensors(folder / "bf16")), (folder / "w8a8", page.read_tensors(folder / "w8a8")),
                 (folder / "fp8", e4m3_twins(folder / "fp8")), *((path, gguf_tensors(path)) for path in sorted(folder.glob("*.gguf")))]
        for path, tensors in cases:
            ours, theirs = page.weights_digest(tensors), digest_of(path)
            failed += ours != theirs
            all_digests.add(ours)
            print(f"{path.name}: {theirs[:16]} {'equal' if ours == theirs else f'DIFFERENT: {ours[:16]}'}", flush=True)
        others = {"dimensions in the file's order": gguf_tensors(folder / "bf16.gguf", reverses=False),
                  "W8A8 without its scales": {n: t for n, t in page.read_tensors(folder / "w8a8").items() if "scale" not in n}}
        for what, tensors in others.items():
            if page.weights_digest(tensors) in all_digests:
                failed += 1
                print(f"{what}: expected another digest, found the same")
    assert len(all_digests) == len(cases), "different files have one digest"
    sys.exit(failed > 0)


main()
