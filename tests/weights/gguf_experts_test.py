#!/usr/bin/env python3
"""A GGUF file with experts has the logits of its bf16 twin, which is made from the page (gguf_expert_models.py), on every instruction set,
for one rank and two, in both orders, and takes less memory: experts in stacks by themselves, with gates and what they gate in one,
and each in a tensor of its own. Files that `invar convert` writes have the logits of what they were made of, and files whose
numbers and tensors do not fit together get a sentence. Usage: gguf_experts_test.py INVAR
[--device cuda] [--control]; with --control one bit of each expert of the last layer is changed and every file
must differ."""
import json, pathlib, subprocess, sys, tempfile

from gguf_expert_models import EXPERTS, HIDDEN, WIDTH, MadeExperts
from gguf_models import LAYERS, TYPES, with_other_scale

INVAR, DEVICE = sys.argv[1], "cuda" if "cuda" in sys.argv else "cpu"
CONTROL = "--control" in sys.argv
# (GGUF's architecture, model_type, how its experts stand there)
MODELS = [("qwen3moe", "qwen3_moe", "stacks"), ("llama", "mixtral", "alone"), ("olmoe", "olmoe", "stacks"),
          ("qwen2moe", "qwen2_moe", "fused")]
SETS = ["scalar", "avx2", "avx512", "amx"] if DEVICE == "cpu" else ["auto"]
WAYS = [(isa, ranks, "portable") for isa in SETS for ranks in (1, 2)] + [("auto", 1, "hopper"), ("auto", 2, "hopper")]


def run(*words):
    done = subprocess.run([INVAR, *map(str, words)], capture_output=True, text=True, timeout=120)
    return json.loads(done.stdout) if done.returncode == 0 and "--json" in words else done.stdout + done.stderr.strip()


def answer(model, isa="auto", ranks=1, order="portable", device="cpu"):
    made = run("generate", model, "--isa", isa, "--tensor-parallel-size", ranks, "--arith", order, "--device", device,
               "--max-model-len", 128, "--max-tokens", 6, "--ignore-eos", "-p", "The order of every sum is fixed once. " * 2, "--json")
    return (made["logits_hash"], made["identity"]) if isinstance(made, dict) else (made, "")


def changed(made):
    """The same with another bit in each expert of the last layer."""
    def with_bits(name, kind, data):
        if not name.startswith(f"blk.{LAYERS - 1}.ffn_down") or "shexp" in name:
            return data
        each = len(data) // (1 if made.layout == "alone" else EXPERTS)
        return b"".join(with_other_scale(kind, data[at:at + each]) for at in range(0, len(data), each))
    made.tensors = [(name, kind, shape, with_bits(name, kind, data)) for name, kind, shape, data in made.tensors]
    return made


