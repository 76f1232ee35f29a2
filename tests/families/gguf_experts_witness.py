#!/usr/bin/env python3
"""GGUF files with experts beside llama.cpp and transformers: files that Invar writes open there and mean the same, and those of
llama.cpp's quantiser and of gguf's Python package mean here what they mean there.

A made model of each family goes through `invar convert --gguf` (bf16, q8_0, q4_k) and through llama.cpp's quantiser (Q8_0,
Q4_K_M). Logits of a text from each file: those of transformers in f32, from the directory that the file stands for, are the truth.
First choices of Invar and of llama.cpp are equal wherever the truth's margin exceeds both errors; Invar's error (the median over the
positions of the mean) is at most that of transformers in bf16 (of the same weights), and llama.cpp's below a bound that files in another order than its own miss by
far. gguf's writer puts gates and what they gate in one stack, which these of llama.cpp's architectures do not read: Invar's logits
of that file are those of the file that it was made from, bit for bit.
Usage: gguf_experts_witness.py INVAR FAMILY_LOGITS [FAMILY ...] [--control]; the control gives llama.cpp and Invar a file whose
gates are exchanged with what they gate, and expects both to be far off. Needs a Python with llama-cpp-python, gguf and
transformers (INVAR_WITNESS, or /opt/witness/bin/python), else it is skipped (77)."""
import json, os, pathlib, subprocess, sys, tempfile

WITNESS = os.environ.get("INVAR_WITNESS", "/opt/witness/bin/python")
try:
    import gguf, llama_cpp, torch, transformers
except ImportError:
    if not os.path.exists(WITNESS) or sys.executable == WITNESS:
        print(f"SKIPPED families.gguf_experts_witness: no llama-cpp-python, gguf and transformers here, and no {WITNESS}")
        sys.exit(77)
    os.execv(WITNESS, [WITNESS] + sys.argv)
import numpy

FAMILIES = ["qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "granitemoe", "gpt_oss", "glm4_moe", "deepseek_v2", "deepseek_v3"]
# Of those that are no more than the tiny model's shape with a family's attention and experts: what else make-model is told, and what
# else their config.json says, which no weight depends on.
PRESETS = {"gpt_oss": "gpt-oss-20b", "deepseek_v2": "deepseek-v2-lite", "deepseek_v3": "deepseek-v3"}
NOT_TOLD = {"gpt_oss": ["window"], "deepseek_v2": ["window", "head-dim"], "deepseek_v3": ["window", "head-dim"]}
# The third version has three layers without experts; llama.cpp knows a second one without low-rank queries by its 27 layers.
TOLD = {"deepseek_v2": {"layers": 27}, "deepseek_v3": {"layers": 5}}
SAID = {"glm4_moe": {"routed_scaling_factor": 2.5},
        "deepseek_v2": {"num_key_value_heads": 8},
        "deepseek_v3": {"num_key_value_heads": 8, "routed_scaling_factor": 2.5, "n_group": 4, "topk_group": 2}}
CONTROL = "--control" in sys.argv
INVAR, TOOL, *CHOSEN = [word for word in sys.argv[1:] if word != "--control"]
TOKENS = 96
SHAPE = {"hidden": 256, "layers": 2, "heads": 8, "head-dim": 32, "ffn": 256, "experts": 8, "experts-per-token": 3, "window": 0,
         "vocab": 512}
WRITTEN = ["bf16", "q8_0", "q4_k"]
QUANTISED = {"Q8_0": 7, "Q4_K_M": 15, "MXFP4": 38}  # llama.cpp's numbers of them
TEXT = [int(t) for t in numpy.random.default_rng(3).integers(0, SHAPE["vocab"], TOKENS)]
FAR = 0.1  # of a logit, whose deviation is 2.5


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr}")


def invars(path, tokens):
    with tempfile.TemporaryDirectory() as scratch:
        numpy.array(tokens, dtype=numpy.int32).tofile(f"{scratch}/tokens")
        run(TOOL, path, f"{scratch}/tokens", f"{scratch}/out")
        return numpy.fromfile(f"{scratch}/out", dtype=numpy.float32).reshape(len(tokens), -1)


