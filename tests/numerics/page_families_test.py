#!/usr/bin/env python3
"""Every family: the engine's tokens, logits hashes and log-probabilities against those of from_the_page.py, which was made
from docs/numerics.md alone. The models are made here: the shapes of tests/families/tiny_configs.json made smaller, random
weights under the names of their published checkpoints. Usage: page_families_test.py INVAR SOURCE [--full]"""
import json, os, subprocess, sys, tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import from_the_page
from from_the_page import Family, bf16

INVAR, SOURCE = sys.argv[1], sys.argv[2]
FULL = "--full" in sys.argv or os.environ.get("INVAR_FULL_TESTS")
QUICK = ["gemma2", "gemma3_text", "glm4", "phi3", "olmo3", "falcon-7b", "granite"]
TOKENS, PROMPT = 3, 13


def smaller(config):
    c = dict(config)
    layers = 4 if c.get("layer_types") or c["model_type"] in ("smollm3", "olmo3", "exaone4") else 2
    c.update(hidden_size=64, num_attention_heads=4, num_hidden_layers=layers, vocab_size=320)
    for key, value in (("num_key_value_heads", 2), ("num_kv_heads", 2), ("intermediate_size", 96), ("head_dim", 16),
                       ("query_pre_attn_scalar", 24)):
        if key in c:
            c[key] = value
    if c.get("sliding_window"):
        c["sliding_window"] = 6
    return c


def biases_of(c):
    """The last parts of the names of tensors that have a bias beside their weight."""
    name, qkv = c["model_type"], ["q_proj", "k_proj", "v_proj"]
    if name == "qwen2" or (name == "glm4" and c.get("attention_bias")):
        return qkv
    if name == "llama" and c.get("attention_bias"):
        return qkv + ["o_proj"]
    if name == "seed_oss":
        return qkv
    return []


def tensors_of(c, draw):
    """Llama's names, then fused and named as the family's checkpoints have them."""
    f, D, E = Family(c), c["hidden_size"], Family(c).size
    w = {"model.embed_tokens.weight": draw(320, D)}
    norm = lambda size: bf16((0 if c["model_type"].startswith("gemma") else 1) + 0.1 * draw(size))
    if not f.tied:
        w["lm_head.weight"] = draw(320, D) / 8
    w["model.norm.weight"] = norm(D)
    falcon = c["model_type"] == "falcon"
    for i in range(c["num_hidden_layers"]):
        at, mlp = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp."
        sizes = {"q_proj": (f.heads * E, D), "k_proj": (f.kv_heads * E, D), "v_proj": (f.kv_heads * E, D), "o_proj": (D, f.heads * E)}
        for name, shape in sizes.items():
            w[at + name + ".weight"] = draw(*shape) / 8
            if name in biases_of(c):
                w[at + name + ".bias"] = draw(shape[0]) / 4
        for name, shape in {"gate_proj": (f.width, D), "up_proj": (f.width, D), "down_proj": (D, f.width)}.items():
            if not (falcon and name == "gate_proj"):
                w[mlp + name + ".weight"] = draw(*shape) / 8
        for name in f.norms:
            if name and not falcon:
                w[f"model.layers.{i}.{name}.weight"] = norm(D)
        if c["model_type"] in ("qwen3", "gemma3_text", "exaone4", "hunyuan_v1_dense", "olmo2", "olmo3"):
            names = ("query_layernorm", "key_layernorm") if f.late else ("q_norm", "k_norm")
            for name, heads in zip(names, (f.heads, f.kv_heads)):
                w[at + name + ".weight"] = norm(heads * E if f.joint else E)
    return as_published(c, f, w, norm)


