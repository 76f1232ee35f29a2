"""GGUF files of models with states, and of Gemma 4, as llama.cpp's converter makes them of their directories: names, keys and the forms
of tensors, by the format's rules alone. Nothing here is taken from the program."""
import json, pathlib

import numpy

from gguf_files import permuted, read_directory


class Converted:
    """A directory as the keys and tensors of a file."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.config = json.loads((self.folder / "config.json").read_text())
        self.hf = read_directory(folder)
        self.tensors = {}
        make = {"lfm2": self.lfm2, "lfm2_moe": self.lfm2, "granitemoehybrid": self.granite, "nemotron_h": self.nemotron,
                "falcon_h1": self.falcon, "kimi_linear": self.kimi, "qwen3_next": self.qwen, "qwen3_5_text": self.qwen, "qwen3_5_moe_text": self.qwen, "gemma4_text": self.gemma4}[self.config["model_type"]]
        self.name, own = make()
        c = self.config
        sizes = {"block_count": c["num_hidden_layers"], "context_length": c["max_position_embeddings"],
                 "embedding_length": c["hidden_size"], "attention.head_count": c["num_attention_heads"]}
        eps = next(c[key] for key in ("rms_norm_eps", "norm_eps", "layer_norm_epsilon") if key in c)
        sizes["attention.layer_norm_rms_epsilon"] = float(eps)
        if "rope_theta" in c:
            sizes["rope.freq_base"] = float(c["rope_theta"])
        self.keys = {"general.architecture": self.name} | {f"{self.name}.{key}": value for key, value in (sizes | own).items()}
        self.keys |= self.tokenizer()

    def tokenizer(self):
        text = (self.folder / "tokenizer.json").read_text()
        said = json.loads(text)
        vocab = said["model"]["vocab"] | {added["content"]: added["id"] for added in said["added_tokens"]}
        tokens = [f"[PAD{i}]" for i in range(self.config["vocab_size"])]
        for token, i in vocab.items():
            tokens[i] = token
        return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens,
                "tokenizer.huggingface.json": text, "tokenizer.ggml.eos_token_id": self.config["eos_token_id"]}

    def put(self, name, array):
        self.tensors[name] = numpy.ascontiguousarray(array, dtype=numpy.float32)

    def outside(self, embedding="model.embed_tokens", norm="model.norm", norm_there="output_norm"):
        self.put("token_embd.weight", self.hf[embedding + ".weight"])
        self.put(norm_there + ".weight", self.hf[norm + ".weight"])
        if "lm_head.weight" in self.hf:
            self.put("output.weight", self.hf["lm_head.weight"])

    def layers(self, prefix="model.layers."):
        for i in range(self.config["num_hidden_layers"]):
            at = f"{prefix}{i}."
            yield i, {name[len(at):]: value for name, value in self.hf.items() if name.startswith(at)}

    def experts(self, i, own, at, names):
        """Those that stand one by one in the directory, in stacks."""
        count = 1 + max(int(name[len(at):].split(".")[0]) for name in own if name.startswith(at))
        for here, there in names.items():
            self.put(f"blk.{i}.ffn_{there}_exps.weight", numpy.stack([own[f"{at}{e}.{here}.weight"] for e in range(count)]))

    def state_space(self, i, own, at, groups):
        self.put(f"blk.{i}.ssm_in.weight", own[at + "in_proj.weight"])
        self.put(f"blk.{i}.ssm_conv1d.weight", own[at + "conv1d.weight"].squeeze())
        if at + "conv1d.bias" in own:
            self.put(f"blk.{i}.ssm_conv1d.bias", own[at + "conv1d.bias"])
        self.put(f"blk.{i}.ssm_dt.bias", own[at + "dt_bias"])
        self.put(f"blk.{i}.ssm_a", -numpy.exp(own[at + "A_log"]).reshape(-1, 1))
        self.put(f"blk.{i}.ssm_d", own[at + "D"].reshape(-1, 1))
        if at + "norm.weight" in own:
            self.put(f"blk.{i}.ssm_norm.weight", own[at + "norm.weight"].reshape(groups, -1))
        self.put(f"blk.{i}.ssm_out.weight", own[at + "out_proj.weight"])

    def permuted_attention(self, i, own, at):
        c = self.config
        for name, there, heads in (("q_proj", "attn_q", c["num_attention_heads"]), ("k_proj", "attn_k", c["num_key_value_heads"])):
            self.put(f"blk.{i}.{there}.weight", permuted(own[f"{at}{name}.weight"], heads))
        self.put(f"blk.{i}.attn_v.weight", own[at + "v_proj.weight"])
        self.put(f"blk.{i}.attn_output.weight", own[at + "o_proj.weight"])

    def lfm2(self):
        c, has_experts = self.config, self.config["model_type"] == "lfm2_moe"
        names = {"operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
                 "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_output", "self_attn.q_layernorm": "attn_q_norm",
                 "self_attn.k_layernorm": "attn_k_norm", "conv.in_proj": "shortconv.in_proj", "conv.out_proj": "shortconv.out_proj",
                 "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down",
                 "feed_forward.gate": "ffn_gate_inp"}
        self.outside(norm="model.embedding_norm", norm_there="token_embd_norm")
        for i, own in self.layers():
            for here, there in names.items():
                if here + ".weight" in own:
                    self.put(f"blk.{i}.{there}.weight", own[here + ".weight"])
            if "conv.conv.weight" in own:
                self.put(f"blk.{i}.shortconv.conv.weight", own["conv.conv.weight"].squeeze(1))
            if "feed_forward.expert_bias" in own:
                self.put(f"blk.{i}.exp_probs_b.bias", own["feed_forward.expert_bias"])
                self.experts(i, own, "feed_forward.experts.", {"w1": "gate", "w3": "up", "w2": "down"})
        kv = [c["num_key_value_heads"] if kind == "full_attention" else 0 for kind in c["layer_types"]]
        keys = {"attention.head_count_kv": kv, "shortconv.l_cache": c["conv_L_cache"], "vocab_size": c["vocab_size"],
                "feed_forward_length": c["intermediate_size"]}
        if has_experts:
            keys |= {"expert_count": c["num_experts"], "expert_used_count": c["num_experts_per_tok"], "expert_gating_func": 2,
                     "expert_feed_forward_length": c["moe_intermediate_size"], "leading_dense_block_count": c["num_dense_layers"]}
        return "lfm2moe" if has_experts else "lfm2", keys

    def granite(self):
        c, count = self.config, self.config["num_local_experts"]
        self.outside()
        for i, own in self.layers():
            self.put(f"blk.{i}.attn_norm.weight", own["input_layernorm.weight"])
            self.put(f"blk.{i}.ffn_norm.weight", own["post_attention_layernorm.weight"])
            if "mamba.in_proj.weight" in own:
                self.state_space(i, own, "mamba.", c["mamba_n_groups"])
            else:
                self.permuted_attention(i, own, "self_attn.")
            shared = "_shexp" if count else ""
            gate, up = numpy.split(own["shared_mlp.input_linear.weight"], 2)
            self.put(f"blk.{i}.ffn_gate{shared}.weight", gate)
            self.put(f"blk.{i}.ffn_up{shared}.weight", up)
            self.put(f"blk.{i}.ffn_down{shared}.weight", own["shared_mlp.output_linear.weight"])
            if count:
                gate, up = numpy.split(own["block_sparse_moe.input_linear.weight"], 2, axis=1)
                self.put(f"blk.{i}.ffn_gate_exps.weight", gate)
                self.put(f"blk.{i}.ffn_up_exps.weight", up)
                self.put(f"blk.{i}.ffn_down_exps.weight", own["block_sparse_moe.output_linear.weight"])
                self.put(f"blk.{i}.ffn_gate_inp.weight", own["block_sparse_moe.router.layer.weight"])
        kv = [c["num_key_value_heads"] if kind == "attention" else 0 for kind in c["layer_types"]]
        keys = {"attention.head_count_kv": kv, "feed_forward_length": c["intermediate_size"],
                "expert_shared_feed_forward_length": c["shared_intermediate_size"], "rope.scaling.finetuned": False,
                "embedding_scale": float(c["embedding_multiplier"]), "residual_scale": float(c["residual_multiplier"]),
                "logit_scale": float(c["logits_scaling"]), "attention.scale": float(c["attention_multiplier"]),
                "ssm.conv_kernel": c["mamba_d_conv"], "ssm.state_size": c["mamba_d_state"], "ssm.group_count": c["mamba_n_groups"],
                "ssm.inner_size": c["mamba_n_heads"] * c["mamba_d_head"], "ssm.time_step_rank": c["mamba_n_heads"]}
        if count:
            keys |= {"expert_count": count, "expert_used_count": c["num_experts_per_tok"]}
        return "granitehybrid", keys

    def nemotron(self):
        c, has_experts = self.config, "n_routed_experts" in self.config
        self.outside("backbone.embeddings", "backbone.norm_f")
        for i, own in self.layers("backbone.layers."):
            self.put(f"blk.{i}.attn_norm.weight", own["norm.weight"])
            if "mixer.in_proj.weight" in own:
                self.state_space(i, own, "mixer.", c["n_groups"])
            elif "mixer.q_proj.weight" in own:
                self.permuted_attention(i, own, "mixer.")
            elif "mixer.gate.weight" in own:
                self.put(f"blk.{i}.ffn_gate_inp.weight", own["mixer.gate.weight"])
                self.put(f"blk.{i}.exp_probs_b.bias", own["mixer.gate.e_score_correction_bias"])
                self.experts(i, own, "mixer.experts.", {"up_proj": "up", "down_proj": "down"})
                self.put(f"blk.{i}.ffn_up_shexp.weight", own["mixer.shared_experts.up_proj.weight"])
                self.put(f"blk.{i}.ffn_down_shexp.weight", own["mixer.shared_experts.down_proj.weight"])
            else:
                self.put(f"blk.{i}.ffn_up.weight", own["mixer.up_proj.weight"])
                self.put(f"blk.{i}.ffn_down.weight", own["mixer.down_proj.weight"])
        kinds = c["layers_block_type"]
        width = c["moe_intermediate_size"] if has_experts else c["intermediate_size"]
        keys = {"attention.head_count_kv": [c["num_key_value_heads"] if kind == "attention" else 0 for kind in kinds],
                "feed_forward_length": [width if kind == ("moe" if has_experts else "mlp") else 0 for kind in kinds],
                "attention.key_length": c["head_dim"], "attention.value_length": c["head_dim"], "rope.scaling.finetuned": False,
                "rope.dimension_count": c["hidden_size"] // c["num_attention_heads"],
                "ssm.conv_kernel": c["conv_kernel"], "ssm.state_size": c["ssm_state_size"], "ssm.group_count": c["n_groups"],
                "ssm.inner_size": c["mamba_num_heads"] * c["mamba_head_dim"], "ssm.time_step_rank": c["mamba_num_heads"]}
        if has_experts:
            keys |= {"expert_count": c["n_routed_experts"], "expert_used_count": c["num_experts_per_tok"],
                     "expert_feed_forward_length": c["moe_intermediate_size"], "expert_shared_count": c["n_shared_experts"],
                     "expert_shared_feed_forward_length": c["moe_shared_expert_intermediate_size"],
                     "expert_weights_norm": c["norm_topk_prob"], "expert_weights_scale": float(c["routed_scaling_factor"]),
                     "expert_group_count": c["n_group"]}
        return "nemotron_h_moe" if has_experts else "nemotron_h", keys

    def falcon(self):
        """Matrices are there times the configuration's multipliers."""
        c = self.config
        inner, keys = c["mamba_d_ssm"], c["mamba_n_groups"] * c["mamba_d_state"]
        rows = numpy.repeat(c["ssm_multipliers"], [inner, inner, keys, keys, c["mamba_n_heads"]])
        of = {"self_attn.q_proj": ("attn_q", c["attention_in_multiplier"]), "self_attn.v_proj": ("attn_v", c["attention_in_multiplier"]),
              "self_attn.k_proj": ("attn_k", c["attention_in_multiplier"] * c["key_multiplier"]),
              "self_attn.o_proj": ("attn_output", c["attention_out_multiplier"]), "feed_forward.up_proj": ("ffn_up", 1),
              "feed_forward.gate_proj": ("ffn_gate", c["mlp_multipliers"][0]), "feed_forward.down_proj": ("ffn_down", c["mlp_multipliers"][1])}
        times = lambda x, factor: x * numpy.float32(factor)
        self.outside(norm="model.final_layernorm")
        for name, factor in (("token_embd.weight", c["embedding_multiplier"]), ("output.weight", c["lm_head_multiplier"])):
            self.put(name, times(self.tensors[name], factor))
        for i, own in self.layers():
            self.put(f"blk.{i}.attn_norm.weight", own["input_layernorm.weight"])
            self.put(f"blk.{i}.ffn_norm", own["pre_ff_layernorm.weight"])  # as its mapping has it
            for here, (there, factor) in of.items():
                self.put(f"blk.{i}.{there}.weight", times(own[here + ".weight"], factor))
            own["mamba.in_proj.weight"] = times(own["mamba.in_proj.weight"], c["ssm_in_multiplier"] * rows[:, None])
            own["mamba.out_proj.weight"] = times(own["mamba.out_proj.weight"], c["ssm_out_multiplier"])
            self.state_space(i, own, "mamba.", c["mamba_n_groups"])
        return "falcon-h1", {"attention.head_count_kv": c["num_key_value_heads"], "attention.key_length": c["head_dim"],
                             "attention.value_length": c["head_dim"], "feed_forward_length": c["intermediate_size"],
                             "vocab_size": c["vocab_size"], "ssm.conv_kernel": c["mamba_d_conv"], "ssm.state_size": c["mamba_d_state"],
                             "ssm.group_count": c["mamba_n_groups"], "ssm.inner_size": inner, "ssm.time_step_rank": c["mamba_n_heads"]}

    def kimi(self):
        c = self.config
        names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
                 "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
                 "self_attn.f_a_proj": "ssm_f_a", "self_attn.f_b_proj": "ssm_f_b", "self_attn.g_a_proj": "ssm_g_a",
                 "self_attn.g_b_proj": "ssm_g_b", "self_attn.b_proj": "ssm_beta", "self_attn.o_norm": "ssm_norm",
                 "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
                 "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "block_sparse_moe.gate": "ffn_gate_inp"}
        nope, value, rank, turning = c["qk_nope_head_dim"], c["v_head_dim"], c["kv_lora_rank"], c["qk_rope_head_dim"]
        self.outside()
        for i, own in self.layers():
            at = f"blk.{i}."
            for here, there in names.items():
                if here + ".weight" in own:
                    self.put(f"{at}{there}.weight", own[here + ".weight"])
            if "self_attn.A_log" in own:
                for x in "qkv":
                    taps = own[f"self_attn.{x}_conv1d.weight"]
                    self.put(f"{at}ssm_conv1d_{x}.weight", taps.reshape(1, len(taps), 1, -1))
                self.put(at + "ssm_a", -numpy.exp(own["self_attn.A_log"]))
                self.put(at + "ssm_dt.bias", own["self_attn.dt_bias"])
            else:
                both = own["self_attn.kv_b_proj.weight"].reshape(-1, nope + value, rank)
                self.put(at + "attn_k_b.weight", both[:, :nope].swapaxes(1, 2))
                self.put(at + "attn_v_b.weight", both[:, nope:])
            if "block_sparse_moe.gate.weight" in own:
                self.put(at + "exp_probs_b.bias", own["block_sparse_moe.gate.e_score_correction_bias"])
                self.experts(i, own, "block_sparse_moe.experts.", {"w1": "gate", "w3": "up", "w2": "down"})
                for name in ("gate", "up", "down"):
                    self.put(f"{at}ffn_{name}_shexp.weight", own[f"block_sparse_moe.shared_experts.{name}_proj.weight"])
        kv = [1 if kind == "full_attention" else 0 for kind in c["layer_types"]]
        return "kimi-linear", {"attention.head_count_kv": kv, "feed_forward_length": c["intermediate_size"], "vocab_size": c["vocab_size"],
                               "attention.kv_lora_rank": rank, "attention.key_length": rank + turning, "attention.value_length": 72,
                               "attention.key_length_mla": nope + turning, "attention.value_length_mla": value,
                               "rope.dimension_count": turning, "rope.freq_base": 10000.0, "kda.head_dim": c["linear_head_dim"],
                               "ssm.conv_kernel": c["linear_conv_kernel_dim"], "expert_count": c["num_experts"],
                               "expert_used_count": c["num_experts_per_token"], "expert_shared_count": c["num_shared_experts"],
                               "expert_feed_forward_length": c["moe_intermediate_size"], "expert_gating_func": 2,
                               "leading_dense_block_count": c["first_k_dense_replace"], "expert_weights_scale": float(c["routed_scaling_factor"])}

    def qwen(self):
        c = self.config
        self.outside()
        self.tensors["output_norm.weight"] += 1
        K, V = c["linear_num_key_heads"], c["linear_num_value_heads"]
        R, W = c["linear_key_head_dim"], c["linear_value_head_dim"]
        for i, own in self.layers():
            at = f"blk.{i}."
            self.put(at + "attn_norm.weight", own["input_layernorm.weight"] + 1)
            self.put(at + "post_attention_norm.weight", own["post_attention_layernorm.weight"] + 1)
            if "linear_attn.in_proj_qkv.weight" in own:
                self.heads_in_turn(at, own, K, V // K)
            elif "linear_attn.in_proj_qkvz.weight" in own:
                heads = own["linear_attn.in_proj_qkvz.weight"].reshape(K, 2 * R + 2 * V // K * W, -1)
                q, k, v, z = numpy.split(heads, [R, 2 * R, 2 * R + V // K * W], axis=1)
                rows = lambda x: x.reshape(-1, c["hidden_size"])
                self.put(at + "attn_qkv.weight", numpy.concatenate([rows(q), rows(k), rows(v)]))
                self.put(at + "attn_gate.weight", rows(z))
                self.put(at + "ssm_ba.weight", own["linear_attn.in_proj_ba.weight"])
                self.put(at + "ssm_conv1d.weight", own["linear_attn.conv1d.weight"].squeeze())
                self.put(at + "ssm_dt.bias", own["linear_attn.dt_bias"])
                self.put(at + "ssm_a", -numpy.exp(own["linear_attn.A_log"]))
                self.put(at + "ssm_norm.weight", own["linear_attn.norm.weight"])
                self.put(at + "ssm_out.weight", own["linear_attn.out_proj.weight"])
            if "self_attn.q_proj.weight" in own:
                for name in "qkv":
                    self.put(f"{at}attn_{name}.weight", own[f"self_attn.{name}_proj.weight"])
                self.put(at + "attn_output.weight", own["self_attn.o_proj.weight"])
                self.put(at + "attn_q_norm.weight", own["self_attn.q_norm.weight"] + 1)
                self.put(at + "attn_k_norm.weight", own["self_attn.k_norm.weight"] + 1)
            if "mlp.gate_proj.weight" in own:
                for name in ("gate", "up", "down"):
                    self.put(f"{at}ffn_{name}.weight", own[f"mlp.{name}_proj.weight"])
                continue
            self.experts(i, own, "mlp.experts.", {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"})
            self.put(at + "ffn_gate_inp.weight", own["mlp.gate.weight"])
            self.put(at + "ffn_gate_inp_shexp.weight", own["mlp.shared_expert_gate.weight"].reshape(-1))
            for name in ("gate", "up", "down"):
                self.put(f"{at}ffn_{name}_shexp.weight", own[f"mlp.shared_expert.{name}_proj.weight"])
        turning = int(c["head_dim"] * c["partial_rotary_factor"])
        keys = {"attention.head_count_kv": c["num_key_value_heads"], "attention.key_length": c["head_dim"],
                "attention.value_length": c["head_dim"], "rope.dimension_count": turning, "full_attention_interval": 4,
                "ssm.conv_kernel": c["linear_conv_kernel_dim"], "ssm.state_size": R, "ssm.group_count": K,
                "ssm.time_step_rank": V, "ssm.inner_size": V * W}
        name = {"qwen3_next": "qwen3next", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe"}[c["model_type"]]
        if name != "qwen3next":  # pairs that turn by an image's three positions, in turn
            keys["rope.dimension_sections"] = [len(range(i, turning // 2, 3)) for i in range(3)] + [0]
        if name != "qwen35moe":  # whose layers all have experts
            keys["feed_forward_length"] = c["intermediate_size"]
        if name != "qwen35":
            keys |= {"expert_count": c["num_experts"], "expert_used_count": c["num_experts_per_tok"],
                     "expert_feed_forward_length": c["moe_intermediate_size"],
                     "expert_shared_feed_forward_length": c["shared_expert_intermediate_size"]}
        return name, keys

    def heads_in_turn(self, at, own, keys, each):
        """Qwen 3.5's layers with states: value heads are those of all key heads in turn."""
        own = {name[len("linear_attn."):]: value for name, value in own.items() if name.startswith("linear_attn.")}

        def turned(x, axis=0):
            parts = x.reshape(*x.shape[:axis], keys, each, -1, *x.shape[axis + 1:])
            return parts.swapaxes(axis, axis + 1).reshape(x.shape)

        first = len(own["in_proj_qkv.weight"]) - len(own["in_proj_z.weight"])  # of the values
        behind = lambda x: numpy.concatenate([x[:first], turned(x[first:])])
        self.put(at + "attn_qkv.weight", behind(own["in_proj_qkv.weight"]))
        self.put(at + "attn_gate.weight", turned(own["in_proj_z.weight"]))
        self.put(at + "ssm_beta.weight", turned(own["in_proj_b.weight"]))
        self.put(at + "ssm_alpha.weight", turned(own["in_proj_a.weight"]))
        self.put(at + "ssm_conv1d.weight", behind(own["conv1d.weight"].squeeze()))
        self.put(at + "ssm_dt.bias", turned(own["dt_bias"]))
        self.put(at + "ssm_a", turned(-numpy.exp(own["A_log"])))
        self.put(at + "ssm_norm.weight", own["norm.weight"])
        self.put(at + "ssm_out.weight", turned(own["out_proj.weight"], axis=1))

    def gemma4(self):
        c, full = self.config, self.config["per_layer_config"]
        names = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
                 "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
                 "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                 "post_feedforward_layernorm": "post_ffw_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
                 "mlp.down_proj": "ffn_down", "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj",
                 "post_per_layer_input_norm": "post_norm", "router.proj": "ffn_gate_inp",
                 "pre_feedforward_layernorm_2": "pre_ffw_norm_2", "post_feedforward_layernorm_1": "post_ffw_norm_1",
                 "post_feedforward_layernorm_2": "post_ffw_norm_2"}
        others = {"layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
                  "router.per_expert_scale": "ffn_down_exps.scale", "experts.gate_up_proj": "ffn_gate_up_exps.weight",
                  "experts.down_proj": "ffn_down_exps.weight"}
        outside = {"embed_tokens_per_layer": "per_layer_token_embd", "per_layer_model_projection": "per_layer_model_proj",
                   "per_layer_projection_norm": "per_layer_proj_norm"}
        whole = {here + ".weight": there + ".weight" for here, there in names.items()} | others
        self.outside()
        for here, there in outside.items():
            if f"model.{here}.weight" in self.hf:
                self.put(there + ".weight", self.hf[f"model.{here}.weight"])
        for i, own in self.layers():
            for name, value in own.items():
                self.put(f"blk.{i}.{whole[name]}", value)
        of_full = full[str(c["num_hidden_layers"] - 1)]
        size, ropes = of_full["head_dim"], c["rope_parameters"]
        turning = int(size * ropes["full_attention"]["partial_rotary_factor"] / 2)
        self.put("rope_freqs.weight", numpy.array([1.0] * turning + [1e30] * (size // 2 - turning)))
        sliding = [kind == "sliding_attention" for kind in c["layer_types"]]
        keys = {"attention.key_length": size, "attention.value_length": size, "rope.dimension_count": size,
                "attention.key_length_swa": c["head_dim"], "attention.value_length_swa": c["head_dim"],
                "rope.dimension_count_swa": c["head_dim"], "attention.sliding_window": c["sliding_window"],
                "attention.sliding_window_pattern": sliding, "attention.shared_kv_layers": c["num_kv_shared_layers"],
                "embedding_length_per_layer_input": c["hidden_size_per_layer_input"], "vocab_size": c["vocab_size"],
                "rope.freq_base": float(ropes["full_attention"]["rope_theta"]),
                "rope.freq_base_swa": float(ropes["sliding_attention"]["rope_theta"]),
                "attention.head_count_kv": [c["num_key_value_heads"] if s else of_full["num_key_value_heads"] for s in sliding],
                "feed_forward_length": c["intermediate_size"]}
        if c["use_double_wide_mlp"]:
            first = c["num_hidden_layers"] - c["num_kv_shared_layers"]
            keys["feed_forward_length"] = [c["intermediate_size"] * (2 if i >= first else 1) for i in range(c["num_hidden_layers"])]
        if c["final_logit_softcapping"]:
            keys["final_logit_softcapping"] = float(c["final_logit_softcapping"])
        if c["enable_moe_block"]:
            keys |= {"expert_count": c["num_experts"], "expert_used_count": c["top_k_experts"],
                     "expert_feed_forward_length": c["moe_intermediate_size"]}
        return "gemma4", keys
