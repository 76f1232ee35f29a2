#!/usr/bin/env python3
"""Quantised directories of Hugging Face have the logits of their bf16 twins. Both are made here from the formats' rules alone:
small Llamas, and models with experts, whose matrices are random integers, or f8 numbers, in the places where each format has them.
Usage: packed_models_test.py INVAR [--full] [--device cuda]; without --full some of the formats. With a device, its hashes are
compared with the CPU's."""
import json, pathlib, random, struct, subprocess, sys, tempfile

import gguf_models
from gguf_expert_models import MadeExperts
from gguf_models import Made, bf16, widened

INVAR = sys.argv[1]
QUICK = ["fp8-blocks", "ct-w4a16", "ct-w4a16-small-scales", "ct-w4a16-zeros-32", "gptq-v1-that-stores-8", "gptq-v1-zeros", "gptq-v2-desc-act", "awq",
         "bnb-nf4-nested"]
gguf_models.LAYERS = 1
AWQ = [0, 2, 4, 6, 1, 3, 5, 7]  # the output that nibble i of a word belongs to


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def words(values):
    return struct.pack(f"<{len(values)}I", *values)


def word(integers, bits):
    return sum(q << bits * i for i, q in enumerate(integers))


def e4m3(byte):
    exponent, significand = byte >> 3 & 15, byte & 7
    value = (1 + significand / 8) * 2.0 ** (exponent - 7) if exponent else significand / 8 * 2.0 ** -6
    return -value if byte & 128 else value


def scales_of(rng, count, kind, usual):
    """Numbers and their bytes."""
    if kind == "BF16":
        bits = [bf16(usual * rng.uniform(0.5, 1)) for _ in range(count)]
        return [widened(b) for b in bits], struct.pack(f"<{count}H", *bits)
    data = struct.pack(f"<{count}{'e' if kind == 'F16' else 'f'}", *[usual * rng.uniform(0.5, 1) for _ in range(count)])
    return list(struct.unpack(f"<{count}{'e' if kind == 'F16' else 'f'}", data)), data


