#!/usr/bin/env python3
"""Recorded logits hashes of whole answers: what Invar computed once, it computes for ever.

Usage: recorded_hashes_test.py INVAR [--device cuda]

recorded.json has a row for each model, arithmetic and answer. A row is never recorded again; a new one is appended with the
hash that this program prints for it ("hash": ""). The hash covers every logit of every step of 24 sampled tokens.
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TEXT = ("The order of every sum is fixed once, as a small tree that depends on the shape of the model only. Tiles, splits,\n"
        "chunks, ranks and draft trees are then schedules of the same tree: free to tune, unable to change a bit. ")


def invar(program, *arguments):
    run = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    if run.returncode != 0:
        sys.exit(f"invar {' '.join(map(str, arguments))}: {run.stderr.strip()}")
    return run.stdout


def widen(directory):
    """Stores the bf16 tensors of a checkpoint as f32, the values unchanged."""
    path = directory / "model.safetensors"
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8:8 + size]), data[8 + size:]
    wide, out = {}, bytearray()
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        begin, end = tensor["data_offsets"]
        words = struct.unpack(f"<{(end - begin) // 2}H", body[begin:end])
        at = len(out)
        out += struct.pack(f"<{len(words)}I", *(word << 16 for word in words))
        wide[name] = {"dtype": "F32", "shape": tensor["shape"], "data_offsets": [at, len(out)]}
    text = json.dumps(wide).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + out)


class Models:
    """The directories of made models, each made once."""

    def __init__(self, program, root):
        self.program, self.root, self.made = program, pathlib.Path(root), {}

    def path(self, row):
        """The directory, or where the row names a type of blocks a GGUF file of them."""
        directory = self.directory(row)
        if "gguf" not in row:
            return directory
        file = self.root / f"{directory.name}-{row['gguf']}.gguf"
        if not file.exists():
            invar(self.program, "convert", directory, file, "--gguf", row["gguf"])
        return file

    def directory(self, row):
        arguments, is_f32 = row["make"], row.get("f32", False)
        if isinstance(arguments, str):  # one that stands in the repository
            return HERE.parent.parent / arguments
        key = (*arguments, is_f32)
        if key not in self.made:
            self.made[key] = self.root / str(len(self.made))
            invar(self.program, "make-model", self.made[key], "--seed", 1, *arguments)
            if is_f32:
                widen(self.made[key])
        return self.made[key]


def found_hash(program, models, row, more=()):
    answer = invar(program, "generate", models.path(row), "-p", TEXT * 3, "--max-tokens", 24, "--ignore-eos", "--temperature", 0.8,
                   "--json", "--arith", row["arith"], *row.get("flags", []), *more)
    return json.loads(answer)["logits_hash"]


def main():
    program, more = sys.argv[1], sys.argv[2:]
    rows = json.loads((HERE / "recorded.json").read_text())
    wrong = 0
    with tempfile.TemporaryDirectory() as root:
        models = Models(program, root)
        for row in rows:
            if more and ("--isa" in row.get("flags", []) or row["arith"] == "pair" or row.get("cpu")):
                continue  # a choice among the CPU's kernels, an order of CPUs, and what GPUs refuse
            found = found_hash(program, models, row, ["--seed", 5, *more])
            same = found == row["hash"]
            wrong += not same
            print(f"{'same' if same else 'DIFFERS'}  {row['arith']:9} {row['make']} {row.get('flags', '')}{'' if same else ' ' + found}")
        # The control: another seed samples other tokens, whose logits are others.
        if found_hash(program, models, rows[0], ["--seed", 6, *more]) == rows[0]["hash"]:
            sys.exit("expected another seed to give another hash, found the recorded one")
    sys.exit(f"{wrong} of {len(rows)} hashes differ from the recorded ones" if wrong else 0)


main()
