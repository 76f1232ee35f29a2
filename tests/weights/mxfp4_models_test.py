#!/usr/bin/env python3
"""A gpt-oss whose experts are MXFP4, in a directory and in a GGUF file, has the logits of its bf16 twin, on every instruction set and
number of ranks, and takes less memory. All are made here from the formats' rules alone. Usage: mxfp4_models_test.py INVAR"""
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


NAMES = {"input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "post_attention_norm.weight",
         "self_attn.o_proj": "attn_output", "self_attn.sinks": "attn_sinks.weight", "mlp.router": "ffn_gate_inp",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
OUTSIDE = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight", "model.norm.weight": "output_norm.weight"}


def in_ggml_order(data, scales, rows):
    """The blocks of some rows: the scale, then of each byte the lower half as element i and the upper as element i + 16."""
    per = len(scales) // rows[1]
    out = bytearray()
    for row in range(*rows):
        for b in range(row * per, (row + 1) * per):
            codes = [data[b * 16 + i // 2] >> 4 * (i % 2) & 15 for i in range(32)]
            out += bytes([scales[b]] + [codes[i] | codes[i + 16] << 4 for i in range(16)])
    return bytes(out)


def as_f32(data):
    return b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))


def write_gguf(path, config, stored):
    tensors = []
    for name, (kind, shape, data) in stored.items():
        if name.endswith("_scales"):
            continue
        layer = (name + "..").split(".")[2]
        here = OUTSIDE.get(name, f"blk.{layer}." + name.removeprefix(f"model.layers.{layer}."))
        for old, new in NAMES.items():
            here = here.replace(old, new)
        if name.endswith("_proj_bias") or name.endswith("_blocks"):
            which = name.split(".")[-1]
            for i, part in enumerate(["down"] if which.startswith("down") else ["gate", "up"]):
                step = 1 if part == "down" else 2
                if which.endswith("_bias"):
                    mine = b"".join(data[2 * j:2 * j + 2] for j in range(i, len(data) // 2, step))
                    tensors.append((f"blk.{layer}.ffn_{part}_exps.bias", 0, (shape[1] // step, shape[0]), as_f32(mine)))
                else:
                    rows = (i, shape[0] * shape[1], step)
                    blocks = in_ggml_order(data, stored[name.replace("_blocks", "_scales")][2], rows)
                    tensors.append((f"blk.{layer}.ffn_{part}_exps.weight", 39, (shape[2] * 32, shape[1] // step, shape[0]), blocks))
            continue
        is_matrix = len(shape) == 2 and "ffn_gate_inp" not in here
        tensors.append((here, 30 if is_matrix else 0, tuple(reversed(shape)), data if is_matrix else as_f32(data)))
    made, c, a = Made("llama", 1, ["q8_0"]), config, "gpt-oss"
    keys = {"general.architecture": a, f"{a}.block_count": c["num_hidden_layers"], f"{a}.embedding_length": c["hidden_size"],
            f"{a}.context_length": c["max_position_embeddings"], f"{a}.feed_forward_length": c["intermediate_size"],
            f"{a}.expert_feed_forward_length": c["intermediate_size"], f"{a}.attention.head_count": c["num_attention_heads"],
            f"{a}.attention.head_count_kv": c["num_key_value_heads"], f"{a}.attention.key_length": c["head_dim"],
            f"{a}.attention.value_length": c["head_dim"], f"{a}.attention.layer_norm_rms_epsilon": c["rms_norm_eps"],
            f"{a}.attention.sliding_window": c["sliding_window"], f"{a}.rope.freq_base": c["rope_theta"],
            f"{a}.rope.scaling.type": "yarn", f"{a}.rope.scaling.factor": c["rope_scaling"]["factor"],
            f"{a}.rope.scaling.original_context_length": c["rope_scaling"]["original_max_position_embeddings"],
            f"{a}.expert_count": c["num_local_experts"], f"{a}.expert_used_count": c["num_experts_per_tok"]}
    keys |= {key: value for key, value in made.metadata().items() if key.startswith("tokenizer.")}
    made.metadata = lambda: keys
    path.write_bytes(made.gguf(tensors))
    return path


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
        path = write_gguf(folder / "model.gguf", config, stored)
        for flags in [("--isa", "avx2"), ("--tensor-parallel-size", 2), ()]:
            found = answer(path, *flags)
            faults += found != expected
            print("GGUF", " ".join(map(str, flags)), found[:160], "equal" if found == expected else "DIFFERS from " + expected)
        # The control: one code of one expert.
        name = "model.layers.1.mlp.experts.down_proj_blocks"
        kind, shape, data = stored[name]
        changed = answer(write(folder / "changed", config | quantization, stored | {name: (kind, shape, bytes(b ^ 1 for b in data))}))
        faults += changed == expected or len(changed) != 64
        sizes = [run("inspect", folder / which, "--json")["weight_bytes"] for which in ("blocks", "twin", "model.gguf")]
        faults += not sizes[0] == sizes[2] < 0.7 * sizes[1]
        print(f"changed {changed[:16]}; weights in memory {sizes} bytes; {faults} faults")
    sys.exit(faults > 0)


main()