def fp8(rng, module, rows, width, scale="F32", block=None, per="tensor", name="weight_scale"):
    data = bytes(rng.choice([b for b in range(256) if b & 127 < 120]) for _ in range(rows * width))
    down, across = block or (1 if per == "channel" else rows, width)
    shape = [-(-rows // down), -(-width // across)]
    s, bytes_of_scales = scales_of(rng, shape[0] * shape[1], scale, 4e-4)
    twin = [bf16(f32(e4m3(data[r * width + c]) * s[r // down * shape[1] + c // across])) for r in range(rows) for c in range(width)]
    return {module + ".weight": ("F8_E4M3", [rows, width], data),
            module + "." + name: (scale, shape if per != "tensor" or block else [], bytes_of_scales)}, twin


def integers(rng, module, rows, width, kind, bits=4, group=128, symmetric=True, order=False, scale="F16", stored_zero=None, usual=None):
    """compressed-tensors' (packed, int8), GPTQ's (gptq, gptq_v2) and AWQ's."""
    top, middle, per = (1 << bits) - 1, 1 << bits - 1, 32 // bits
    groups = width // group if group else 1
    q = [[rng.randint(0, top) for _ in range(width)] for _ in range(rows)]
    least = kind == "gptq"  # which stores one less
    z = [[middle if symmetric else rng.randint(least, top + least) for _ in range(groups)] for _ in range(rows)]
    s, _ = scales_of(rng, rows * groups, scale, usual or (1.2e-2 if bits == 4 else 7e-4))
    at = [c // group if group else 0 for c in range(width)]
    if order:
        rng.shuffle(at)
    twin = [bf16(f32((q[r][c] - z[r][at[c]]) * s[r * groups + at[c]])) for r in range(rows) for c in range(width)]
    put = {"F16": "e", "F32": "f"}.get(scale)
    pack = (lambda x: struct.pack(f"<{len(x)}{put}", *x)) if put else (lambda x: struct.pack(f"<{len(x)}H", *[bf16(v) for v in x]))
    by_group = pack([s[r * groups + g] for g in range(groups) for r in range(rows)])
    if kind == "packed":
        made = {".weight_packed": ("I32", [rows, width // per],
                                   words([word(q[r][c:c + per], bits) for r in range(rows) for c in range(0, width, per)])),
                ".weight_scale": (scale, [rows, groups], pack(s)), ".weight_shape": ("I64", [2], struct.pack("<qq", rows, width))}
        if not symmetric:
            made[".weight_zero_point"] = ("I32", [rows // per, groups], words(
                [word([z[r + i][g] for i in range(per)], bits) for r in range(0, rows, per) for g in range(groups)]))
        if order:
            made[".weight_g_idx"] = ("I32", [width], struct.pack(f"<{width}i", *at))
    elif kind == "int8":
        made = {".weight": ("I8", [rows, width], struct.pack(f"<{rows * width}b", *[x - 128 for row in q for x in row])),
                ".weight_scale": (scale, [rows, groups], pack(s))}
        if not symmetric:
            made[".weight_zero_point"] = ("I8", [rows, groups], struct.pack(f"<{rows * groups}b", *[x - 128 for row in z for x in row]))
    elif kind.startswith("gptq"):
        less = 0 if kind == "gptq_v2" else 1
        stored = [[stored_zero if stored_zero is not None else x - less for x in row] for row in z]
        made = {".qweight": ("I32", [width // per, rows],
                             words([word([q[r][c + i] for i in range(per)], bits) for c in range(0, width, per) for r in range(rows)])),
                ".qzeros": ("I32", [groups, rows // per],
                            words([word([stored[r + i][g] for i in range(per)], bits) for g in range(groups) for r in range(0, rows, per)])),
                ".scales": (scale, [groups, rows], by_group), ".g_idx": ("I32", [width], struct.pack(f"<{width}i", *at))}
    else:
        made = {".qweight": ("I32", [width, rows // 8],
                             words([word([q[r + AWQ[i]][c] for i in range(8)], 4) for c in range(width) for r in range(0, rows, 8)])),
                ".qzeros": ("I32", [groups, rows // 8],
                            words([word([z[r + AWQ[i]][g] for i in range(8)], 4) for g in range(groups) for r in range(0, rows, 8)])),
                ".scales": (scale, [groups, rows], by_group)}
    return {module + name: tensor for name, tensor in made.items()}, twin


NF4 = [f32(x) for x in (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
                        -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)]


def nf4(rng, module, rows, width, nested=False):
    """bitsandbytes': blocks of 64 elements, whose scales may be codes with a scale for 256 themselves."""
    codes = [rng.randrange(16) for _ in range(rows * width)]
    count = rows * width // 64
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [rows, width]}
    pack = lambda x: struct.pack(f"<{len(x)}f", *x)
    made = {".weight": ("U8", [rows * width // 2, 1], bytes(codes[i] << 4 | codes[i + 1] for i in range(0, len(codes), 2))),
            ".weight.quant_map": ("F32", [16], pack(NF4))}
    if nested:
        table = [f32((i - 127) / 128) for i in range(256)]
        of_scales = [rng.randrange(256) for _ in range(count)]
        factors, offset = [f32(rng.uniform(0.01, 0.04)) for _ in range(-(-count // 256))], f32(0.06)
        scales = [f32(f32(table[c] * factors[i // 256]) + offset) for i, c in enumerate(of_scales)]
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        made |= {".weight.absmax": ("U8", [count], bytes(of_scales)), ".weight.nested_absmax": ("F32", [len(factors)], pack(factors)),
                 ".weight.nested_quant_map": ("F32", [256], pack(table))}
    else:
        scales = [f32(rng.uniform(0.03, 0.09)) for _ in range(count)]
        made[".weight.absmax"] = ("F32", [count], pack(scales))
    text = json.dumps(state).encode()
    made[".weight.quant_state.bitsandbytes__nf4"] = ("U8", [len(text)], text)
    return {module + name: t for name, t in made.items()}, [bf16(f32(NF4[c] * scales[i // 64])) for i, c in enumerate(codes)]


def group_0(format, **weights):
    return {"quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None, "weights": weights}}}


BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4",
       "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8", "bnb_4bit_use_double_quant": False}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True, "checkpoint_format": "gptq"}
# name: (quantization_config, how a matrix is made)
FORMATS = {
    "fp8-blocks": ({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
                   lambda *m: fp8(*m, block=(128, 128), name="weight_scale_inv")),
    "fp8-tensor": ({"quant_method": "fp8", "activation_scheme": "dynamic"}, lambda *m: fp8(*m, scale="BF16")),
    "ct-float-channel": (group_0("float-quantized", num_bits=8, type="float", symmetric=True, strategy="channel"),
                         lambda *m: fp8(*m, scale="BF16", per="channel")),
    "ct-w4a16": (group_0("pack-quantized", num_bits=4, type="int", symmetric=True, strategy="group", group_size=128),
                 lambda *m: integers(*m, "packed", scale="BF16")),
    "ct-w4a16-zeros-32": (group_0("pack-quantized", num_bits=4, type="int", symmetric=False, strategy="group", group_size=32),
                          lambda *m: integers(*m, "packed", symmetric=False, group=32, scale="BF16")),
    "ct-w4a16-actorder": (group_0("pack-quantized", num_bits=4, type="int", symmetric=True, strategy="group", group_size=64,
                                  actorder="group"), lambda *m: integers(*m, "packed", group=64, order=True)),
    "ct-w8a16-packed": (group_0("pack-quantized", num_bits=8, type="int", symmetric=True, strategy="channel"),
                        lambda *m: integers(*m, "packed", bits=8, group=0)),
    "ct-w8a16": (group_0("int-quantized", num_bits=8, type="int", symmetric=True, strategy="channel"),
                 lambda *m: integers(*m, "int8", bits=8, group=0, scale="F32")),
    "gptq-v1": (GPTQ, lambda *m: integers(*m, "gptq")),
    "gptq-v1-that-stores-8": (GPTQ, lambda *m: integers(*m, "gptq", stored_zero=8)),
    "gptq-v1-zeros": (GPTQ | {"sym": False}, lambda *m: integers(*m, "gptq", symmetric=False)),
    "gptq-v2-desc-act": (GPTQ | {"sym": False, "desc_act": True, "checkpoint_format": "gptq_v2", "group_size": 32},
                         lambda *m: integers(*m, "gptq_v2", symmetric=False, order=True, group=32)),
    "gptq-8": (GPTQ | {"bits": 8, "group_size": -1}, lambda *m: integers(*m, "gptq", bits=8, group=0)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "GEMM", "modules_to_not_convert": None},
            lambda *m: integers(*m, "awq", symmetric=False)),
    "ct-w4a16-small-scales": (group_0("pack-quantized", num_bits=4, type="int", symmetric=True, strategy="group", group_size=32),
                              lambda *m: integers(*m, "packed", group=32, scale="BF16", usual=1e-6)),
    "gptq-of-16-columns": (GPTQ | {"group_size": 16}, lambda *m: integers(*m, "gptq", group=16)),
    "bnb-nf4": (BNB, nf4),
    "bnb-nf4-nested": (BNB | {"bnb_4bit_use_double_quant": True}, lambda *m: nf4(*m, nested=True)),
}


def write(folder, config, tensors):
    folder.mkdir()
    header, at = {}, 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))
    (folder / "config.json").write_text(json.dumps(config))
    text = json.dumps(BASE.tokenizer())
    for i, special in enumerate(("endoftext", "im_start", "im_end")):  # that training needs
        text = text.replace(f"<|{i}|>", f"<|{special}|>")
    (folder / "tokenizer.json").write_text(text)
    return folder


def answer(model, *flags):
    done = subprocess.run([INVAR, "generate", str(model), "--max-model-len", "128", "--max-tokens", "4", "--ignore-eos", "-p",
                           "The order of every sum is fixed once.", "--json", *flags], capture_output=True, text=True, timeout=120)
    return json.loads(done.stdout)["logits_hash"] if done.returncode == 0 else done.stderr.strip()


RECIPE = """
name = "adapter"
model = "MODEL"
corpus = {kinds = ["arithmetic"]}
lora = {rank = 4, target_modules = "all-linear"}
training = {context = 64, rows = 2, groups = 2, batch_rows = 1}
optimizer = {steps = 2, warmup = 1, rate = 1e-2}
evaluation = {documents = 2, every = 9}
"""


def adapter(model):
    """Of one trained beside it: the digest of its numbers."""
    recipe = model.parent / f"{model.name}.toml"
    recipe.write_text(RECIPE.replace("MODEL", str(model)))
    done = subprocess.run([INVAR, "train", str(recipe), "--output", str(model.parent / f"{model.name}-run"), "--threads", "1", "--json"],
                          capture_output=True, text=True, timeout=120)
    return json.loads(done.stdout)["weights"] if done.returncode == 0 else done.stderr.strip()


def model_of(name, rng, base):
    """The tensors of the quantised directory and of its twin."""
    _, make = FORMATS[name]
    plain = {n: t for n, t in base.twin.items() if "proj" not in n}
    stored, twin = dict(plain), dict(plain)
    for n, (_, shape, _) in base.twin.items():
        if "proj" not in n:
            continue
        made, elements = make(rng, n.removesuffix(".weight"), *shape)
        stored |= made
        twin[n] = ("BF16", shape, struct.pack(f"<{len(elements)}H", *elements))
    return stored, twin


# Of formats that stay in blocks: bytes of 32 elements. Others take the memory of bf16.
BLOCKS = {"ct-w4a16": 18, "ct-w4a16-zeros-32": 22, "ct-w8a16-packed": 34, "gptq-v1": 18, "gptq-v1-that-stores-8": 18, "gptq-v1-zeros": 22,
          "gptq-8": 34, "awq": 22}


def size_faults(name, model, twin, base):
    """In memory the matrices have the size of their blocks, or with --weights twin that of bf16."""
    size = lambda *words: json.loads(subprocess.run([INVAR, "inspect", *map(str, words), "--json"], check=True, capture_output=True,
                                                    text=True).stdout)["weight_bytes"]
    elements = sum(shape[0] * shape[1] for n, (_, shape, _) in base.twin.items() if "proj" in n)
    expected = [size(twin) + elements // 32 * (BLOCKS.get(name, 64) - 64), size(twin)]
    found = [size(model), size(model, "--weights", "twin")]
    if found != expected:
        print(f"{name:24} expected {expected} bytes, found {found}", flush=True)
    return found != expected


def fp8_faults(name, model, twin):
    """Products of e4m3 numbers: one hash on every set and with ranks, and not the twin's."""
    ways = [["--isa", "scalar"], ["--isa", "avx2"], ["--threads", "1"], ["--tensor-parallel-size", "2"]]
    found = [answer(model, "--weights", "fp8", *way) for way in ways]
    good = len(set(found)) == 1 and len(found[0]) == 64 and found[0] != twin
    print(f"{name:24} --weights fp8: {found[0][:16]} equal" if good else f"{name:24} --weights fp8: DIFFERS\n  {found}", flush=True)
    refusals = {"whole blocks of 128 columns": ["--tensor-parallel-size", "4"], "no products of e4m3 numbers": ["--arith", "control"]}
    for expected, way in refusals.items():
        refused = answer(model, "--weights", "fp8", *way)
        if expected not in refused:
            print(f"{name:24} --weights fp8 {way}: expected a refusal with {expected!r}, found {refused}", flush=True)
            good = False
    return not good


# What does not fit together: (format, keys of its configuration that are others, the tensor of a module that is changed, how, what
# the refusal says). A change to None takes it away.
def turned(tensor):
    return tensor[0], tensor[1][::-1], tensor[2]


BROKEN = [
    ("ct-w4a16", {}, "weight_scale", turned, "expected BF16 [256, 2], found BF16 [2, 256]"),
    ("ct-w4a16", {}, "weight_scale", lambda _: None, 'down_proj.weight_scale" is missing'),
    ("ct-w4a16", {}, "weight_shape", lambda t: (t[0], t[1], struct.pack("<qq", 256, 200)), "expected 256 and 249 to 256, found 256 and 200"),
    ("ct-w4a16", {}, "weight", lambda _: ("BF16", [256, 256], bytes(131072)), "expected one form of the matrix, found"),
    ("ct-w4a16-zeros-32", {}, "weight_zero_point", turned, "expected I32 [32, 8], found I32 [8, 32]"),
    ("ct-w4a16-zeros-32", {}, "weight_zero_point", lambda _: None, 'down_proj.weight_zero_point" is missing'),
    ("ct-w4a16-actorder", {}, "weight_g_idx", lambda _: None, 'down_proj.weight_g_idx" is missing'),
    ("gptq-v2-desc-act", {}, "g_idx", lambda _: None, 'down_proj.g_idx" is missing'),
    ("gptq-v2-desc-act", {}, "qzeros", turned, "expected I32 [8, 32], found I32 [32, 8]"),
    ("gptq-v2-desc-act", {"dynamic": {"-:.*": {}}}, "g_idx", lambda t: t, "dynamic: expected {}"),
    ("gptq-v2-desc-act", {"checkpoint_format": None, "format": "gptq_p"}, "g_idx", lambda t: t, 'found "gptq_p"'),
    ("ct-w4a16", {"transform_config": {"config_groups": {"R1": {"type": "hadamard"}}}}, "weight_scale", lambda t: t, "transform_config"),
    ("ct-w8a16", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "weight_scale", lambda t: t, "sparsity_config: expected nothing"),
    ("gptq-v1", {}, "scales", lambda t: (t[0], t[1], t[2][:20] + b"\x00\x7e" + t[2][22:]), "expected finite weights, found nan in row 10"),
    ("gptq-v1", {}, "weight", lambda _: ("BF16", [256, 256], bytes(131072)), "expected one form of the matrix, found"),
    ("awq", {}, "scales", turned, "expected F16 [2, 256], found F16 [256, 2]"),
    ("fp8-blocks", {}, "weight_scale_inv", lambda _: None, 'down_proj.weight_scale_inv" is missing'),
    ("fp8-blocks", {}, "weight_g_idx", lambda _: ("I32", [256], bytes(1024)), "has no place"),
]


def broken_faults(config):
    """Each of BROKEN is refused by what it says."""
    faults = 0
    for name, keys, tensor, change, expected in BROKEN:
        stored, _ = model_of(name, random.Random(name), BASE)
        full = "model.layers.0.mlp.down_proj." + tensor
        changed = change(stored.pop(full, None))
        if changed:
            stored[full] = changed
        with tempfile.TemporaryDirectory() as folder:
            quantization = {key: value for key, value in (FORMATS[name][0] | keys).items() if value is not None}
            found = answer(write(pathlib.Path(folder) / "broken", config | {"quantization_config": quantization}, stored))
        faults += expected not in found
        print(f"{name:24} {tensor} changed: {found if expected not in found else 'refused'}", flush=True)
    return faults


def device_faults(device, names):
    """One hash for each format on the CPU and the device, in both orders, with one rank and two."""
    faults = 0
    for name in names:
        stored, _ = model_of(name, random.Random(name), BASE)
        arithmetics = [["--arith", "portable"], ["--arith", "hopper"]]
        if "F8_E4M3" in [kind for kind, _, _ in stored.values()]:
            arithmetics.append(["--arith", "hopper", "--weights", "fp8"])
        with tempfile.TemporaryDirectory() as folder:
            model = write(pathlib.Path(folder) / "quantised", BASE.config() | {"quantization_config": FORMATS[name][0]}, stored)
            hashes = set()
            for arithmetic in arithmetics:
                found = [answer(model, *arithmetic, *way) for way in [[], ["--device", device], ["--device", device, "--tensor-parallel-size", "2"]]]
                good = len(set(found)) == 1 and len(found[0]) == 64
                faults += not good
                hashes.add(found[0])
                print(f"{name:24} {' '.join(arithmetic)}: {found[0][:16] + ' equal' if good else f'DIFFERS {found}'}", flush=True)
            faults += len(hashes) != len(arithmetics)  # the control: another arithmetic has another hash
    print(f"{len(names)} formats on {device}, {faults} faults")
    return faults


BASE = Made("llama", 3, ["q8_0"])


def experts_faults(name):
    """Experts of formats that stay in blocks do so, too, for one rank and two."""
    base = MadeExperts("qwen3moe", "qwen3_moe", "stacks", 31, ["q8_0"])
    stored, twin = model_of(name, random.Random(name), base)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        expected = answer(write(folder / "twin", base.config(), twin))
        model = write(folder / "quantised", base.config() | {"quantization_config": FORMATS[name][0]}, stored)
        found = [answer(model, *way) for way in ([], ["--isa", "avx2"], ["--tensor-parallel-size", "2"])]
        good = set(found) == {expected} and len(expected) == 64
        print(f"{name:24} with experts {expected[:16]} equal" if good else f"{name:24} with experts DIFFERS\n  {expected}\n  {found}", flush=True)
        return not good or size_faults(name, model, folder / "twin", base)


def main():
    if "--device" in sys.argv:
        sys.exit(device_faults(sys.argv[sys.argv.index("--device") + 1], list(FORMATS) if "--full" in sys.argv else QUICK) > 0)
    faults, hashes, adapters = 0, set(), set()
    config = BASE.config()
    names = list(FORMATS) if "--full" in sys.argv else QUICK
    for name in names:
        quantization = FORMATS[name][0]
        stored, twin = model_of(name, random.Random(name), BASE)
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            expected = answer(write(folder / "twin", config, twin))
            quantised = write(folder / "quantised", config | {"quantization_config": quantization}, stored)
            found = answer(quantised)
            bare = subprocess.run([INVAR, "convert", str(quantised), str(folder / "bare"), "--dequantize"], capture_output=True, text=True)
            again = answer(folder / "bare") if bare.returncode == 0 else bare.stderr.strip()
            good = found == expected == again and len(found) == 64
            faults += not good
            faults += size_faults(name, quantised, folder / "twin", BASE)
            hashes.add(expected)
            beside = adapter(quantised)
            adapters.add(beside)
            if beside != adapter(folder / "twin") or len(beside) != 64:
                faults += 1
                print(f"{name:24} an adapter beside it DIFFERS\n  {beside}")
            print(f"{name:24} {found[:16]} equal" if good else f"{name:24} DIFFERS\n  {expected}\n  {found}\n  {again}", flush=True)
            if "F8_E4M3" in [kind for kind, _, _ in stored.values()]:
                faults += fp8_faults(name, quantised, found)
            if name == "ct-w4a16":  # the controls: another zero point, and a tensor that is missing
                stored = {n: (k, s, bytes([d[0] ^ 1]) + d[1:]) if n.endswith("packed") else (k, s, d) for n, (k, s, d) in stored.items()}
                changed = answer(write(folder / "changed", config | {"quantization_config": quantization}, stored))
                faults += changed == expected or len(changed) != 64
                del stored["model.layers.0.mlp.down_proj.weight_scale"]
                missing = answer(write(folder / "missing", config | {"quantization_config": quantization}, stored))
                faults += "down_proj" not in missing
                print(f"{name:24} changed {changed[:16]}, missing: {missing}")
            if name == "awq":
                refused = answer(quantised, "--weights", "fp8")
                faults += "matrices are f8_e4m3" not in refused
                print(f"{name:24} --weights fp8: {refused}")
    faults += sum(experts_faults(name) for name in ("ct-w4a16", "gptq-v1", "awq"))
    faults += (len(hashes) != len(names)) + (len(adapters) != len(names)) + broken_faults(config)
    print(f"{len(names)} formats, {faults} faults")
    sys.exit(faults > 0)


main()
