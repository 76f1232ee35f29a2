#!/usr/bin/env python3
"""Adapters against PEFT: small models of several families with random weights, adapters that PEFT's own save_pretrained writes,
logits in f32 of its model, unmerged and merged. Invar's with the adapter in f32 (--weights exact) must be theirs to 1e-4 of what the adapter moves,
those in bf16 without experts twice as close to them as torch's in bf16 are; chunks and instruction sets must not show. A row near a tie of its
router goes through another expert with either rounding, so that of models with experts f32 alone says what is right.

Usage: peft_witness.py FAMILY_LOGITS [NAME ...]. Needs a Python with peft (INVAR_WITNESS, or /opt/witness/bin/python); without
one the test says so and is skipped (77). --control gives each adapter another alpha than the one that PEFT computed with: then
every one must disagree.
"""
import copy, json, os, subprocess, sys, tempfile

WITNESS = os.environ.get("INVAR_WITNESS", "/opt/witness/bin/python")
try:
    import peft, torch, transformers
except ImportError:
    if not os.path.exists(WITNESS) or sys.executable == WITNESS:
        print(f"SKIPPED families.agree_with_peft: no peft here, and no {WITNESS}")
        sys.exit(77)
    os.execv(WITNESS, [WITNESS] + sys.argv)
import numpy

TOKENS = 100
SIZES = dict(vocab_size=307, hidden_size=96, intermediate_size=130, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3,
             max_position_embeddings=512, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
STATES = dict(head_dim=16, num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=24)
EXPERTS = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=40)
SHARED = dict(EXPERTS, shared_expert_intermediate_size=64)
STACKS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
MULTIPLIED = dict(head_dim=16, mamba_d_ssm=48, mamba_n_heads=4, mamba_d_state=24, attention_in_multiplier=1.25, attention_out_multiplier=0.9375,
                  key_multiplier=0.390625, mlp_multipliers=[0.88388, 0.5859375], ssm_in_multiplier=1.25, ssm_out_multiplier=0.2357,
                  ssm_multipliers=[0.35355, 0.25, 0.3, 0.5, 0.35])
QKV, MLP = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
CASES = {
    "llama": dict(target_modules=QKV + MLP, r=8, lora_alpha=16),
    "llama biases": dict(target_modules=QKV + MLP, r=5, lora_alpha=3, more=dict(attention_bias=True, mlp_bias=True)),
    "qwen2": dict(target_modules=["q_proj", "v_proj"], r=16, lora_alpha=32, use_rslora=True),
    "qwen3": dict(target_modules=r".*\.(q_proj|down_proj)", r=40, lora_alpha=8, more=dict(head_dim=32)),
    "mistral": dict(target_modules="all-linear", r=3, lora_alpha=6, rank_pattern={"q_proj": 7, "layers.1.mlp.down_proj": 33},
                    alpha_pattern={"down_proj": 20}),
    "phi3": dict(target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], r=8, lora_alpha=8, more=dict(pad_token_id=0)),
    "glm4": dict(target_modules=["q_proj", "k_proj", "gate_up_proj", "down_proj"], r=8, lora_alpha=8,
                 more=dict(head_dim=16, pad_token_id=0)),
    "gemma2": dict(target_modules=QKV + MLP, r=8, lora_alpha=8, more=dict(head_dim=16, query_pre_attn_scalar=16)),
    "olmo2": dict(target_modules=QKV + MLP, r=8, lora_alpha=8),
    "qwen3_moe": dict(target_modules=QKV, r=8, lora_alpha=16, more=dict(head_dim=32, **EXPERTS)),
    "qwen3_moe stacks": dict(target_modules=QKV, target_parameters=STACKS, r=8, lora_alpha=16, more=dict(head_dim=32, **EXPERTS)),
    "qwen3_moe down": dict(target_modules=["q_proj"], target_parameters=STACKS[1:], r=5, lora_alpha=20, more=dict(head_dim=32, **EXPERTS)),
    "qwen2_moe": dict(target_modules=QKV + MLP, target_parameters=STACKS, r=4, lora_alpha=8, more=SHARED),
    "mixtral": dict(target_modules=["v_proj"], target_parameters=STACKS, r=4, lora_alpha=8, more=dict(intermediate_size=128, num_local_experts=8, num_experts_per_tok=2)),
    "qwen3_next": dict(target_modules=QKV + MLP + ["in_proj_qkvz", "in_proj_ba", "out_proj"], target_parameters=STACKS, r=8, lora_alpha=8,
                       more=dict(STATES, **SHARED)),
    "qwen3_5_text": dict(target_modules="all-linear", r=8, lora_alpha=8, more=STATES),
    "qwen3_5_moe_text": dict(target_modules=["in_proj_qkv", "out_proj"], target_parameters=STACKS, r=8, lora_alpha=8, more=dict(STATES, **SHARED)),
    "falcon_h1": dict(target_modules=QKV + MLP + ["in_proj"], r=8, lora_alpha=8, more=MULTIPLIED),
    "lfm2": dict(target_modules="all-linear", r=8, lora_alpha=8, more=dict(num_hidden_layers=4, block_auto_adjust_ff_dim=False,
                 layer_types=["conv", "conv", "full_attention", "conv"])),
}


