#!/usr/bin/env python3
"""GGUF files of Gemma 4. A file that gguf_hybrids.py makes of a directory by the format's rules has the directory's logits, and so has one
that `invar convert --gguf bf16` writes; one of q8_0 has those of the directory that it stands for. Files whose lists and tensors do not
fit get a sentence. Usage: gguf_gemma4_test.py INVAR [--control]; the control changes one number of each file, and expects other logits."""
import json, pathlib, subprocess, sys, tempfile

import numpy

from gguf_files import read_directory, write, write_directory
from gguf_hybrids import Converted

INVAR, CONTROL = sys.argv[1], "--control" in sys.argv
SIZES = ["--hidden", 256, "--heads", 8, "--kv-heads", 4, "--head-dim", 32, "--ffn", 256, "--vocab", 512, "--max-positions", 512]
SHARED = ["--preset", "tiny", "--family", "gemma4_text", "--layers", 6, *SIZES]
# Late layers that share keys, with what tokens bring to each layer; the same, twice as wide; experts, and keys that are values.
MODELS = {"shared": SHARED, "wide": SHARED,
          "experts": ["--preset", "gemma-4-26b-a4b", "--layers", 6, "--experts", 8, "--experts-per-token", 2, *SIZES]}
TEXT = "The order of every sum is fixed once, as a small tree. " * 3


def run(*words):
    done = subprocess.run([INVAR, *map(str, words)], capture_output=True, text=True, timeout=300)
    return json.loads(done.stdout) if done.returncode == 0 and "--json" in words else done.stdout + done.stderr.strip()


def answer(model, *flags):
    made = run("generate", model, "--max-model-len", 256, "--max-tokens", 4, "--ignore-eos", "-p", TEXT, *flags, "--json")
    return made["logits_hash"] if isinstance(made, dict) else made


def widened(made, folder):
    """The same with networks twice as wide in layers that share keys."""
    config = json.loads((made / "config.json").read_text())
    first = config["num_hidden_layers"] - config["num_kv_shared_layers"]
    config["use_double_wide_mlp"] = True
    tensors = read_directory(made)
    for name, value in tensors.items():
        if ".mlp." in name and int(name.split(".")[2]) >= first:
            tensors[name] = numpy.concatenate([value, value[::-1] if "down" not in name else value / 2], axis=int("down" in name))
    folder.mkdir()
    for path in made.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    (folder / "config.json").write_text(json.dumps(config))
    write_directory(folder, tensors)
    return folder


def check_written(name, made, folder):
    """Compares what convert writes, in bf16 and in blocks, with the directories that the files stand for."""
    for kind in ("bf16", "q8_0", "q4_0"):
        said = run("convert", made, folder / f"{kind}.gguf", "--gguf", kind)
        if not (folder / f"{kind}.gguf").exists():
            print(f"{name}: {said}")
            return 1
    found = {kind: answer(folder / f"{kind}.gguf") for kind in ("bf16", "q8_0", "q4_0")}
    twins = {}
    for kind in ("q8_0", "q4_0"):
        run("convert", folder / f"{kind}.gguf", folder / kind, "--dequantize")
        twins[kind] = answer(folder / kind)
    others = [answer(folder / "q8_0.gguf", "--isa", "avx2")]
    good = (answer(made) == found["bf16"] and len(set(found.values())) == 3 and all(found[k] == twins[k] for k in twins) and
            set(others) == {found["q8_0"]} and all(len(h) == 64 for h in found.values()))
    print(f"{name}, written: {'equal' if good else (answer(made), found, twins, others)}", flush=True)
    return not good


def check_made(name, made, folder):
    """Makes a file of the directory by the format's rules; with the control one number is another."""
    found = Converted(made)
    if CONTROL:
        found.tensors["blk.1.layer_output_scale.weight"][0] *= 1.5
    write(folder / "made.gguf", found.keys, found.tensors)
    expected, here = answer(made), answer(folder / "made.gguf")
    print(f"{name}: {expected[:16]} {here if len(here) != 64 else here[:16]}", flush=True)
    return here != expected or len(here) != 64


def check_unread(made, folder):
    """Matrices that nothing reads, as published files have them of layers that share keys; and one that is no such."""
    found, faults = Converted(made), 0
    for layer, is_read in ((5, True), (0, False)):
        tensors = dict(found.tensors)
        tensors[f"blk.{layer}.attn_v.weight"] = found.tensors["blk.0.attn_v.weight"]
        tensors[f"blk.{layer}.attn_k.weight"] = found.tensors["blk.0.attn_k.weight"]
        if not is_read:
            tensors[f"blk.{layer}.attn_x.weight"] = found.tensors["blk.0.attn_k.weight"]
        write(folder / "more.gguf", found.keys, tensors)
        faults += (answer(folder / "more.gguf") == answer(made)) != is_read
    return faults


def check_refusals(made, folder):
    """Lists and tensors that do not fit."""
    found, faults = Converted(made), 0
    factors = found.tensors["rope_freqs.weight"]
    widths = found.keys["gemma4.feed_forward_length"]
    cases = [({"gemma4.attention.head_count_kv": [4, 4]}, {}, "gemma4.attention.head_count_kv: expected one for each of 6 layers, found 2"),
             ({"gemma4.attention.head_count_kv": [4, 4, 2, 4, 4, 4]}, {}, "expected one number for all layers with a window"),
             ({"gemma4.attention.shared_kv_layers": 6}, {}, "gemma4.attention.shared_kv_layers: expected 0 to 5, found 6"),
             ({"gemma4.feed_forward_length": [widths] * 5 + [3 * widths]}, {}, "gemma4.feed_forward_length: expected"),
             ({"gemma4.attention.value_length_swa": 8}, {}, "expected keys as long as values, found 32 and 8"),
             ({"gemma4.rope.dimension_count": 8}, {}, "gemma4.rope.dimension_count: expected the 64 elements of a head, found 8"),
             ({"gemma4.altup.num_inputs": 4}, {}, "gemma4.altup.num_inputs"),
             ({}, {"rope_freqs.weight": None}, 'the tensor "rope_freqs.weight" is missing'),
             ({}, {"rope_freqs.weight": factors[:8]}, "expected 32 factors, found 8"),
             ({}, {"rope_freqs.weight": numpy.where(factors == 1, 2, factors)}, "expected 1 and then numbers from 1e30 on, found 2"),
             ({}, {"blk.0.layer_output_scale.weight": None}, '"blk.0.layer_output_scale.weight" is missing')]
    for keys, tensors, sentence in cases:
        said = {key: value for key, value in (found.keys | keys).items() if value is not None}
        of = {key: value for key, value in (found.tensors | tensors).items() if value is not None}
        write(folder / "broken.gguf", said, of)
        here = answer(folder / "broken.gguf")
        good = sentence in here and len(here.splitlines()) == 1
        faults += not good
        if not good:
            print(f"expected {sentence!r}, found {here!r}")
    return faults


def main():
    faults = 0
    for name, shape in MODELS.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder, made = pathlib.Path(scratch), pathlib.Path(scratch) / "first"
            said = run("make-model", made, *shape)
            if not (made / "config.json").exists():
                sys.exit(said)
            if name == "wide":
                made = widened(made, folder / "second")
            faults += check_made(name, made, folder)
            if CONTROL:
                continue
            faults += check_written(name, made, folder)
            if name == "shared":
                faults += check_unread(made, folder) + check_refusals(made, folder)
    print(f"{faults} faults")
    sys.exit(faults != len(MODELS) if CONTROL else faults > 0)


main()
