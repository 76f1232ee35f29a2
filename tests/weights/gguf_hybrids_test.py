#!/usr/bin/env python3
"""GGUF files of models with states. A file that gguf_hybrids.py makes of a directory by the format's rules has the directory's logits, and
so has one that `invar convert --gguf bf16` writes; one of q8_0 has those of the directory that it stands for. Files whose lists and
tensors do not fit get a sentence. Usage: gguf_hybrids_test.py INVAR [--control]; the control changes one number of each file,
and expects other logits."""
import json, pathlib, subprocess, sys, tempfile

import numpy

from gguf_files import read_directory, write, write_directory
from gguf_hybrids import Converted

INVAR, CONTROL = sys.argv[1], "--control" in sys.argv
SHAPE = ["--preset", "tiny", "--hidden", "256", "--max-positions", "512"]
# A family, its layers, and the one that is left out.
MODELS = [("lfm2", 4, None), ("lfm2_moe", 4, None), ("granitemoehybrid", 4, None), ("nemotron_h", 3, None), ("nemotron_h", 4, 1),
          ("falcon_h1", 2, None), ("kimi_linear", 4, None), ("qwen3_next", 4, None), ("qwen3_5_text", 4, None), ("qwen3_5_moe_text", 4, None)]
TEXT = "The order of every sum is fixed once, as a small tree. " * 3


def run(*words):
    done = subprocess.run([INVAR, *map(str, words)], capture_output=True, text=True, timeout=300)
    return json.loads(done.stdout) if done.returncode == 0 and "--json" in words else done.stdout + done.stderr.strip()


def answer(model, *flags):
    made = run("generate", model, "--max-model-len", 256, "--max-tokens", 4, "--ignore-eos", "-p", TEXT, *flags, "--json")
    return made["logits_hash"] if isinstance(made, dict) else made


def check_written(family, made, folder):
    """Compares what convert writes, in bf16 and in blocks, with the directories that the files stand for."""
    small = "q4_k" if family == "qwen3_5_text" else "q8_0"  # blocks longer than a head, whose columns are moved
    for kind in ("bf16", small):
        said = run("convert", made, folder / f"{kind}.gguf", "--gguf", kind)
        if not (folder / f"{kind}.gguf").exists():
            print(f"{family}: {said}")
            return 1
    run("convert", folder / f"{small}.gguf", folder / "twin", "--dequantize")
    made, bf16, blocks, twin = (answer(path) for path in (made, *(folder / name for name in ("bf16.gguf", f"{small}.gguf", "twin"))))
    others = [answer(folder / f"{small}.gguf", "--isa", isa) for isa in ("scalar", "avx2")]
    good = made == bf16 != blocks == twin and set(others) == {blocks} and len(blocks) == 64
    print(f"{family}, written: {'equal' if good else (made, bf16, blocks, twin, others)}", flush=True)
    return not good


def check_made(family, made, folder):
    """Makes a file of the directory by the format's rules; with the control one number is another."""
    found = Converted(made)
    if CONTROL:
        name = next(name for name in found.tensors if name.endswith(("ssm_a", "shortconv.conv.weight")))
        found.tensors[name].reshape(-1)[1] *= 1.5
    write(folder / "made.gguf", found.keys, found.tensors)
    expected, here = answer(made), answer(folder / "made.gguf")
    print(f"{family}, {found.name}: {expected[:16]} {here if len(here) != 64 else here[:16]}", flush=True)
    return here != expected or len(here) != 64


def without_layer(number, made, folder):
    """The same without one layer: a file's network layers are of one kind."""
    config = json.loads((made / "config.json").read_text())
    del config["layers_block_type"][number]
    config["num_hidden_layers"] -= 1
    tensors = {}
    for name, value in read_directory(made).items():
        parts = name.split(".")
        if parts[1] == "layers":
            if int(parts[2]) == number:
                continue
            parts[2] = str(int(parts[2]) - (int(parts[2]) > number))
        tensors[".".join(parts)] = value
    folder.mkdir()
    for path in made.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    (folder / "config.json").write_text(json.dumps(config))
    write_directory(folder, tensors)
    return folder


def check_refusals(made, folder):
    """Lists and tensors that do not fit."""
    found, faults = Converted(made), 0
    name = found.name
    cases = [({f"{name}.attention.head_count_kv": [4, 0]}, {}, f"{name}.attention.head_count_kv: expected one for each of 3 layers, found 2"),
             ({f"{name}.ssm.group_count": None}, {}, f"{name}.ssm.group_count is missing"),
             ({f"{name}.ssm.time_step_rank": 7}, {}, f"{name}.ssm.time_step_rank: expected a number that divides"),
             ({f"{name}.moe_latent_size": 64}, {}, f"{name}.moe_latent_size"),
             ({}, {"blk.0.ssm_a": None}, '"blk.0.ssm_a" is missing'),
             ({}, {"blk.0.ssm_a": -found.tensors["blk.0.ssm_a"]}, "expected numbers below 0, found"),
             ({}, {"blk.0.ssm_conv1d.weight": found.tensors["blk.0.ssm_conv1d.weight"][:, :3]}, "expected shape")]
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