def as_published(c, f, w, norm):
    out = {}
    for name, value in w.items():
        at, kind, end = (name.rsplit(".", 2) + [""])[:3]
        part = lambda other: w[f"{at}.{other}.{end}"]
        if c["model_type"] in ("phi3", "glm4") and kind == "gate_proj":
            out[f"{at}.gate_up_proj.{end}"] = np.concatenate([value, part("up_proj")])
        elif c["model_type"] == "phi3" and kind == "q_proj":
            out[f"{at}.qkv_proj.{end}"] = np.concatenate([value, part("k_proj"), part("v_proj")])
        elif c["model_type"] == "falcon" and kind == "q_proj":
            heads = lambda x, n: x.reshape(f.kv_heads, n, f.size, -1)
            rows = [heads(value, f.heads // f.kv_heads), heads(part("k_proj"), 1), heads(part("v_proj"), 1)]
            out[f"{at}.query_key_value.{end}"] = np.concatenate(rows, axis=1).reshape(-1, c["hidden_size"])
        elif not ((c["model_type"] in ("phi3", "glm4") and kind == "up_proj") or
                  (c["model_type"] in ("phi3", "falcon") and kind in ("k_proj", "v_proj"))):
            out[name] = value
    if c["model_type"] != "falcon":
        return out
    renamed = {}
    for name, value in out.items():
        for old, new in (("model.embed_tokens", "transformer.word_embeddings"), ("model.norm", "transformer.ln_f"),
                         ("model.layers", "transformer.h"), ("self_attn.o_proj", "self_attention.dense"), ("self_attn", "self_attention"),
                         ("up_proj", "dense_h_to_4h"), ("down_proj", "dense_4h_to_h")):
            name = name.replace(old, new)
        renamed[name] = value
    D = c["hidden_size"]
    renamed["transformer.ln_f.bias"] = bf16(0.1 * norm(D))
    for i in range(c["num_hidden_layers"]):
        for name in ("ln_attn", "ln_mlp") if c.get("new_decoder_architecture") else ("input_layernorm",):
            renamed[f"transformer.h.{i}.{name}.weight"], renamed[f"transformer.h.{i}.{name}.bias"] = norm(D), bf16(0.1 * norm(D))
    return renamed


def write_model(folder, config, seed):
    source = np.random.default_rng(seed)
    draw = lambda *shape: bf16(source.standard_normal(shape).astype(np.float32))
    header, data = {}, b""
    for name, value in sorted(tensors_of(config, draw).items()):
        raw = (bf16(value.astype(np.float32)).view(np.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": list(value.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(f"{folder}/model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
    json.dump(config, open(f"{folder}/config.json", "w"))


def engine_answer(folder, arithmetic, tokens, parameters):
    body = {"prompt": tokens, "max_tokens": TOKENS, "logprobs": 0, "return_token_ids": True, "logits_hash": True, **parameters}
    with open(f"{folder}/in.jsonl", "w") as file:
        file.write(json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}))
    run = subprocess.run([INVAR, "generate", folder, "--arith", arithmetic, "--threads", "1", "--input", f"{folder}/in.jsonl",
                          "--output", f"{folder}/out.jsonl"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    choice = json.load(open(f"{folder}/out.jsonl"))["response"]["body"]["choices"][0]
    return {"answer": choice["token_ids"], "logits_hash": choice["logits_hash"], "logprobs": choice["logprobs"]["token_logprobs"]}


def page_answer(folder, arithmetic, tokens, parameters):
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in parameters.items()]
    return from_the_page.main([folder, "--tokens", ",".join(map(str, tokens)), "--arith", arithmetic, "--max-tokens", str(TOKENS), *flags])


def compare(family, config, arithmetic, seed, tokenizer):
    parameters = {"temperature": 1.0, "seed": 100 + seed}
    tokens = np.random.default_rng(seed).integers(3, 320, PROMPT).tolist()
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder, config, seed)
        for name in os.listdir(tokenizer):
            if name.startswith("tokenizer"):
                os.symlink(f"{tokenizer}/{name}", f"{folder}/{name}")
        engine, page = engine_answer(folder, arithmetic, tokens, parameters), page_answer(folder, arithmetic, tokens, parameters)
    differing = [key for key in engine if engine[key] != page[key]]
    print(f"{family} {arithmetic}: {engine['logits_hash'][:16]} {page['logits_hash'][:16]}",
          f"DIFFERENT: {differing} {engine} {page}" if differing else "equal", flush=True)
    return engine["logits_hash"], bool(differing)


def main():
    configs = json.load(open(f"{SOURCE}/tests/families/tiny_configs.json"))
    chosen = [a for a in sys.argv[3:] if not a.startswith("-")] or (list(configs) if FULL else QUICK)
    hashes, failed, count = set(), 0, 0
    with tempfile.TemporaryDirectory() as made:
        subprocess.run([INVAR, "make-model", f"{made}/m", "--vocab", "320"], check=True, stdout=subprocess.DEVNULL)
        for number, family in enumerate(chosen):
            for arithmetic in ("portable", "hopper") if FULL else ("portable",):
                digest, differs = compare(family, smaller(configs[family]), arithmetic, number, f"{made}/m")
                hashes.add(digest)
                failed, count = failed + differs, count + 1
    # The control: other families have other hashes.
    if len(hashes) < count * 2 // 3:
        print(f"expected the families to have different hashes, found {len(hashes)} in {count}")
        failed += 1
    print(f"{count - failed} of {count} equal")
    sys.exit(failed > 0)


main()
