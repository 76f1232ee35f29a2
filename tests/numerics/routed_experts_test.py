#!/usr/bin/env python3
"""return_routed_experts: which experts the tokens of a prompt and its answer went through, the same in any schedule, and those
that from_the_page.py chooses, which was made from docs/numerics.md alone. Usage: routed_experts_test.py INVAR"""
import json, os, subprocess, sys, tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import from_the_page

INVAR = sys.argv[1]
SCHEDULES = [[], ["--max-num-seqs", "4", "--max-num-batched-tokens", "5"], ["--tensor-parallel-size", "2"],
             ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'], ["--isa", "scalar"]]


def generate(folder, tokens, flags, **more):
    body = {"prompt": tokens, "max_tokens": 6, "return_token_ids": True, "temperature": 0, "ignore_eos": True, **more}
    with open(f"{folder}/in.jsonl", "w") as file:
        file.write(json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body}))
    run = subprocess.run([INVAR, "generate", f"{folder}/model", "--threads", "1", "--input", f"{folder}/in.jsonl", "--output",
                          f"{folder}/out.jsonl", *flags], capture_output=True, text=True)
    assert run.returncode == 0 or "stop" in more, run.stderr
    line = json.load(open(f"{folder}/out.jsonl"))
    return line["response"] or line["error"]


def of_the_page(folder, tokens):
    """[tokens][columns], from the choices in the order in which that implementation makes them: layer by layer."""
    model, chosen, route = from_the_page.Model(f"{folder}/model", "portable", None), [], from_the_page.route

    def recording(logits, bias, how):
        ids, weights = route(logits, bias, how)
        chosen.append([int(e) for e in ids])
        return ids, weights

    from_the_page.route = recording
    with from_the_page.np.errstate(all="ignore"):
        model.forward(tokens)
    from_the_page.route = route
    layers = len(chosen) // len(tokens)
    return [sum((chosen[layer * len(tokens) + t] for layer in range(layers)), []) for t in range(len(tokens))]


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([INVAR, "make-model", f"{folder}/model", "--preset", "tiny-moe", "--vocab", "320"], check=True,
                       stdout=subprocess.DEVNULL)
        tokens = [(7 * i * i + 3 * i) % 320 for i in range(21)]
        expected = None
        for flags in SCHEDULES:
            choice = generate(folder, tokens, flags, return_routed_experts=True)["body"]["choices"][0]
            found = choice["prompt_routed_experts"] + choice["routed_experts"]
            answer = choice["token_ids"]
            if expected is None:
                expected = of_the_page(folder, tokens + answer[:-1])
            good = found == expected and len(choice["prompt_routed_experts"]) == len(tokens)
            failed += not good
            print(" ".join(flags) or "as it is", f"{len(found)} tokens:", "equal" if good else f"DIFFERENT {found} {expected}", flush=True)
        # The control: another prompt goes another way; and nobody gets what he did not ask for.
        other = generate(folder, tokens[1:], [], return_routed_experts=True)["body"]["choices"][0]
        failed += other["prompt_routed_experts"] == expected[1:len(tokens)]
        failed += "routed_experts" in generate(folder, tokens, [])["body"]["choices"][0]
        refused = generate(folder, tokens, [], return_routed_experts=True, stop=["x"])
        failed += "neither a stream nor stop strings" not in json.dumps(refused)
    print(f"{failed} faults")
    sys.exit(failed > 0)


main()
