#!/usr/bin/env python3
"""Gradients and AdamW steps against PyTorch in float32. Usage: torch_test.py WRITE_TORCH_CASE
The model is written out below, or, of other families than Llama's, transformers'. Needs a Python with both (INVAR_WITNESS, or
/opt/witness/bin/python); without one the test says so and is skipped (77).

The bound: Invar's products take bf16 inputs, whose rounding is off by up to 2^-9 of a value and by 2^-9/sqrt(3) in the
mean square. A gradient element passes through some tens of such roundings, independent of each other, on its way through
two layers and back: sqrt(60) * 2^-9 / sqrt(3) = 0.9 %, and those behind a softmax or a norm count several times. So a tensor's gradient may
differ by 4 % of its length. AdamW is compared given Invar's own gradients, read off the first moments: there nothing is
rounded to bf16, and weights may differ by 2e-6 of the largest, some ulps of f32."""
import json
import os
import pathlib
import subprocess
import sys
import unittest

WITNESS = os.environ.get("INVAR_WITNESS", "/opt/witness/bin/python")
try:
    import torch
    import transformers
except ImportError:
    if not os.path.exists(WITNESS) or sys.executable == WITNESS:
        print(f"SKIPPED train.agrees_with_torch: no torch and transformers here, and no {WITNESS}")
        sys.exit(77)
    os.execv(WITNESS, [WITNESS] + sys.argv)

GRADIENT_BOUND, STEP_BOUND = 0.04, 2e-6
CASES = None