def plain_kernels():
    """llama.cpp without its repacked weights, whose kernels for AMX some compilers spoil, and silent."""
    usual = llama_cpp.llama_cpp.llama_model_default_params

    def params():
        made = usual()
        made.use_extra_bufts = False
        return made
    llama_cpp.llama_cpp.llama_model_default_params = params
    llama_cpp.llama_log_set(SILENT, None)


SILENT = llama_cpp.llama_log_callback(lambda level, text, data: None)


def llamas(path, tokens):
    model = llama_cpp.Llama(str(path), n_ctx=TOKENS, logits_all=True, verbose=False, n_threads=2)
    model.eval(tokens)
    logits = numpy.array(model.scores[:len(tokens)], dtype=numpy.float32)
    model.close()
    return logits


def transformers_of(directory, tokens, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].float().numpy()


def quantise(source, target, mixture):
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = mixture, 2
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), params):
        sys.exit(f"llama.cpp does not quantise {source}")


def rewritten(source, target, change, said={}):
    """The file by gguf's writer, with the tensors that `change` makes of its own, and other numbers."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture" or said.get(name, 0) is None:
            continue
        kind = field.types[0]
        writer.add_key_value(name, said.get(name, field.contents()), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    tensors = {t.name: (t.data, t.tensor_type) for t in reader.tensors}
    for name, (data, kind) in change(tensors).items():
        writer.add_tensor(name, data, raw_dtype=kind)
    for name in set(said) - set(reader.fields):  # None: it goes
        writer.add_uint32(name, said[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def fused(tensors):
    out = dict(tensors)
    for name in tensors:
        if name.endswith("ffn_gate_exps.weight"):
            up = name.replace("gate", "up")
            both = numpy.concatenate([tensors[name][0], tensors[up][0]], axis=1)
            out[name.replace("gate", "gate_up")] = (both, tensors[name][1])
            del out[name], out[up]
    return out


def with_module(tensors):
    """A module that predicts further, behind the layers: a copy of the last layer, and what is its own."""
    layer = SHAPE["layers"]
    out = dict(tensors)
    for name, tensor in tensors.items():
        if name.startswith(f"blk.{layer - 1}."):
            out[name.replace(f"blk.{layer - 1}.", f"blk.{layer}.")] = tensor
    norm, matrix = tensors["output_norm.weight"], tensors[f"blk.{layer - 1}.attn_output.weight"]
    own = {"eh_proj": (numpy.concatenate([matrix[0]] * 2, axis=1), matrix[1]), "enorm": norm, "hnorm": norm, "shared_head_norm": norm,
           "embed_tokens": tensors["token_embd.weight"], "shared_head_head": tensors["output.weight"]}
    return out | {f"blk.{layer}.nextn.{name}.weight": tensor for name, tensor in own.items()}


def old_latents(tensors):
    """A head's keys and values of the latent in one tensor, as DeepSeek's files were before 2025."""
    out = dict(tensors)
    for name in tensors:
        if name.endswith("attn_k_b.weight"):
            words = lambda data: data.view(numpy.uint16)
            keys, values = words(tensors[name][0]), words(tensors[name.replace("k_b", "v_b")][0])
            both = numpy.concatenate([keys.transpose(0, 2, 1), values], axis=1)
            both = numpy.ascontiguousarray(both.reshape(-1, both.shape[2]))
            out[name.replace("k_b", "kv_b")] = (both.view(numpy.uint8), tensors[name][1])
            del out[name], out[name.replace("k_b", "v_b")]
    return out


def exchanged(tensors):
    swap = {"ffn_gate_exps": "ffn_up_exps", "ffn_up_exps": "ffn_gate_exps"}
    other = lambda name: ".".join(swap.get(part, part) for part in name.split("."))
    return {name: tensors[other(name)] for name in tensors}


def files_of(family, folder):
    """(what, file, the directory that it stands for)"""
    made = folder / family
    shape = {name: value for name, value in SHAPE.items() if name not in NOT_TOLD.get(family, [])}
    shape |= TOLD.get(family, {})
    if "head-dim" in shape:
        shape["kv-heads"] = 8 if family == "olmoe" else 4
    of = ["--preset", PRESETS[family]] if family in PRESETS else ["--family", family]
    run(INVAR, "make-model", made, *of, *[word for name, value in shape.items() for word in (f"--{name}", value)])
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | SAID.get(family, {})))
    paths = {kind: folder / f"{family}-{kind}.gguf" for kind in [*WRITTEN, *QUANTISED]}
    for kind in WRITTEN:
        run(INVAR, "convert", made, paths[kind], "--gguf", kind)
    if CONTROL:
        rewritten(paths["bf16"], folder / "exchanged.gguf", exchanged)
        return [("exchanged", folder / "exchanged.gguf", made)]
    for kind, number in QUANTISED.items():
        quantise(paths["bf16"], paths[kind], number)
    rewritten(paths["q4_k"], folder / "fused.gguf", fused)
    if not numpy.array_equal(invars(folder / "fused.gguf", TEXT), invars(paths["q4_k"], TEXT)):
        sys.exit(f"{family}: gates and what they gate in one stack give other logits")
    if family == "glm4_moe":
        said = {"glm4moe.block_count": SHAPE["layers"] + 1, "glm4moe.nextn_predict_layers": 1}
        rewritten(paths["q8_0"], folder / "module.gguf", with_module, said)
        if not numpy.array_equal(invars(folder / "module.gguf", TEXT), invars(paths["q8_0"], TEXT)):
            sys.exit(f"{family}: a module that predicts further gives other logits")
    if family == "deepseek_v2":
        key = "deepseek2.attention."
        said = {key + "head_count_kv": SHAPE["heads"], key + "key_length": 192, key + "value_length": 128, key + "key_length_mla": None,
                key + "value_length_mla": None}
        rewritten(paths["bf16"], folder / "old.gguf", old_latents, said)
        if not numpy.array_equal(invars(folder / "old.gguf", TEXT), invars(paths["bf16"], TEXT)):
            sys.exit(f"{family}: an older file's latents give other logits")
        paths["old"] = folder / "old-q4_k_m.gguf"
        quantise(folder / "old.gguf", paths["old"], QUANTISED["Q4_K_M"])
    files = []
    for kind, path in paths.items():
        twin = folder / f"{family}-{kind}" if kind != "bf16" else made
        if twin != made:
            run(INVAR, "convert", path, twin, "--dequantize")
        files.append((kind, path, twin))
    return files


def compare(family, what, path, twin):
    truth, usual = transformers_of(twin, TEXT, torch.float32), transformers_of(twin, TEXT, torch.bfloat16)
    found, theirs = invars(path, TEXT), llamas(path, TEXT)
    off = lambda logits: float(numpy.median(numpy.abs(logits - truth).mean(axis=1)))  # where other experts are chosen it is large
    differ = clear = 0
    for t, f, l in zip(truth, found, theirs):
        second, first = numpy.sort(t)[-2:]
        is_clear = first - second > numpy.abs(f - t).max() + numpy.abs(l - t).max()
        clear += is_clear
        differ += is_clear and f.argmax() != l.argmax()
    print(f"{family} {what}: of {clear} clear first choices of {TOKENS} {differ} differ; error {off(found):.4f}, transformers in "
          f"bf16 {off(usual):.4f}, llama.cpp {off(theirs):.4f}", flush=True)
    if CONTROL:
        return not (off(found) > FAR and off(theirs) > FAR)
    return differ > 0 or clear < TOKENS / 3 or off(found) > off(usual) or off(theirs) > FAR


def main():
    plain_kernels()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    faults = 0
    for family in CHOSEN or FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            for what, path, twin in files_of(family, pathlib.Path(folder)):
                faults += compare(family, what, path, twin)
    print(f"{faults} faults")
    sys.exit(faults > 0)


main()
