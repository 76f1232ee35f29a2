#!/usr/bin/env python3
"""A GGUF file of blocks of every type has the logits of its bf16 twin, which is made from the page (gguf_models.py), on every
instruction set, for one rank and two, in both orders, in one file or three.
Usage: gguf_models_test.py INVAR [--device cuda] [--control]; with --control the files have one bit changed and must differ."""
import json, pathlib, subprocess, sys, tempfile

from gguf_models import ARCHITECTURES, TYPES, Made, with_other_scale

INVAR, DEVICE = sys.argv[1], "cuda" if "cuda" in sys.argv else "cpu"
CONTROL = "--control" in sys.argv
WAYS = [("avx2", 1, "portable"), ("auto", 2, "portable"), ("auto", 1, "hopper"), ("avx2", 2, "hopper"), ("scalar", 1, "portable")]
if DEVICE == "cuda":
    WAYS = [("auto", ranks, order) for order in ("portable", "hopper") for ranks in (1, 2)]


def answer(model, isa="auto", ranks=1, order="portable", device="cpu"):
    words = [INVAR, "generate", model, "--isa", isa, "--tensor-parallel-size", ranks, "--arith", order, "--device", device,
             "--max-model-len", 128, "--max-tokens", 6, "--ignore-eos", "-p", "The order of every sum is fixed once. " * 2, "--json"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr}")
    return json.loads(done.stdout)["logits_hash"]


def changed(made):
    """The same with another bit in the last matrix's blocks."""
    name, kind, shape, data = made.tensors[-1 - len([t for t in made.tensors if t[1] == 0])]
    made.tensors = [(name, kind, shape, with_other_scale(kind, data)) if t[0] == name else t for t in made.tensors]
    return made


def main():
    kinds, faults = list(TYPES), 0
    for i, architecture in enumerate(ARCHITECTURES):
        made = Made(architecture, 7 + i, kinds[i * 4:] + kinds[:i * 4])
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            twin = made.write_twin(folder / "twin")
            if CONTROL:
                made = changed(made)
            whole, parts = made.write_gguf(folder / "model.gguf"), made.write_parts(folder / "parts", 3)
            expected = {order: answer(twin, order=order) for order in {order for _, _, order in WAYS}}
            for way in WAYS if not CONTROL else WAYS[:1]:
                found = answer(whole, *way, DEVICE)
                faults += found != expected[way[2]]
                print(architecture, *way, found[:16], "equal" if found == expected[way[2]] else "DIFFERS", flush=True)
            if answer(parts, device=DEVICE) != answer(whole, device=DEVICE):
                sys.exit(f"{architecture}: three parts and one file differ")
    print(f"{faults} differ")
    sys.exit(faults != len(ARCHITECTURES) if CONTROL else faults > 0)


main()
