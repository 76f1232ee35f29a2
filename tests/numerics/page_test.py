#!/usr/bin/env python3
"""The engine's tokens, logits hashes and log-probabilities against those of from_the_page.py, which was
made from docs/numerics.md alone. Usage: page_test.py INVAR SOURCE [--full]"""
import json, os, subprocess, sys, tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import from_the_page

INVAR, SOURCE, FULL = sys.argv[1], sys.argv[2], "--full" in sys.argv or os.environ.get("INVAR_FULL_TESTS")
MODELS = ["llama-gqa", "llama3-rope-tied", "mistral-window", "qwen2-bias", "qwen3-qknorm"]
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
    for model in ["llama-gqa", "mistral-window"] if FULL else ["mistral-window"]:
        yield model, "portable", 156, PLAIN  # two splits, and the window of one of them
        if FULL:
            yield model, "hopper", 156, SAMPLED


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


def engine_answer(folder, model, arithmetic, tokens, parameters):
    body = {"prompt": tokens, "max_tokens": TOKENS, "logprobs": 0, "return_token_ids": True, "logits_hash": True,
            **parameters}
    request = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}
    with open(f"{folder}/in.jsonl", "w") as file:
        file.write(json.dumps(request))
    subprocess.run([INVAR, "generate", model, "--arith", arithmetic, "--input", f"{folder}/in.jsonl", "--output",
                    f"{folder}/out.jsonl"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    choice = json.load(open(f"{folder}/out.jsonl"))["response"]["body"]["choices"][0]
    return {"answer": choice["token_ids"], "logits_hash": choice["logits_hash"],
            "logprobs": choice["logprobs"]["token_logprobs"]}


def page_answer(model, arithmetic, tokens, parameters):
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in parameters.items()]
    return from_the_page.main([model, "--tokens", ",".join(map(str, tokens)), "--arith", arithmetic,
                               "--max-tokens", str(TOKENS), *flags])


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
    # The control: other tokens, arithmetics and prompts have other hashes.
    if len(hashes) < count * 2 // 3:
        print(f"expected the cases to have different hashes, found {len(hashes)} in {count}")
        failed += 1
    sys.exit(failed > 0)


main()