def logits_of(tool, directory, tokens, adapter="", chunk=1 << 20, instruction_set="auto", order="portable"):
    with tempfile.TemporaryDirectory() as scratch:
        numpy.array(tokens, dtype=numpy.int32).tofile(f"{scratch}/tokens")
        done = subprocess.run([tool, directory, f"{scratch}/tokens", f"{scratch}/out", order, str(chunk), instruction_set, "0",
                               *([adapter] if adapter else [])], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr.strip()
        return numpy.fromfile(f"{scratch}/out", dtype=numpy.float32).reshape(len(tokens), -1)


def check(tool, name, case, control):
    case = dict(case)
    torch.manual_seed(len(name))
    config = transformers.AutoConfig.for_model(name.split()[0], **{**SIZES, **case.pop("more", {})})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    tokens = torch.randint(3, SIZES["vocab_size"], (1, TOKENS), generator=torch.Generator().manual_seed(1))
    row = tokens[0].tolist()
    with tempfile.TemporaryDirectory() as base, tempfile.TemporaryDirectory() as adapter, torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
        model.save_pretrained(base)
        plain = model(tokens).logits[0].numpy()
        adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **case)).eval()
        for key, parameter in adapted.named_parameters():
            if "lora_" in key:
                parameter.normal_(0, 0.1)
        wanted = adapted(tokens).logits[0].numpy()
        adapted.save_pretrained(adapter)
        rounded = copy.deepcopy(adapted).bfloat16()(tokens).logits[0].float().numpy()
        merged = adapted.merge_and_unload()(tokens).logits[0].numpy()
        if control:
            path = f"{adapter}/adapter_config.json"
            said = json.load(open(path))
            said["lora_alpha"] *= 1.3
            json.dump(said, open(path, "w"))
        own = numpy.abs(logits_of(tool, base, row) - plain).mean()
        found = logits_of(tool, base, row, adapter)
        error, of_merged, moved = (numpy.abs(found - other).mean() for other in (wanted, merged, plain))
        same = all(numpy.array_equal(found, logits_of(tool, base, row, adapter, *more)) for more in ((7,), (1000, "scalar"), (64, "avx2")))
        # Both round to bf16, torch its sums as well. A model that the adapter makes more sensitive has more of either error.
        of_torch = numpy.abs(rounded - wanted).mean()
        bound = of_torch / 2
        has_experts = hasattr(config, "num_experts_per_tok")
        exact = numpy.abs(logits_of(tool, base, row, adapter, order="exact") - wanted).mean()
        good = exact <= 1e-4 * moved and same and (has_experts or (error <= bound and of_merged <= bound and moved > 5 * bound))
        print(f"{name:13}: mean error {exact:.7f} in f32, {error:.5f}, of the merged model {of_merged:.5f}; without an adapter {own:.5f}, torch's in bf16 {of_torch:.5f}; the adapter moves "
              f"logits by {moved:.3f}{'' if same else ', SCHEDULES DIFFER'}{'' if good else '  WRONG'}", flush=True)
        return good


def main():
    arguments = [a for a in sys.argv[1:] if a != "--control"]
    control = "--control" in sys.argv
    tool, names = arguments[0], arguments[1:] or list(CASES)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    wrong = []
    for name in names:
        try:
            good = check(tool, name, CASES[name], control)
        except AssertionError as error:
            print(f"{name:13}: {error}", flush=True)
            good = False
        if good == control:
            wrong.append(name)
    print(f"peft {peft.__version__}: {'wrong: ' + ', '.join(wrong) if wrong else 'all as expected'}")
    sys.exit(1 if wrong else 0)


main()
