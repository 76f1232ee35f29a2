#!/usr/bin/env python3
"""A gpt-oss whose experts are MXFP4 has the logits of its bf16 twin, on every instruction set and number of ranks, and takes less
memory. Both are made here from the format's rule alone. Usage: mxfp4_models_test.py INVAR"""
import json, pathlib, random, struct, subprocess, sys, tempfile

from gguf_models import bf16, byte_tokens, Made

INVAR = sys.argv[1]
ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def numbers(rng, count, usual):
    return struct.pack(f"<{count}H", *[bf16(rng.uniform(-usual, usual)) for _ in range(count)])


def blocks(rng, experts, rows, width):
    """[experts][rows][width / 32][16] and the scales, and the elements, [experts][rows][width]."""
    data, scales, elements = rng.randbytes(experts * rows * width // 2), bytearray(), []
    for b in range(len(data) // 16):
        s = 0 if b % 97 == 0 else 118 + rng.randrange(5)  # some so small that elements are subnormal, or nearly
        scales.append(s)
        for i in range(32):
            value = STEPS[data[b * 16 + i // 2] >> 4 * (i % 2) & 15] * 2.0 ** (s - 127)
            elements.append(0x8000 * (STEPS.index(value / 2.0 ** (s - 127)) >= 8 or str(value)[0] == "-") if abs(value) < 2.0 ** -126
                            else bf16(value))
    return data, bytes(scales), elements


def turned(elements, experts, rows, width):
    """[experts][width][rows], as bf16's tensors lie."""
    out = []
    for e in range(experts):
        of = elements[e * rows * width:(e + 1) * rows * width]
        for c in range(width):
            out += of[c::width]
    return struct.pack(f"<{len(out)}H", *out)


def tensors(config, rng):
    d, f, e, v = config["hidden_size"], config["intermediate_size"], config["num_local_experts"], config["vocab_size"]
    q, kv = config["num_attention_heads"] * config["head_dim"], config["num_key_value_heads"] * config["head_dim"]
    plain, stored, twin = {}, {}, {}

    def put(name, *shape, usual=0.05):
        count = 1
        for size in shape:
            count *= size
        plain[name] = ("BF16", list(shape), numbers(rng, count, usual))

    put("model.embed_tokens.weight", v, d, usual=1)
    put("lm_head.weight", v, d)
    put("model.norm.weight", d, usual=1)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            put(at + norm + ".weight", d, usual=1)
        for name, n, k in (("q", q, d), ("k", kv, d), ("v", kv, d), ("o", d, q)):
            put(f"{at}self_attn.{name}_proj.weight", n, k)
            put(f"{at}self_attn.{name}_proj.bias", n)
        put(at + "self_attn.sinks", config["num_attention_heads"])
        put(at + "mlp.router.weight", e, d)
        put(at + "mlp.router.bias", e)
        put(at + "mlp.experts.gate_up_proj_bias", e, 2 * f)
        put(at + "mlp.experts.down_proj_bias", e, d)
        for name, n, k in (("gate_up_proj", 2 * f, d), ("down_proj", d, f)):
            data, scales, elements = blocks(rng, e, n, k)
            stored[at + f"mlp.experts.{name}_blocks"] = ("U8", [e, n, k // 32, 16], data)
            stored[at + f"mlp.experts.{name}_scales"] = ("U8", [e, n, k // 32], scales)
            twin[at + f"mlp.experts.{name}"] = ("BF16", [e, k, n], turned(elements, e, n, k))
    return plain | stored, plain | twin


def write(folder, config, all):
    folder.mkdir()
    header, at = {}, 0
    for name, (kind, shape, data) in all.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in all.values()))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(Made("llama", 1, ["q8_0"]).tokenizer()))
    return folder


def run(*words):
    done = subprocess.run([INVAR, *map(str, words)], capture_output=True, text=True, timeout=120)
    return json.loads(done.stdout) if done.returncode == 0 and "--json" in words else done.stdout + done.stderr.strip()


def answer(model, *flags):
    made = run("generate", model, "--max-model-len", 128, "--max-tokens", 6, "--ignore-eos", "-p", "The order of every sum.", "--json", *flags)
    return made["logits_hash"] if isinstance(made, dict) else made


def main():
    config = json.load(open(ROOT / "families/tiny_expert_configs.json"))["gpt_oss"]
    config |= {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 264, "num_local_experts": 4}
    quantization = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}
    stored, twin = tensors(config, random.Random(5))
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        blocks_of = write(folder / "blocks", config | quantization, stored)
        expected = answer(write(folder / "twin", config, twin))
        faults += len(expected) != 64
        sets = ["scalar", "avx2", "avx512", "amx"]
        for flags in [("--isa", isa) for isa in sets] + [("--tensor-parallel-size", 2), ("--expert-placement-strategy", "shuffled:3")]:
            found = answer(blocks_of, *flags)
            missing = "is not available" in found
            faults += found != expected and not missing
            print(" ".join(map(str, flags)), found[:80], "" if missing else "equal" if found == expected else "DIFFERS from " + expected)
        # The control: one code of one expert.
        name = "model.layers.1.mlp.experts.down_proj_blocks"
        kind, shape, data = stored[name]
        changed = answer(write(folder / "changed", config | quantization, stored | {name: (kind, shape, bytes(b ^ 1 for b in data))}))
        faults += changed == expected or len(changed) != 64
        sizes = [run("inspect", folder / which, "--json")["weight_bytes"] for which in ("blocks", "twin")]
        faults += not sizes[0] < 0.7 * sizes[1]
        print(f"changed {changed[:16]}; weights in memory {sizes[0]} and {sizes[1]} bytes; {faults} faults")
    sys.exit(faults > 0)


main()
