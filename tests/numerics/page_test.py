#!/usr/bin/env python3
"""The engine's tokens, logits hashes and log-probabilities against those of from_the_page.py, which was
made from docs/numerics.md alone. Usage: page_test.py INVAR SOURCE [--full]"""
import json, os, subprocess, sys, tempfile

import numpy

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import from_the_page

INVAR, SOURCE, FULL = sys.argv[1], sys.argv[2], "--full" in sys.argv or os.environ.get("INVAR_FULL_TESTS")
MODELS = ["llama-gqa", "llama3-rope-tied", "mistral-window", "qwen2-bias", "qwen3-qknorm"]
# Made here: families with experts, in both layouts of a checkpoint.
MADE = {"qwen3_moe": [], "qwen2_moe": ["--heads", "4", "--ffn", "96"], "mixtral": ["--window", "40"], "olmoe": [], "glm4_moe": [],
        "deepseek_v2": [], "deepseek_v3": [], "gpt_oss": ["--window", "6"],
        "llama4_text": [], "deepseek_v32": [], "glm_moe_dsa": []}
LAYERS = {"llama4_text": "4"}  # of which the last does not rotate
CHANGES = {"deepseek_v2": {"n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy"},
           "deepseek_v3": {"n_group": 2, "topk_group": 1, "routed_scaling_factor": 2.5},
           "deepseek_v32": {"index_topk": 5}, "glm_moe_dsa": {"index_topk": 5, "n_group": 2, "topk_group": 1},
           "glm4_moe": {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "first_k_dense_replace": 0,
                         "partial_rotary_factor": 0.5, "use_qk_norm": False},
           "llama4_text": {"attention_chunk_size": 6, "floor_scale": 4, "num_experts_per_tok": 2},
           "gpt_oss": {"layer_types": ["sliding_attention", "full_attention"], "rope_scaling": {
               "rope_type": "yarn", "factor": 4.0, "truncate": False, "original_max_position_embeddings": 64}}}
SAMPLED = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "seed": 2**63 - 5, "repetition_penalty": 1.3,
           "presence_penalty": 0.4, "frequency_penalty": 0.3}
PLAIN = {"temperature": 1.0, "seed": 12345678901234567}
TOKENS = 4


def prompt(model, length):
    raw = open(f"{SOURCE}/tests/data/golden/{model}/tokens.i32", "rb").read()
    return [int.from_bytes(raw[4 * i:4 * i + 4], "little") for i in range(length)]


def cases():
    """(model, arithmetic, prompt length, parameters)"""
    for model in MODELS:
        yield model, "portable", 12, {"temperature": 0.0}
        yield model, "portable", 12, SAMPLED
        yield model, "hopper", 12, PLAIN
        yield model, "pair", 12, PLAIN
    for model in ["llama-gqa", "mistral-window"] if FULL else ["mistral-window"]:
        yield model, "portable", 156, PLAIN  # two splits, and the window of one of them
        if FULL:
            yield model, "hopper", 156, SAMPLED


def fused(folder):
    """The same experts in two tensors of three dimensions for each layer, as newer versions of transformers save them."""
    path = f"{folder}/model.safetensors"
    data = open(path, "rb").read()
    size = int.from_bytes(data[:8], "little")
    header, body, found, stacks = json.loads(data[8:8 + size]), data[8 + size:], {}, {}
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        content = body[slice(*tensor["data_offsets"])]
        if ".experts." in name:
            stem, rest = name.replace("block_sparse_moe", "mlp").split(".experts.")
            e, part = rest.split(".")[:2]
            part = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}.get(part, part)
            stacks.setdefault((stem, part), {})[int(e)] = (tensor["shape"], content)
        else:
            found[name.replace("block_sparse_moe", "mlp")] = (tensor["shape"], content)
    for (stem, part), of in stacks.items():
        (rows, columns), count = of[0][0], len(of)
        if part == "down_proj":
            found[f"{stem}.experts.down_proj"] = ([count, rows, columns], b"".join(of[e][1] for e in range(count)))
        elif part == "gate_proj":
            ups = stacks[stem, "up_proj"]
            found[f"{stem}.experts.gate_up_proj"] = ([count, 2 * rows, columns],
                                                     b"".join(of[e][1] + ups[e][1] for e in range(count)))
    header, out = {}, b""
    for name, (shape, content) in found.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(out), len(out) + len(content)]}
        out += content
    text = json.dumps(header).encode()
    open(path, "wb").write(len(text).to_bytes(8, "little") + text + out)


