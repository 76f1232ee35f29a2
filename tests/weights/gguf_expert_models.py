"""Small models with experts as GGUF files whose matrices are random blocks, and their bf16 twins, as gguf_models.py makes others."""
import struct

import gguf_models
from gguf_models import FFN, HEADS, HIDDEN, KV, SIZE, Made, bf16, matrices, norms, widened

EXPERTS, CHOSEN, WIDTH = 4, 2, 256


class MadeExperts(Made):
    def __init__(self, architecture, model_type, layout, seed, kinds):
        self.model_type, self.layout = model_type, layout
        super().__init__(architecture, seed, kinds)

    def add_all(self):
        dense = [row for row in matrices("qwen3") if ".ffn_" not in row[0]]
        for i, (name, other, rows, width) in enumerate(dense):
            self.add_matrix(self.kinds[i % len(self.kinds)], name, [other], (width, rows))
        for name, other, width in norms("qwen3" if self.model_type in ("qwen3_moe", "olmoe") else "llama"):
            if self.model_type == "olmoe" and name.endswith(("q_norm", "k_norm")):
                width = HEADS * SIZE if name.endswith("q_norm") else KV * SIZE  # of all heads
            self.add_norm(name, other, width)
        for i in range(gguf_models.LAYERS):
            self.add_layer(i, f"blk.{i}.ffn_", f"model.layers.{i}." + ("block_sparse_moe." if self.model_type == "mixtral" else "mlp."))

    def add_layer(self, i, here, there):
        # In the first layer gates are stored as what they gate, in the second otherwise: then they are bf16 in memory.
        gate, up, down = (self.kinds[(3 * i + j) % len(self.kinds)] for j in ((0, 0, 1) if i == 0 else (0, 1, 2)))
        mine = ("w1", "w3", "w2") if self.model_type == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        of = lambda which, e: f"{there}experts.{e}.{mine[which]}"
        each = range(EXPERTS)
        if self.layout == "alone":
            for e in each:
                self.add_matrix(gate, f"{here}gate.{e}", [of(0, e)], (HIDDEN, WIDTH))
                self.add_matrix(up, f"{here}up.{e}", [of(1, e)], (HIDDEN, WIDTH))
        elif self.layout == "fused":
            self.add_matrix(gate, here + "gate_up_exps", [of(which, e) for e in each for which in (0, 1)], (HIDDEN, 2 * WIDTH, EXPERTS))
        else:
            self.add_matrix(gate, here + "gate_exps", [of(0, e) for e in each], (HIDDEN, WIDTH, EXPERTS))
            self.add_matrix(up, here + "up_exps", [of(1, e) for e in each], (HIDDEN, WIDTH, EXPERTS))
        if self.model_type == "qwen2_moe":
            self.add_matrix(gate, here + "gate_shexp", [there + "shared_expert.gate_proj"], (HIDDEN, FFN))
            self.add_matrix(gate, here + "up_shexp", [there + "shared_expert.up_proj"], (HIDDEN, FFN))
            self.add_matrix(down, here + "down_shexp", [there + "shared_expert.down_proj"], (FFN, HIDDEN))
            self.add_router(here + "gate_inp_shexp", there + "shared_expert_gate", 1)
            self.add_biases(i)
        self.add_router(here + "gate_inp", there + "gate", EXPERTS)
        if self.layout == "alone":
            for e in each:
                self.add_matrix(down, f"{here}down.{e}", [of(2, e)], (WIDTH, HIDDEN))
        else:
            self.add_matrix(down, here + "down_exps", [of(2, e) for e in each], (WIDTH, HIDDEN, EXPERTS))

    def add_router(self, name, other, rows):
        """f32 in files, whose numbers are bf16's."""
        bits = [bf16(self.rng.gauss(0, 0.1)) for _ in range(rows * HIDDEN)]
        data = struct.pack(f"<{len(bits)}f", *[widened(b) for b in bits])
        self.tensors.append((name + ".weight", 0, (HIDDEN,) if rows == 1 else (HIDDEN, rows), data))
        self.twin[other + ".weight"] = ("BF16", [rows, HIDDEN], struct.pack(f"<{len(bits)}H", *bits))

    def add_biases(self, i):
        for which, width in (("q", HEADS * SIZE), ("k", KV * SIZE), ("v", KV * SIZE)):
            w = struct.pack(f"<{width}f", *[widened(bf16(self.rng.uniform(-0.1, 0.1))) for _ in range(width)])
            self.tensors.append((f"blk.{i}.attn_{which}.bias", 0, (width,), w))
            self.twin[f"model.layers.{i}.self_attn.{which}_proj.bias"] = ("F32", [width], w)

    def metadata(self):
        a = self.architecture
        keys = super().metadata() | {f"{a}.expert_count": EXPERTS, f"{a}.expert_used_count": CHOSEN, f"{a}.feed_forward_length": WIDTH}
        if self.model_type == "qwen3_moe":
            keys |= {f"{a}.feed_forward_length": 3 * WIDTH, f"{a}.expert_feed_forward_length": WIDTH}
        if self.model_type == "qwen2_moe":
            keys |= {f"{a}.expert_feed_forward_length": WIDTH, f"{a}.expert_shared_feed_forward_length": FFN}
        return keys

    def config(self):
        config = super().config() | {"model_type": self.model_type, "num_experts_per_tok": CHOSEN}
        config["num_local_experts" if self.model_type == "mixtral" else "num_experts"] = EXPERTS
        if self.model_type.startswith("qwen"):
            config |= {"moe_intermediate_size": WIDTH, "norm_topk_prob": self.model_type == "qwen3_moe"}
        if self.model_type == "qwen2_moe":
            config["shared_expert_intermediate_size"] = FFN
        if self.model_type == "mixtral":
            config["sliding_window"] = None
        return config | {"intermediate_size": WIDTH}
