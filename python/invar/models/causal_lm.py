"""A decoder that trains in the engine's arithmetic."""
from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn

from .. import bundled
from .._invar import Checkpoint, row_parallel_runs
from ..torch import (embedding, gated_linear, linear, log_softmax_gather, packed_attention, processed_logits, rms_norm,
                     route_experts, weighted_sum)


class CausalLMOutput(NamedTuple):
    """logits [B, S, V] float32; loss: the mean of -ln p over labels that are not -100, or None."""

    loss: Optional[Tensor]
    logits: Tensor


class _Node(nn.Module):
    """Holds parameters under Hugging Face's names."""


def _inner(h: Tensor) -> torch.dtype:
    """The type of products' operands: on CUDA, where there is no backward, the one that they read."""
    return torch.bfloat16 if h.is_cuda else torch.float32


class CausalLM(nn.Module):
    """A decoder of the families that the trainer trains (docs/models.md); others are refused by their name. Parameters are
    float32 masters, or bfloat16 after .to(torch.bfloat16). On CUDA it has a forward alone, of models without experts.

    state_dict has Hugging Face's names. Padding on either side is left out before anything is computed, so that a row's bits
    are those of its tokens alone.
    """

    def __init__(self, model: str, load_format: str = "auto", order: str = "portable") -> None:
        super().__init__()
        checkpoint = Checkpoint(bundled.found(model), load_format)
        self.spec: dict[str, Any] = checkpoint.spec()
        self.order = order
        self._checkpoint = checkpoint
        self._ropes: dict[int, tuple[Tensor, Tensor]] = {}
        # float32 buffers, by the names of matrices whose gradients' chains go on in them from batch to batch, as the
        # trainer's do; autograd then gives these none.
        self.chains: dict[str, Tensor] = {}
        names = checkpoint.names()
        self._names = frozenset(names)
        for name in names:
            self._register(name, torch.from_numpy(checkpoint.tensor(name)))

    @classmethod
    def from_pretrained(cls, model: str, **options: Any) -> "CausalLM":
        """The model of a Hugging Face directory."""
        return cls(model, **options)

    def forward(self, input_ids: Tensor, attention_mask: Optional[Tensor] = None,
                labels: Optional[Tensor] = None, routes: Optional[Tensor] = None) -> CausalLMOutput:
        """input_ids [B, S]; attention_mask [B, S], 0 where there is padding; labels [B, S], shifted as Hugging Face does.

        routes [B, S, layers with experts, k]: logits_of's.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        kept = mask.bool()
        rows = self.logits_of(input_ids[kept], kept.sum(1).tolist(), None if routes is None else routes[kept])
        logits = rows.new_zeros(*input_ids.shape, rows.shape[-1]).index_put((kept,), rows)
        loss = None
        if labels is not None:
            wanted = labels[:, 1:] != -100
            found = log_softmax_gather(logits[:, :-1][wanted], labels[:, 1:][wanted], self.order)
            loss = -found.mean()
        return CausalLMOutput(loss, logits)

    def log_probs(self, input_ids: Tensor, attention_mask: Optional[Tensor] = None,
                  logits: Optional[Tensor] = None, **sampling: Any) -> Tensor:
        """ln p(token | the tokens before it) of the second token of each row on: [B, S - 1], 0 where there is padding.

        logits: forward's, where they were computed before. sampling: temperature, top_k, top_p, min_p of the sampler; p is
        then the distribution that it samples from (processed_logprobs), and -inf the logarithm of a token that it leaves out.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        logits = self(input_ids, mask).logits if logits is None else logits
        both = (mask[:, 1:] * mask[:, :-1]).bool()
        rows = logits[:, :-1][both]
        if sampling:
            rows = processed_logits(rows, order=self.order, **sampling)
        found = log_softmax_gather(rows, input_ids[:, 1:][both], self.order)
        return found.new_zeros(both.shape).index_put((both,), found)

    def logits_of(self, tokens: Tensor, lengths: list[int], routes: Optional[Tensor] = None) -> Tensor:
        """Logits of sequences that stand one after the other: tokens [T], lengths whose sum is T: [T, V].

        routes [T, layers with experts, k]: the experts of each token as the sampler chose them, ascending; -1: the model's own.
        """
        lengths = [length for length in lengths if length > 0]
        h = embedding(tokens, self._get("model.embed_tokens.weight"), self.order)
        if self.spec["embedding_scale"] != 1:
            h = h * torch.tensor(self.spec["embedding_scale"], dtype=torch.float32, device=h.device)
        with_experts = 0
        for layer, one in enumerate(self.spec["layers"]):
            h = self._attention(layer, h, lengths)
            if "experts" in one:
                h = self._experts(layer, h, None if routes is None else routes[:, with_experts])
                with_experts += 1
            else:
                h = self._ffn(layer, h)
        head = "model.embed_tokens.weight" if self.spec["tied_head"] else "lm_head.weight"
        return linear(self._norm("model.norm", h), self._get(head), order=self.order)

    def _attention(self, layer: int, h: Tensor, lengths: list[int]) -> Tensor:
        spec, at = self.spec, f"model.layers.{layer}."
        norms = spec["layers"][layer]["norms"]
        x = self._norm_before(at, norms.get("attention"), h)
        names = [f"{at}self_attn.{one}_proj" for one in "qkv"]
        qkv = linear(x, self._weights(names), self._biases(names), accumulate_into=self._chains(names), order=self.order)
        of_heads = [f"{at}self_attn.{one}_norm" for one in "qk"] if spec["qk_norm"] else []
        if of_heads and (spec["joint_qk_norm"] or spec["norm_offset"]):
            qkv, of_heads = self._norm_heads(of_heads, qkv), []
        cos, sin = self._rope(layer, max([*lengths, 32]), h.device)
        attended = packed_attention(qkv, cos, sin, lengths, spec["heads"], spec["kv_heads"], norms=self._weights(of_heads),
                                    eps=spec["eps"], window=spec["layers"][layer]["window"],
                                    score_scale=spec["layers"][layer]["score_scale"], order=self.order, dtype=_inner(h))
        return self._add(at + "self_attn.o_proj", attended, spec["o_split_k"], h, at, norms.get("attention_out"))

    def _norm_heads(self, names: list[str], qkv: Tensor) -> Tensor:
        """Queries and keys before their rotation, normed head by head, or all heads of a row as one vector."""
        spec = self.spec
        widths = [spec["heads"] * spec["head_dim"], spec["kv_heads"] * spec["head_dim"]]
        q, k, v = qkv.split([*widths, widths[1]], dim=1)
        one = [width if spec["joint_qk_norm"] else spec["head_dim"] for width in widths]
        normed = [self._normed(name, x.reshape(-1, width), False).view(x.shape)
                  for name, x, width in zip(names, (q, k), one)]
        return torch.cat([*normed, v], dim=1)

    def _ffn(self, layer: int, h: Tensor) -> Tensor:
        one, at = self.spec["layers"][layer], f"model.layers.{layer}."
        if one["ffn"] == 0:
            return h
        x = self._norm_before(at, one["norms"].get("ffn"), h)
        gated = self._gated(at + "mlp.", x, one["curve"], _inner(h))
        return self._add(at + "mlp.down_proj", gated, row_parallel_runs(one["ffn"], 1 << 30), h, at, one["norms"].get("ffn_out"))

    def _gated(self, at: str, x: Tensor, curve: str, dtype: torch.dtype) -> Tensor:
        names = [at + "gate_proj", at + "up_proj"]
        return gated_linear(x, *self._weights(names), self._biases(names), curve=curve, accumulate_into=self._chains(names),
                            order=self.order, dtype=dtype)

    def _experts(self, layer: int, h: Tensor, routes: Optional[Tensor]) -> Tensor:
        one, at = self.spec["layers"][layer], f"model.layers.{layer}.mlp."
        x = self._norm(f"model.layers.{layer}.{one['norms']['ffn']}", h)
        logits = linear(x, self._get(at + "gate.weight"), order=self.order)
        ids, weights = route_experts(logits, one["chosen"], one["renormalised"], routes, self.order)
        said, places = [], []
        for expert in ids.unique().tolist():
            rows, place = (ids == expert).nonzero(as_tuple=True)
            gated = self._gated(f"{at}experts.{expert}.", x[rows], "silu", torch.float32)
            said.append(linear(gated, self._get(f"{at}experts.{expert}.down_proj.weight"), order=self.order))
            places.append(rows * one["chosen"] + place)
        y = torch.cat(said)[torch.cat(places).argsort()]
        return h + weighted_sum(y.view(*ids.shape, -1), weights, self.order)

    def _norm(self, name: str, h: Tensor) -> Tensor:
        """The normed stream, which a product reads."""
        if self.spec["norm_offset"]:
            return self._normed(name, h, True)
        return rms_norm(h, self._get(name + ".weight"), self.spec["eps"], order=self.order, dtype=_inner(h))

    def _norm_before(self, at: str, name: Optional[str], h: Tensor) -> Tensor:
        return h if name is None else self._norm(at + name, h)

    def _normed(self, name: str, x: Tensor, rounds: bool) -> Tensor:
        """x / rms(x) * w in float32; w is 1 and the stored weight, rounded, where the family says so."""
        weight = self._get(name + ".weight")
        if not self.spec["norm_offset"]:
            return rms_norm(x, weight, self.spec["eps"], rounds=rounds, order=self.order)
        scaled = rms_norm(x, torch.ones_like(weight), self.spec["eps"], rounds=False, order=self.order)
        rounded = weight + (weight.to(torch.bfloat16).to(weight.dtype) - weight).detach()
        return scaled * (1 + rounded)

    def _add(self, name: str, x: Tensor, runs: int, h: Tensor, at: str, norm: Optional[str]) -> Tensor:
        """h and what a part adds to it, normed where the layer has a norm there."""
        if norm is None:
            return self._row_parallel(name, x, runs, h)
        return h + self._normed(at + norm, self._row_parallel(name, x, runs, None), False)

    def _row_parallel(self, name: str, x: Tensor, runs: int, residual: Optional[Tensor]) -> Tensor:
        return linear(x, self._weights([name]), self._biases([name]), runs=runs, residual=residual,
                      accumulate_into=self._chains([name]), order=self.order)

    def _weights(self, names: list[str]) -> list[Tensor]:
        return [self._get(name + ".weight") for name in names]

    def _chains(self, names: list[str]) -> list[Tensor]:
        return [self.chains[name + ".weight"] for name in names] if names[0] + ".weight" in self.chains else []

    def _biases(self, names: list[str]) -> list[Tensor]:
        return [self._get(name + ".bias") for name in names if name + ".bias" in self._names]

    def _get(self, name: str) -> Tensor:
        return self.get_parameter(name)

    def _register(self, name: str, tensor: Tensor) -> None:
        node: nn.Module = self
        *path, last = name.split(".")
        for part in path:
            if part not in node._modules:
                node.add_module(part, _Node())
            node = node._modules[part]  # type: ignore[assignment]
        node.register_parameter(last, nn.Parameter(tensor))

    def _rope(self, layer: int, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
        known = self._ropes.get(layer)
        if known is None or known[0].shape[0] < positions or known[0].device != device:
            cos, sin = self._checkpoint.rope(layer, max(positions, 2 * (known[0].shape[0] if known else 0)))
            known = self._ropes[layer] = (torch.from_numpy(cos).to(device), torch.from_numpy(sin).to(device))
        return known
