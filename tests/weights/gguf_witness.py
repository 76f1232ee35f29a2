#!/usr/bin/env python3
"""Files that other programs write, dequantised here and by gguf's own reference: every element is equal.

Written by gguf's Python package: a model with matrices of every type of blocks, by its quantisers where it has one and of random
blocks elsewhere. Written by llama.cpp's quantiser (llama-cpp-python, where it is installed): the same model in its mixtures.
An element in f32 that differs by one unit in the last place shows once in 65,536 times as another bf16, which is why matrices
have a million. Usage: gguf_witness.py INVAR [--control]; the control expects to see one changed bit. Needs a Python with gguf and
numpy (INVAR_WITNESS, or /opt/witness/bin/python), else it is skipped (77)."""
import json, os, pathlib, shutil, struct, subprocess, sys, tempfile

WITNESS = os.environ.get("INVAR_WITNESS", "/opt/witness/bin/python")
try:
    import gguf, numpy
except ImportError:
    if not os.path.exists(WITNESS) or sys.executable == WITNESS:
        print(f"SKIPPED weights.gguf_witness: no gguf here, and no {WITNESS}")
        sys.exit(77)
    os.execv(WITNESS, [WITNESS] + sys.argv)
try:
    import llama_cpp
except ImportError:
    llama_cpp = None

from gguf_models import byte_tokens

INVAR, CONTROL = sys.argv[1], "--control" in sys.argv
TYPES = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"]
MIXTURES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_M": 12, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_M": 17,
            "Q6_K": 18, "IQ4_NL": 25}  # llama.cpp's numbers of them
HIDDEN, FFN, LAYERS, HEADS, VOCAB = 1024, 1024, 2, 16, 264
NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr}")


def quantised(kind, random):
    """A matrix's blocks: of normal numbers, or where gguf has no quantiser for them of any bits but for moderate scales."""
    numbers = random.standard_normal((HIDDEN, FFN)).astype(numpy.float32)
    try:
        return gguf.quants.quantize(numbers, kind)
    except NotImplementedError:
        pass
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (HIDDEN * FFN // elements, size), dtype=numpy.uint8)
    scales = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,)}[kind.name]
    for at in scales:
        blocks[:, at + 1] = blocks[:, at + 1] & 0xbf  # exponents below that of 2
    return blocks.reshape(HIDDEN, -1)


def write_model(path, random):
    writer = gguf.GGUFWriter(path, "qwen2")
    for add, value in ((writer.add_context_length, 512), (writer.add_embedding_length, HIDDEN), (writer.add_block_count, LAYERS),
                       (writer.add_feed_forward_length, FFN), (writer.add_head_count, HEADS), (writer.add_head_count_kv, HEADS),
                       (writer.add_rope_freq_base, 1e4), (writer.add_layer_norm_rms_eps, 1e-6), (writer.add_vocab_size, VOCAB)):
        add(value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(byte_tokens() + ["ab"] + [f"<|{i}|>" for i in range(7)])
    writer.add_token_types([1] * 257 + [3] * 7)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(257)
    vector = lambda name, size: writer.add_tensor(name, random.standard_normal(size).astype(numpy.float32))
    writer.add_tensor("token_embd.weight", random.standard_normal((VOCAB, HIDDEN)).astype(numpy.float16))
    vector("output_norm.weight", HIDDEN)
    kinds = [getattr(gguf.GGMLQuantizationType, name) for name in TYPES]
    for layer in range(LAYERS):
        for i, name in enumerate(NAMES):
            kind = kinds[(layer * len(NAMES) + i) % len(kinds)]
            writer.add_tensor(f"blk.{layer}.{name}.weight", quantised(kind, random), raw_dtype=kind)
        for name in ("attn_q", "attn_k", "attn_v"):
            vector(f"blk.{layer}.{name}.bias", HIDDEN)
        for name in ("attn_norm", "ffn_norm"):
            vector(f"blk.{layer}.{name}.weight", HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors_of(directory):
    """name: bf16 bits of the directory's matrices."""
    stored = (directory / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", stored[:8])[0]
    return {name: numpy.frombuffer(stored[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]], numpy.uint16)
            for name, entry in json.loads(stored[8:8 + size]).items() if entry.get("dtype") == "BF16"}


def bf16(values):
    bits = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32).astype(numpy.uint64).ravel()
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)


def differing(path, folder, what):
    """Elements of the file's matrices that Invar and gguf's reference dequantise to other numbers."""
    directory = folder / "dequantised"
    shutil.rmtree(directory, ignore_errors=True)
    run(INVAR, "convert", path, directory, "--dequantize")
    found, differ, count, kinds = tensors_of(directory), 0, 0, set()
    for tensor in gguf.GGUFReader(path).tensors:
        parts = tensor.name.split(".")
        if len(parts) < 4 or parts[2] not in NAMES or parts[3] != "weight":
            continue
        expected = bf16(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
        ours = found[f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight"]
        both_zero = ((expected | ours) & 0x7fff) == 0
        differ += int(((expected != ours) & ~both_zero).sum())
        count += expected.size
        kinds.add(tensor.tensor_type.name)
    print(f"{what}: {differ} of {count} elements differ; {' '.join(sorted(kinds))}", flush=True)
    return differ


def quantise(source, target, mixture):
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = mixture, 2
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), params):
        sys.exit(f"llama.cpp does not quantise {source}")


def main():
    random = numpy.random.default_rng(7)
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_model(folder / "model.gguf", random)
        if CONTROL:
            whole = bytearray((folder / "model.gguf").read_bytes())
            tensor = next(t for t in gguf.GGUFReader(folder / "model.gguf").tensors if t.name == "blk.0.attn_q.weight")
            whole[tensor.data_offset + 1] ^= 4
            twin = folder / "changed.gguf"
            twin.write_bytes(whole)
            run(INVAR, "convert", twin, folder / "changed", "--dequantize")
            run(INVAR, "convert", folder / "model.gguf", folder / "original", "--dequantize")
            a, b = tensors_of(folder / "changed"), tensors_of(folder / "original")
            seen = sum(int((a[name] != b[name]).sum()) for name in a)
            print(f"control: {seen} elements differ")
            sys.exit(seen == 0)
        faults += differing(folder / "model.gguf", folder, "written by gguf")
        if llama_cpp is None:
            print("llama-cpp-python is not here: its quantiser was not tried")
        else:
            run(INVAR, "make-model", folder / "bf16", "--preset", "bench-100m")
            run(INVAR, "convert", folder / "bf16", folder / "bf16.gguf", "--gguf", "bf16")
            for name, number in MIXTURES.items():
                quantise(folder / "bf16.gguf", folder / "by-llama.gguf", number)
                faults += differing(folder / "by-llama.gguf", folder, f"llama.cpp's {name}")
    sys.exit(faults > 0)


main()