def check_module(made, folder):
    """A module that predicts further: a file with one has the directory's answer, also where it drafts; a part of one is refused."""
    found, last = Converted(made), 3
    name, width = found.name, found.config["hidden_size"]
    for tensor in [tensor for tensor in found.tensors if tensor.startswith(f"blk.{last}.")]:
        found.tensors[tensor.replace(f"blk.{last}.", f"blk.{last + 1}.")] = found.tensors[tensor]
    found.put(f"blk.{last + 1}.nextn.eh_proj.weight", numpy.eye(width, 2 * width))
    for norm in ("enorm", "hnorm", "shared_head_norm"):
        found.put(f"blk.{last + 1}.nextn.{norm}.weight", numpy.ones(width))
    found.keys |= {f"{name}.block_count": last + 2, f"{name}.nextn_predict_layers": 1}
    write(folder / "module.gguf", found.keys, found.tensors)
    del found.tensors[f"blk.{last + 1}.nextn.enorm.weight"]
    write(folder / "part.gguf", found.keys, found.tensors)
    drafts = json.dumps({"method": "mtp", "num_speculative_tokens": 2})
    expected, here = answer(made), [answer(folder / "module.gguf"), answer(folder / "module.gguf", "--speculative-config", drafts)]
    refused = answer(folder / "part.gguf")
    good = set(here) == {expected} and "nextn.enorm.weight\" is missing" in refused
    print(f"{name}, a module: {'equal' if good else (expected, here, refused)}", flush=True)
    return not good


def check_sections(made, folder):
    """Pairs that turn by no position, or by more than there are: one sentence, at once."""
    found, faults = Converted(made), 0
    cases = ((None, [3, 3, 1, 0], "rope.dimension_sections"), (None, 5, "rope.dimension_sections"),
             (None, [-(1 << 62)] * 4, "rope.dimension_sections"), (1 << 47, [1 << 46] * 4, "partial_rotary_factor"))
    for pairs, sections, sentence in cases:
        keys = found.keys | {f"{found.name}.rope.dimension_sections": sections} | ({f"{found.name}.rope.dimension_count": pairs} if pairs else {})
        write(folder / "sections.gguf", keys, found.tensors)
        here = answer(folder / "sections.gguf")
        good = sentence in here and len(here.splitlines()) == 1
        faults += not good
        if not good:
            print(f"expected a sentence on the sections {sections}, found {here!r}")
    return faults


def change(made, **said):
    path = made / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | said))


def check_multipliers(made, folder):
    """Falcon H1 with numbers of the published models by which nothing is exact, and norms: written files have the directory's bits,
    which are not those without the numbers. What no file says is refused."""
    before, faults = answer(made), 0
    change(made, embedding_multiplier=5.656854249492381, lm_head_multiplier=0.0390625 * 0.7, mamba_rms_norm=True, mamba_norm_before_gate=False)
    tensors = read_directory(made)
    width = json.loads((made / "config.json").read_text())["mamba_d_ssm"]
    for i in range(2):
        tensors[f"model.layers.{i}.mamba.norm.weight"] = numpy.float32(1) + numpy.arange(width, dtype=numpy.float32) % 8 / 8
    write_directory(made, tensors)
    faults += before == answer(made)
    faults += check_written("falcon_h1, multipliers", made, folder)
    for said, sentence in (({"mamba_norm_before_gate": True}, "cannot say all of what its config.json says: some number is another"),
                           ({"tie_word_embeddings": True}, "expected a head of its own beside multipliers")):
        change(made, **said)
        here = run("convert", made, folder / "refused.gguf", "--gguf", "bf16")
        good = sentence in here and not (folder / "refused.gguf").exists()
        faults += not good
        if not good:
            print(f"expected {sentence!r}, found {here!r}")
    return faults


def main():
    faults = 0
    for family, layers, left_out in MODELS:
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            said = run("make-model", folder / "first", *SHAPE, "--family", family, "--layers", layers)
            made = folder / "first"
            if not (made / "config.json").exists():
                sys.exit(said)
            if left_out is not None:
                made = without_layer(left_out, made, folder / "second")
            if family == "falcon_h1":
                change(made, embedding_multiplier=4.0, lm_head_multiplier=0.125)  # so that bf16 products are exact
            faults += check_made(family, made, folder)
            if CONTROL:
                continue
            faults += check_written(family, made, folder)
            if family == "falcon_h1":
                (folder / "again").mkdir()
                faults += check_multipliers(made, folder / "again")
            faults += family == "qwen3_5_text" and check_module(made, folder)
            faults += family == "qwen3_5_text" and check_sections(made, folder)
            if left_out is not None:
                faults += check_refusals(made, folder)
    print(f"{faults} faults")
    sys.exit(faults != len(MODELS) if CONTROL else faults > 0)


main()
