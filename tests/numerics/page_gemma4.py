"""Gemma 4 from the page: what sections 4, 4.5, 5.3 and 7 say of it beside what from_the_page.py has of all families."""
import math

import numpy as np

import from_the_page as page
from from_the_page import F32, F64, add, f32, fma, mul, rms_norm, row_runs


def is_full(c, layer):
    return c["layer_types"][layer] == "full_attention" or layer + 1 == c["num_hidden_layers"]


def heads_of(c, layer):
    """E and the key/value heads of a layer."""
    if not is_full(c, layer):
        return c["head_dim"], c["num_key_value_heads"]
    listed = c.get("per_layer_config")
    if listed:
        own = next(v for k, v in listed.items() if int(k) == layer)
        return own.get("head_dim", c["head_dim"]), own.get("num_key_value_heads", c["num_key_value_heads"])
    own = c.get("num_global_key_value_heads") if c.get("attention_k_eq_v") else None
    return c.get("global_head_dim", 512), own or c["num_key_value_heads"]


def source_of(c, layer):
    """Whose keys and values a layer reads."""
    first = c["num_hidden_layers"] - c.get("num_kv_shared_layers", 0)
    if layer < first:
        return layer
    return max(i for i in range(first) if is_full(c, i) == is_full(c, layer))


class Model(page.Model):
    def __init__(self, folder, arith, mode):
        super().__init__(folder, arith, mode)
        c = self.config
        self.of_layer = [heads_of(c, i) for i in range(self.layers)]
        self.source = [source_of(c, i) for i in range(self.layers)]
        self.kv = [np.zeros((2, G, 0, E), F32) for E, G in self.of_layer]
        runs = [row_runs(self.heads * E, self.heads) for E, _ in self.of_layer]
        wide = [2 if self.source[i] != i and c.get("use_double_wide_mlp") else 1 for i in range(self.layers)]
        self.r_down = [row_runs(w * c["intermediate_size"]) for w in wide]
        self.r_out = runs
        joined = lambda numbers: "+".join(map(str, dict.fromkeys(numbers)))
        mode = self.identity.split("/")[2]
        self.identity = f"invar-1/{arith}/{mode}/row{joined(runs)}.{joined(self.r_down)}"

    def window(self, layer):
        return None if is_full(self.config, layer) else self.config["sliding_window"]

    def norm(self, x, name):
        return rms_norm(x, self.vector(name + ".weight"), self.eps)

    def angles(self, layer, positions):
        full, E = is_full(self.config, layer), self.of_layer[layer][0]
        rope = self.config["rope_parameters"]["full_attention" if full else "sliding_attention"]
        turning = E // 2
        if rope["rope_type"] == "proportional":
            turning = math.floor(rope.get("partial_rotary_factor", 1.0) * E / 2)
        i = np.arange(turning, dtype=F64)
        frequency = np.concatenate([page.pow64(float(rope["rope_theta"]), -(2 * i) / E), np.zeros(E // 2 - turning)])
        return [f32(y)[:, None] for y in page.sincos(positions[:, None].astype(F64) * frequency)]

    def attend(self, x, i, at, positions):
        (E, G), source = self.of_layer[i], self.source[i]
        angles, of_heads = self.angles(i, positions), lambda y: y.reshape(len(x), -1, E)
        q = page.bf16(self.rotate(self.norm(of_heads(self.product(x, at + "q_proj")), at + "q_norm"), *angles))
        if source == i:
            k = of_heads(self.product(x, at + "k_proj"))
            v = of_heads(self.product(x, at + "v_proj")) if at + "v_proj.weight" in self.w else k
            v = rms_norm(v, np.ones(E, F32), self.eps)
            k = self.rotate(self.norm(k, at + "k_norm"), *angles)
            self.store(i, positions, page.bf16(k), page.bf16(v))
        self.kv_heads = G
        return self.attention(q, self.kv[source], source, positions).reshape(len(x), -1)

    def routed(self, h, base):
        """The sum of each row's experts, section 7."""
        c, D = self.config, h.shape[-1]
        scale = mul(self.vector(base + "router.scale"), F32(1 / math.sqrt(D)))
        logits = self.product(self.act(rms_norm(h, scale, self.eps)), base + "router.proj")
        x, each = self.act(self.norm(h, base + "pre_feedforward_layernorm_2")), self.vector(base + "router.per_expert_scale")
        how = {"score": "softmax", "chosen": c["top_k_experts"], "renormalised": True}
        acc = np.zeros_like(x)
        for t, row in enumerate(logits):
            for e, w in zip(*page.route(row, None, how)):
                y = self.act(self.network(x[t:t + 1], f"{base}experts.{e}.", 1))
                acc[t] = fma(mul(w, each[e]), y, acc[t])
        return add(F32(0), acc)

    def layer(self, h, i, positions):
        if i == 0:
            self.inputs = self.layer_inputs(h)
        base = f"model.layers.{i}."
        x = self.act(self.norm(h, base + "input_layernorm"))
        x = self.act(self.attend(x, i, base + "self_attn.", positions))
        h = add(h, self.norm(self.product(x, base + "self_attn.o_proj", self.r_out[i]), base + "post_attention_layernorm"))
        x = self.act(self.norm(h, base + "pre_feedforward_layernorm"))
        y = self.network(x, base + "mlp.", self.r_down[i])
        if self.config.get("enable_moe_block"):
            y = add(self.norm(y, base + "post_feedforward_layernorm_1"),
                    self.norm(self.routed(h, base), base + "post_feedforward_layernorm_2"))
        h = add(h, self.norm(y, base + "post_feedforward_layernorm"))
        return self.end(h, i, base)

    def layer_inputs(self, h):
        """Section 4.5, step 1: [T, layers, P], or None."""
        P = self.config.get("hidden_size_per_layer_input", 256)
        if P == 0:
            return None
        t = mul(add(self.w["model.embed_tokens_per_layer.weight"][self.tokens], F32(0)), F32(math.sqrt(P / 2)))
        c = self.product(self.act(h), "model.per_layer_model_projection").reshape(len(h), -1, P)
        y = rms_norm(c, self.vector("model.per_layer_projection_norm.weight"), mul(F32(self.eps), F32(h.shape[-1])))
        return add(t.reshape(y.shape), mul(y, F32(float.fromhex("0x1.6a09e6p-1"))))

    def end(self, h, i, base):
        """Section 4.5, steps 2 and 3."""
        if self.inputs is not None:
            g = self.product(self.act(h), base + "per_layer_input_gate")
            z = self.act(mul(self.family.curve(g), self.inputs[:, i]))
            h = add(h, self.norm(self.product(z, base + "per_layer_projection"), base + "post_per_layer_input_norm"))
        return mul(h, self.vector(base + "layer_scalar"))

    def forward(self, tokens):
        self.tokens = tokens
        return super().forward(tokens)