def refused(made, folder):
    """Numbers and tensors that do not fit together get a sentence each."""
    a, tensors, metadata, faults = made.architecture, made.tensors, made.metadata(), 0
    without = lambda name: [t for t in tensors if t[0] != name]
    other = lambda name, shape, data: [(n, k, shape, d[:data]) if n == name else (n, k, s, d) for n, k, s, d in tensors]
    stack, router = "blk.1.ffn_up_exps.weight", "blk.1.ffn_gate_inp.weight"
    bytes_of = lambda name: next(len(d) for n, _, _, d in tensors if n == name)
    cases = [({"expert_count": 2 ** 31 - 1}, tensors, "expert_count: expected 1 to 1024, found 2147483647"),
             ({"expert_count": 0}, tensors, "expert_count: expected 1 to 1024, found 0"),
             ({"expert_count": None}, tensors, "expert_count is missing"),
             ({"expert_count": EXPERTS + 1}, tensors, "expected a row for each of 5 experts, found 4"),
             ({"expert_used_count": EXPERTS + 1}, tensors, "expert_used_count: expected 1 to 4, found 5"),
             ({"expert_used_count": None}, tensors, "expert_used_count is missing"),
             ({"block_count": 2 ** 31 - 1}, tensors, 'tensor "blk.2147483646.ffn_gate_inp.weight" is missing'),
             ({"expert_gating_func": 2}, tensors, f"{a}.expert_gating_func"),
             ({"expert_group_count": 2}, tensors, f"{a}.expert_group_count"),
             ({"expert_weights_scale": 2.5}, tensors, f"{a}.expert_weights_scale"),
             ({"expert_feed_forward_length": 2 * WIDTH}, tensors, "expected shape [4, 512, 256], found [4, 256, 256]"),
             ({}, without(router), f'tensor "{router}" is missing'),
             ({}, without(stack), f'tensor "{stack}" is missing'),
             ({}, other(stack, (HIDDEN, WIDTH, EXPERTS - 1), bytes_of(stack) * 3 // 4), "expected shape [4, 256, 256], found [3, 256, 256]"),
             ({}, other(router, (HIDDEN, EXPERTS - 1), bytes_of(router) * 3 // 4), "expected a row for each of 4 experts, found 3")]
    for keys, of, sentence in cases:
        said = metadata | {f"{a}.{key}": value for key, value in keys.items()}
        made.metadata = lambda: {key: value for key, value in said.items() if value is not None}
        (folder / "broken.gguf").write_bytes(made.gguf(of))
        found = run("generate", folder / "broken.gguf", "-p", "a", "--max-tokens", 1, "--json")
        is_refused = isinstance(found, str) and sentence in found and len(found.splitlines()) == 1
        faults += not is_refused
        if not is_refused:
            print(f"{keys}: expected {sentence!r}, found {found!r}")
    return faults


def converted(family, folder):
    """A file of bf16 has the logits of the directory that it was made of, one of blocks those of the directory that is made of it."""
    shape = {"hidden": 256, "heads": 8, "kv-heads": 8 if family == "olmoe" else 4, "head-dim": 32, "layers": 2, "ffn": 256,
             "experts": 8, "experts-per-token": 3, "vocab": 512}
    of = ["--preset", "gpt-oss-20b"] if family == "gpt_oss" else ["--family", family, "--window", 0]
    run("make-model", folder / "made", *of, *[word for name, value in shape.items() for word in (f"--{name}", value)])
    for kind in ("bf16", "q4_k"):
        run("convert", folder / "made", folder / f"{kind}.gguf", "--gguf", kind)
    run("convert", folder / "q4_k.gguf", folder / "twin", "--dequantize")
    found = [answer(folder / which) for which in ("made", "bf16.gguf", "q4_k.gguf", "twin")]
    others = [answer(folder / "q4_k.gguf", isa) for isa in ("scalar", "avx2", "avx512")]
    if family != "olmoe":
        others.append(answer(folder / "q4_k.gguf", ranks=2))
    others = [one for one in others if "is not available" not in one[0]]
    chosen = json.loads((folder / "twin" / "config.json").read_text())["num_experts_per_tok"]
    is_right = (found[0] == found[1] != found[2] == found[3] and set(others) == {found[3]} and chosen == 3 and
                all(len(hash) == 64 for hash, _ in found))
    print(f"{family}, written: {'equal' if is_right else (found, others)}", flush=True)
    return not is_right


def without_windows(family, folder):
    """A made model of a family whose published ones have windows, and which has none itself; the control has other weights."""
    faults = 0
    for seed in (1, 2):
        run("make-model", folder / f"made{seed}", "--family", family, "--seed", seed)
        run("convert", folder / f"made{seed}", folder / f"{seed}.gguf", "--gguf", "bf16")
        found = [answer(folder / which) for which in (f"made{seed}", f"{seed}.gguf")]
        faults += found[0] != found[1] or len(found[0][0]) != 64
    faults += answer(folder / "1.gguf") == answer(folder / "2.gguf")
    print(f"{family} without windows: {faults} faults", flush=True)
    return faults


def compare(made, folder):
    twin = made.write_twin(folder / "twin")
    path = (changed(made) if CONTROL else made).write_gguf(folder / "model.gguf")
    expected, faults = {}, 0
    for isa, ranks, order in WAYS if not CONTROL else [("auto", 1, "portable")]:
        if ranks == 2 and made.model_type == "olmoe":
            continue  # whose norm of all heads needs one rank
        if order not in expected:
            expected[order] = answer(twin, order=order)
        found = answer(path, isa, ranks, order, DEVICE)
        is_missing = "is not available" in found[0]
        faults += found != expected[order] and not is_missing
        print(made.model_type, made.layout, isa, ranks, order, found[0][:64], found[1],
              "" if is_missing else "equal" if found == expected[order] else "DIFFERS", flush=True)
    sizes = [run("inspect", which, "--json")["weight_bytes"] for which in (path, twin)]
    print(f"{made.model_type}: weights in memory {sizes[0]} and {sizes[1]} bytes", flush=True)
    faults += not CONTROL and not sizes[0] < 0.75 * sizes[1]
    return faults + (refused(made, folder) if made.architecture == "qwen3moe" and not CONTROL else 0)


def main():
    kinds, faults = list(TYPES), 0
    for i, (architecture, model_type, layout) in enumerate(MODELS):
        made = MadeExperts(architecture, model_type, layout, 17 + i, kinds[i * 3:] + kinds[:i * 3])
        with tempfile.TemporaryDirectory() as folder:
            faults += compare(made, pathlib.Path(folder))
    for family in ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "gpt_oss", "glm4_moe", "deepseek_v2", "deepseek_v3") if not CONTROL else ():
        with tempfile.TemporaryDirectory() as folder:
            faults += converted(family, pathlib.Path(folder))
    for family in ("gpt_oss", "gemma3_text") if not CONTROL else ():
        with tempfile.TemporaryDirectory() as folder:
            faults += without_windows(family, pathlib.Path(folder))
    print(f"{faults} faults")
    sys.exit(faults != len(MODELS) if CONTROL else faults > 0)


if __name__ == "__main__":
    main()
