"""A decoder that trains in the engine's arithmetic."""
from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn

from .. import bundled
from .._invar import Checkpoint, row_parallel_runs
from ..torch import embedding, gated_linear, linear, log_softmax_gather, packed_attention, rms_norm


class CausalLMOutput(NamedTuple):
    """logits [B, S, V] float32; loss: the mean of -ln p over labels that are not -100, or None."""

    loss: Optional[Tensor]
    logits: Tensor


class _Node(nn.Module):
    """Holds parameters under Hugging Face's names."""


def _inner(h: Tensor) -> torch.dtype:
    """Of what enters products: on CUDA, where there is no backward, as they read it."""
    return torch.bfloat16 if h.is_cuda else torch.float32


class CausalLM(nn.Module):
    """A dense decoder of the families that the trainer trains (docs/models.md). Parameters are float32 masters, or bfloat16 after
    .to(torch.bfloat16). On CUDA it has a forward alone.

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
                labels: Optional[Tensor] = None) -> CausalLMOutput:
        """input_ids [B, S]; attention_mask [B, S], 0 where there is padding; labels [B, S], shifted as Hugging Face does."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        kept = mask.bool()
        rows = self.logits_of(input_ids[kept], kept.sum(1).tolist())
        logits = rows.new_zeros(*input_ids.shape, rows.shape[-1]).index_put((kept,), rows)
        loss = None
        if labels is not None:
            wanted = labels[:, 1:] != -100
            found = log_softmax_gather(logits[:, :-1][wanted], labels[:, 1:][wanted], self.order)
            loss = -found.mean()
        return CausalLMOutput(loss, logits)

    def log_probs(self, input_ids: Tensor, attention_mask: Optional[Tensor] = None,
                  logits: Optional[Tensor] = None) -> Tensor:
        """ln p(token | the tokens before it) of the second token of each row on: [B, S - 1], 0 where there is padding.

        logits: forward's, where they were computed before.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        logits = self(input_ids, mask).logits if logits is None else logits
        both = (mask[:, 1:] * mask[:, :-1]).bool()
        found = log_softmax_gather(logits[:, :-1][both], input_ids[:, 1:][both], self.order)
        return found.new_zeros(both.shape).index_put((both,), found)

    def logits_of(self, tokens: Tensor, lengths: list[int]) -> Tensor:
        """Of sequences that stand one after the other: tokens [T], lengths whose sum is T: [T, V]."""
        lengths = [length for length in lengths if length > 0]
        h = embedding(tokens, self._get("model.embed_tokens.weight"), self.order)
        for layer in range(len(self.spec["layers"])):
            h = self._ffn(layer, self._attention(layer, h, lengths))
        head = "model.embed_tokens.weight" if self.spec["tied_head"] else "lm_head.weight"
        return linear(self._norm("model.norm", h), self._get(head), order=self.order)

    def _attention(self, layer: int, h: Tensor, lengths: list[int]) -> Tensor:
        spec, at = self.spec, f"model.layers.{layer}."
        x = self._norm(at + "input_layernorm", h)
        names = [f"{at}self_attn.{one}_proj" for one in "qkv"]
        qkv = linear(x, self._weights(names), self._biases(names), accumulate_into=self._chains(names), order=self.order)
        norms = [self._get(f"{at}self_attn.{one}_norm.weight") for one in "qk"] if spec["qk_norm"] else []
        cos, sin = self._rope(layer, max([*lengths, 32]), h.device)
        attended = packed_attention(qkv, cos, sin, lengths, spec["heads"], spec["kv_heads"], norms=norms, eps=spec["eps"],
                                    window=spec["layers"][layer]["window"],
                                    score_scale=spec["layers"][layer]["score_scale"], order=self.order, dtype=_inner(h))
        return self._row_parallel(at + "self_attn.o_proj", attended, spec["o_split_k"], h)

    def _ffn(self, layer: int, h: Tensor) -> Tensor:
        one, at = self.spec["layers"][layer], f"model.layers.{layer}."
        if one["ffn"] == 0:
            return h
        x = self._norm(at + "post_attention_layernorm", h)
        names = [at + "mlp.gate_proj", at + "mlp.up_proj"]
        gated = gated_linear(x, *self._weights(names), self._biases(names), curve=one["curve"],
                             accumulate_into=self._chains(names), order=self.order, dtype=_inner(h))
        return self._row_parallel(at + "mlp.down_proj", gated, row_parallel_runs(one["ffn"], 1 << 30), h)

    def _norm(self, name: str, h: Tensor) -> Tensor:
        return rms_norm(h, self._get(name + ".weight"), self.spec["eps"], order=self.order, dtype=_inner(h))

    def _row_parallel(self, name: str, x: Tensor, runs: int, residual: Tensor) -> Tensor:
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