def with_tokenizer(model, folder):
    """The golden directory beside a made tokenizer, which the command line needs."""
    subprocess.run([INVAR, "make-model", f"{folder}/made", "--vocab", "320"], check=True, stdout=subprocess.DEVNULL)
    os.makedirs(f"{folder}/model")
    for name in ["config.json", "generation_config.json", "model.safetensors"]:
        os.symlink(f"{SOURCE}/tests/data/golden/{model}/{name}", f"{folder}/model/{name}")
    for name in os.listdir(f"{folder}/made"):
        if name.startswith("tokenizer"):
            os.symlink(f"{folder}/made/{name}", f"{folder}/model/{name}")
    return f"{folder}/model"


def engine_answer(folder, model, arithmetic, tokens, parameters, flags=()):
    body = {"prompt": tokens, "max_tokens": TOKENS, "logprobs": 0, "return_token_ids": True, "logits_hash": True,
            **parameters}
    requests = [{"custom_id": mode, "method": "POST", "url": "/v1/completions", "body": {**body, "logprobs_mode": mode}}
                for mode in ("raw_logprobs", "processed_logprobs")]
    with open(f"{folder}/in.jsonl", "w") as file:
        file.write("\n".join(map(json.dumps, requests)))
    subprocess.run([INVAR, "generate", model, "--arith", arithmetic, *flags, "--input", f"{folder}/in.jsonl", "--output",
                    f"{folder}/out.jsonl"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    choice, processed = (json.loads(line)["response"]["body"]["choices"][0] for line in open(f"{folder}/out.jsonl"))
    return {"answer": choice["token_ids"], "logits_hash": choice["logits_hash"],
            "logprobs": choice["logprobs"]["token_logprobs"], "processed": processed["logprobs"]["token_logprobs"]}


def page_answer(model, arithmetic, tokens, parameters):
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in parameters.items()]
    return from_the_page.main([model, "--tokens", ",".join(map(str, tokens)), "--arith", arithmetic,
                               "--max-tokens", str(TOKENS), *flags])


def made(folder, family, is_fused):
    subprocess.run([INVAR, "make-model", f"{folder}/model", "--preset", "tiny", "--layers", LAYERS.get(family, "2"), "--family", family,
                    *MADE[family]], check=True, stdout=subprocess.DEVNULL)
    path = f"{folder}/model/config.json"
    config = json.load(open(path))
    with open(path, "w") as file:
        json.dump(config | CHANGES.get(family, {}), file)
    if is_fused and family not in ("gpt_oss", "llama4_text"):  # which has one layout
        fused(f"{folder}/model")
    return f"{folder}/model"


def check_experts():
    """How many of the made models differ from the page; the layouts of one have the same bits."""
    failed = 0
    for family in MADE if FULL else ["qwen2_moe", "deepseek_v3", "gpt_oss", "llama4_text", "deepseek_v32", "glm_moe_dsa"]:
        for arithmetic in ["portable", "hopper"] if FULL else ["portable"]:
            hashes = set()
            for is_fused in [False, True] if FULL else [True]:
                with tempfile.TemporaryDirectory() as folder:
                    directory = made(folder, family, is_fused)
                    tokens = [(7 * i * i + 3 * i) % 512 for i in range(48 if family == "mixtral" else 9)]
                    engine = engine_answer(folder, directory, arithmetic, tokens, PLAIN)
                    page = page_answer(directory, arithmetic, tokens, PLAIN) if is_fused == (arithmetic == "portable") else None
                    differing = [key for key in engine if page and engine[key] != page[key]]
                    config, generation = (json.load(open(f"{directory}/{name}")) for name in ("config.json", "generation_config.json"))
                    report = json.loads(subprocess.run([INVAR, "inspect", directory, "--json"], check=True, capture_output=True).stdout)
                    end = generation["eos_token_id"]
                    if report["specification"] != from_the_page.specification_digest(config, [end]):
                        differing.append("specification")
                hashes.add(engine["logits_hash"])
                failed += bool(differing)
                print(f"{family} {arithmetic} {'stacked' if is_fused else 'apart'}: {engine['logits_hash'][:16]}",
                      f"DIFFERENT: {differing}" if differing else "equal", flush=True)
            failed += len(hashes) != 1
    return failed


# Gemma 4: keys that layers share, wide late layers and what tokens bring; heads of 512 and keys as values; experts beside.
SMALL = ["--hidden", "64", "--heads", "4", "--kv-heads", "2", "--ffn", "64", "--vocab", "512"]
GEMMA4 = {"shared": ["--preset", "tiny", "--family", "gemma4_text", "--layers", "5"],
          "512": ["--preset", "gemma-4-31b", "--layers", "6", "--head-dim", "16", *SMALL],
          "experts": ["--preset", "gemma-4-26b-a4b", "--layers", "6", "--head-dim", "32", "--experts", "8", "--experts-per-token", "3", *SMALL]}


def check_gemma4():
    """How many of its made models differ from the page."""
    failed, hashes = 0, set()
    for name, arguments in GEMMA4.items():
        for arithmetic in ["portable", "hopper"] if FULL else ["portable"]:
            with tempfile.TemporaryDirectory() as folder:
                subprocess.run([INVAR, "make-model", f"{folder}/model", *arguments], check=True, stdout=subprocess.DEVNULL)
                config = json.load(open(f"{folder}/model/config.json"))
                json.dump(config | {"sliding_window": 6}, open(f"{folder}/model/config.json", "w"))
                tokens = [(7 * i * i + 3 * i) % 512 for i in range(11)]
                engine = engine_answer(folder, f"{folder}/model", arithmetic, tokens, PLAIN)
                page = page_answer(f"{folder}/model", arithmetic, tokens, PLAIN)
            differing = [key for key in engine if engine[key] != page[key]]
            hashes.add(engine["logits_hash"])
            failed += bool(differing)
            print(f"gemma4 {name} {arithmetic}: {engine['logits_hash'][:16]}", f"DIFFERENT: {differing}" if differing else "equal", flush=True)
    return failed + (len(hashes) < len(GEMMA4))  # the control: others have other hashes


# Types of blocks of each layer's tensors, and of the embedding and the head; q, k and v of layer 1 are of two, gate and
# up of layer 0 too, which are twins therefore.
IN_BLOCKS = [{"q_proj": "q4_k", "k_proj": "q4_k", "v_proj": "q4_k", "o_proj": "q5_0", "gate_proj": "q6_k", "up_proj": "q5_k",
              "down_proj": "q6_k"},
             {"q_proj": "q4_0", "k_proj": "q4_0", "v_proj": "q8_0", "o_proj": "q2_k", "gate_proj": "q5_1", "up_proj": "q5_1",
              "down_proj": "q4_k"},
             {"q_proj": "iq4_nl", "k_proj": "iq4_nl", "v_proj": "iq4_nl", "o_proj": "q3_k", "gate_proj": "q4_1",
              "up_proj": "q4_1", "down_proj": "q5_k"}]
# Where a block's f16 numbers are, and about how large elements of a matrix make them.
HALVES = {"q8_0": ([0], 1e-3), "q4_0": ([0], 1e-2), "q4_1": ([0, 2], 5e-3), "q5_0": ([0], 5e-3), "q5_1": ([0, 2], 3e-3),
          "iq4_nl": ([0], 1e-3), "q2_k": ([16, 18], 2e-3), "q3_k": ([12], 1e-3), "q4_k": ([0, 2], 2e-4), "q5_k": ([0, 2], 1e-4),
          "q6_k": ([16], 3e-5)}


def in_blocks(folder):
    """A made model whose matrices become random blocks of all types."""
    subprocess.run([INVAR, "make-model", f"{folder}/model", "--layers", str(len(IN_BLOCKS)), "--hidden", "256", "--heads", "8",
                    "--kv-heads", "2", "--head-dim", "64", "--ffn", "512"], check=True, stdout=subprocess.DEVNULL)
    path, random = f"{folder}/model/model.safetensors", numpy.random.default_rng(5)
    data = open(path, "rb").read()
    size = int.from_bytes(data[:8], "little")
    header, body, out = json.loads(data[8:8 + size]), data[8 + size:], b""
    found, kinds = {}, {"format": "pt"}
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        content, entry = body[slice(*tensor["data_offsets"])], {"dtype": tensor["dtype"], "shape": tensor["shape"]}
        if len(tensor["shape"]) == 2:
            parts = name.split(".")
            kind = IN_BLOCKS[int(parts[2])][parts[-2]] if parts[1] == "layers" else "q6_k" if "head" in name else "q4_0"
            (rows, columns), (elements, count), (halves, scale) = tensor["shape"], from_the_page.BLOCKS[kind], HALVES[kind]
            blocks = random.integers(0, 256, (rows, columns // elements, count), dtype=numpy.uint8)
            for at in halves:
                value = (random.normal(size=blocks.shape[:2] + (1,)) * scale).astype("<f2")
                blocks[..., at:at + 2] = value.view(numpy.uint8)
            content, entry = blocks.tobytes(), {"dtype": "U8", "shape": [rows, columns // elements * count]}
            kinds[f"storage:{name}"] = kind
        found[name] = entry | {"data_offsets": [len(out), len(out) + len(content)]}
        out += content
    text = json.dumps({"__metadata__": kinds} | found).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(len(text).to_bytes(8, "little") + text + out)
    return f"{folder}/model"


def check_blocks():
    """How many modes of a model in blocks differ from the page, or are one."""
    failed, hashes = 0, set()
    with tempfile.TemporaryDirectory() as folder:
        directory = in_blocks(folder)
        tokens = [(7 * i * i + 3 * i) % 512 for i in range(9)]
        for mode in ["blocks", "bf16"]:
            flags = {"blocks": ["--weights", "blocks"], "bf16": ["--weights", "twin"]}[mode]
            engines = [engine_answer(folder, directory, "portable", tokens, PLAIN, flags + ["--tensor-parallel-size", str(ranks)])
                       for ranks in ([1, 2] if mode == "blocks" else [1])]
            page = page_answer(directory, "portable", tokens, PLAIN | {"weights": mode})
            differing = [key for engine in engines for key in engine if engine[key] != page[key]]
            hashes.add(page["logits_hash"])
            failed += bool(differing)
            print(f"in blocks, {mode}: {engines[0]['logits_hash'][:16]}", f"DIFFERENT: {differing} {engines} {page}" if differing else "equal",
                  flush=True)
    return failed + (len(hashes) != 2)


def check_fp8_row():
    """How many answers of products of e4m3 numbers by rows differ from the page, or are those of bf16."""
    failed, hashes = 0, set()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([INVAR, "make-model", f"{folder}/model", "--layers", "2", "--hidden", "256", "--heads", "8", "--kv-heads", "2",
                        "--head-dim", "64", "--ffn", "512"], check=True, stdout=subprocess.DEVNULL)
        tokens = [(7 * i * i + 3 * i) % 512 for i in range(9)]
        for arithmetic, mode, ranks in [("portable", "fp8-row", 1), ("hopper", "fp8-row", 2), ("portable", "bf16", 1)]:
            flags = ["--weights", mode.replace("bf16", "auto"), "--tensor-parallel-size", str(ranks)]
            engine = engine_answer(folder, f"{folder}/model", arithmetic, tokens, PLAIN, flags)
            page = page_answer(f"{folder}/model", arithmetic, tokens, PLAIN | {"weights": mode})
            differing = [key for key in engine if engine[key] != page[key]]
            hashes.add(page["logits_hash"])
            failed += bool(differing)
            print(f"{mode}, {arithmetic}: {engine['logits_hash'][:16]}", f"DIFFERENT: {differing} {engine} {page}" if differing else "equal",
                  flush=True)
    return failed + (len(hashes) != 3)


def specifications():
    """How many of the models have another specification than the page says."""
    found = {}
    for model in MODELS:
        folder = f"{SOURCE}/tests/data/golden/{model}"
        report = json.loads(subprocess.run([INVAR, "inspect", folder, "--json"], check=True, capture_output=True).stdout)
        config, generation = (json.load(open(f"{folder}/{name}")) for name in ("config.json", "generation_config.json"))
        ends = {end for file in (config, generation) for end in [file.get("eos_token_id")] if end is not None}
        found[model] = (report["specification"], from_the_page.specification_digest(config, sorted(ends)))
        print(f"{model}: specification {report['specification'][:16]}", flush=True)
    assert len(set(found.values())) == len(MODELS), found
    return sum(engine != page for engine, page in found.values())


def main():
    failed, count = specifications(), len(MODELS)
    hashes = set()
    for model, arithmetic, length, parameters in cases():
        with tempfile.TemporaryDirectory() as folder:
            directory = with_tokenizer(model, folder)
            tokens = prompt(model, length)
            engine = engine_answer(folder, directory, arithmetic, tokens, parameters)
            block = page_answer(directory, arithmetic, tokens, parameters)
        differing = [key for key in engine if engine[key] != block[key]]
        hashes.add(engine["logits_hash"])
        count += 1
        failed += bool(differing)
        print(f"{model} {arithmetic} {length} tokens: {engine['logits_hash'][:16]} {block['logits_hash'][:16]}",
              f"DIFFERENT: {differing} {engine} {block}" if differing else "equal", flush=True)
    failed += check_experts() + check_gemma4() + check_blocks() + check_fp8_row()
    # The control: other tokens, arithmetics and prompts have other hashes.
    if len(hashes) < count * 2 // 3:
        print(f"expected the cases to have different hashes, found {len(hashes)} in {count}")
        failed += 1
    sys.exit(failed > 0)


main()