class Model:
    def __init__(self, case, tensors):
        self.c, self.qk_norm, self.w = case["config"], case["qk_norm"], tensors

    def norm(self, x, weight):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.c["rms_norm_eps"]) * weight

    def linear(self, x, name):
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def rotate(self, x):  # [T][heads][E], positions 0, 1, 2 ...
        e = x.shape[-1]
        angle = torch.outer(torch.arange(x.shape[0]).float(),
                            self.c["rope_theta"] ** (-torch.arange(0, e, 2).float() / e))[:, None]
        a, b = x[..., :e // 2], x[..., e // 2:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def attention(self, x, at):
        t, e = x.shape[0], self.c["head_dim"]
        q, k, v = (self.linear(x, at + f"self_attn.{p}_proj").view(t, -1, e) for p in "qkv")
        if self.qk_norm:
            q, k = self.norm(q, self.w[at + "self_attn.q_norm.weight"]), self.norm(k, self.w[at + "self_attn.k_norm.weight"])
        q, k = self.rotate(q), self.rotate(k)
        shared = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
        scores = torch.einsum("ihe,jhe->hij", q, k) / e ** 0.5
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        return self.linear(torch.einsum("hij,jhe->ihe", scores.softmax(-1), v).reshape(t, -1), at + "self_attn.o_proj")

    def logits(self, tokens):
        h = self.w["model.embed_tokens.weight"][tokens]
        for layer in range(self.c["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            h = h + self.attention(self.norm(h, self.w[at + "input_layernorm.weight"]), at)
            x = self.norm(h, self.w[at + "post_attention_layernorm.weight"])
            gated = torch.nn.functional.silu(self.linear(x, at + "mlp.gate_proj")) * self.linear(x, at + "mlp.up_proj")
            h = h + self.linear(gated, at + "mlp.down_proj")
        head = self.w.get("lm_head.weight", self.w["model.embed_tokens.weight"])
        return self.norm(h, self.w["model.norm.weight"]) @ head.T


class TransformersModel:
    def __init__(self, case, tensors):
        config = dict(case["config"], pad_token_id=None, bos_token_id=None, eos_token_id=None)  # a padding token would learn nothing
        self.model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(config.pop("model_type"), **config), attn_implementation="eager", dtype=torch.float32)
        for name, module in self.model.named_modules():
            if name.endswith("o_norm"):  # OLMo Hybrid's has an epsilon of its own (write_torch_case)
                module.variance_epsilon = case["config"]["rms_norm_eps"]
        self.parameters = self.model.state_dict(keep_vars=True)
        stacked, self.weights = in_memory(tensors, self.parameters), tensors
        missing = set(self.parameters) - set(stacked) - {"lm_head.weight"}
        if missing or set(stacked) - set(self.parameters):
            raise ValueError(f"tensors without a place: {missing} {set(stacked) - set(self.parameters)}")
        self.stacked = stacked

    def logits(self, tokens):
        return torch.func.functional_call(self.model, self.stacked, (tokens[None],), {"use_cache": False}).logits[0]


def in_memory(tensors, wanted):
    """Names as transformers 5 has them in memory: experts in stacks, gate and up side by side; one convolution of three."""
    found = {}
    for stored, w in tensors.items():
        name = stored.replace("backbone.", "model.", 1).replace("attention_layer_norm", "input_layernorm")
        name = name.replace("feedforward_layer_norm", "post_attention_layernorm")
        at, _, rest = name.partition(".mlp.experts.")
        if name in wanted:
            found[name] = w
        elif rest == "0.gate_proj.weight":
            experts = sum(n.startswith(at + ".mlp.experts.") for n in tensors) // 3
            of = lambda part: torch.stack([tensors[f"{at}.mlp.experts.{e}.{part}_proj.weight"] for e in range(experts)])
            found[at + ".mlp.experts.gate_up_proj"] = torch.cat([of("gate"), of("up")], 1)
            found[at + ".mlp.experts.down_proj"] = of("down")
        elif name.endswith(".q_conv1d.weight"):
            found[name.replace("q_conv1d", "conv1d")] = torch.cat([tensors[name.replace("q_conv1d", f"{part}_conv1d")] for part in "qkv"])
        elif not rest and "_conv1d." not in name:
            found[name.replace("self_attn.", "self_attn.forget_gate.")] = w
    return found


def loss(model, rows):
    total, weight = 0, 0
    for row in rows:
        ends = row["begins"][1:] + [len(row["tokens"])]
        for begin, end in zip(row["begins"], ends):
            logits = model.logits(torch.tensor(row["tokens"][begin:end]))
            each = torch.nn.functional.cross_entropy(logits, torch.tensor(row["targets"][begin:end]), reduction="none")
            total = total + (each * torch.tensor(row["weights"][begin:end])).sum()
            weight += sum(row["weights"][begin:end])
    return total / weight


def tensors(state, what):
    return {name: torch.tensor(t[what], dtype=torch.float32).reshape(t["shape"]) for name, t in state.items()}


def invar_gradients(case, step):
    """g = (m' - beta1 * m) / (1 - beta1), in f64."""
    before, after = tensors(case["states"][step], "first"), tensors(case["states"][step + 1], "first")
    beta = case["beta1"]
    return {name: (after[name].double() - beta * before[name].double()) / (1 - beta) for name in after}


def torch_gradients(case, step, rows):
    weights = {n: w.bfloat16().float().requires_grad_() for n, w in tensors(case["states"][step], "master").items()}
    loss((TransformersModel if case["of_transformers"] else Model)(case, weights), rows).backward()
    return {name: w.grad.double() for name, w in weights.items() if w.grad is not None}


def differences(found, expected):
    """The errors of all tensors, as parts of their lengths; the smallest first."""
    return sorted((float((found[n] - expected[n]).norm() / expected[n].norm()), n) for n in expected)


class Torch(unittest.TestCase):
    def test_gradients_agree(self):
        for name, case in CASES.items():
            for step in range(len(case["rows"])):
                here, there = invar_gradients(case, step), torch_gradients(case, step, case["rows"][step])
                for tensor in set(here) - set(there):
                    self.assertTrue(tensor.endswith("e_score_correction_bias") and not here[tensor].any(), tensor)
                found = differences(here, there)
                mean = sum(error for error, _ in found) / len(found)
                print(f"{name}, step {step + 1}: gradients of {len(found)} tensors differ by {mean:.4f}, up to {found[-1][0]:.4f} ({found[-1][1]})")
                self.assertLess(found[-1][0], GRADIENT_BOUND, (name, step, found[-1][1]))

    def test_another_gradient_does_not(self):
        for name, case in CASES.items():
            wrong = json.loads(json.dumps(case["rows"][0]))
            wrong[0]["weights"] = [1.0] * len(wrong[0]["weights"])  # what nobody wanted
            found = differences(invar_gradients(case, 0), torch_gradients(case, 0, wrong))
            self.assertGreater(found[0][0], GRADIENT_BOUND, (name, found[0][1]))  # every tensor's

    def step_error(self, case, decay):
        weights = {n: torch.nn.Parameter(w) for n, w in tensors(case["states"][0], "master").items()}
        matrices = [w for w in weights.values() if w.dim() == 2]
        vectors = [w for w in weights.values() if w.dim() != 2]
        adam = torch.optim.AdamW([{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}],
                                 betas=(case["beta1"], case["beta2"]), eps=case["eps"])
        error = 0.0
        for step, rate in enumerate(case["rates"]):
            gradients = invar_gradients(case, step)
            for name, w in weights.items():
                w.grad = gradients[name].float()
            for group in adam.param_groups:
                group["lr"] = rate
            adam.step()
            for name, expected in tensors(case["states"][step + 1], "master").items():
                error = max(error, float((weights[name].detach() - expected).abs().max() / expected.abs().max()))
        return error

    def test_steps_agree(self):
        for name, case in CASES.items():
            error = self.step_error(case, case["decay"])
            print(f"{name}: weights after {len(case['rates'])} steps differ by up to {error:.2e}")
            self.assertLess(error, STEP_BOUND, name)
            self.assertGreater(self.step_error(case, case["decay"] * 0.9), STEP_BOUND, name)  # another decay shows


if __name__ == "__main__":
    torch.set_num_threads(1)
    CASES = json.loads(subprocess.run([sys.argv[1], pathlib.Path(__file__).parent.parent / "families"], check=True, capture_output=True).stdout)
    del sys.argv[1]
    unittest.main()
