"""The backwards of the operators on CUDA tensors: the trainer's kernels, in the caller's stream.

Gradients are float32 and have the bits of the CPU's of the same order: sums over rows are chains over leaves of 32, so rows are
filled up with zeros. Products and sums of attention, which a forward would keep, are computed again.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from . import cuda, places
from .cuda import LEAF, PANEL, ROWS, floats, integers, kernels_for, leaves, rounded


def _up(x: int, multiple: int) -> int:
    return (x + multiple - 1) // multiple * multiple


def _filled(x: Tensor, rows: int) -> Tensor:
    """float32 rows, and zeros up to so many."""
    x = floats(x)
    return x if x.shape[0] == rows else torch.nn.functional.pad(x, (0, 0, 0, rows - x.shape[0]))


def _matrix(like: Tensor, n: int, k: int, order: str) -> Tensor:
    """Room for a matrix [n, k] as the kernels of an order read it."""
    return like.new_zeros(_up(n, ROWS if order == "hopper" else PANEL) * _up(k, LEAF), dtype=torch.bfloat16)


class _Product:
    """The gradients of weights [N_i, K] that meet the same inputs: `d` [T up to 32, outputs] bf16, the gradient of their
    outputs, one after the other or, of a pair, 16 of each in turn."""

    def __init__(self, d: Tensor, x: Tensor, weights: Sequence[Tensor], is_pair: bool, order: str) -> None:
        self.d, self.x, self.weights, self.order = d, x, weights, order
        self.kernels, self.stream = kernels_for(x, order)
        counts = [w.shape[0] for w in weights]
        self.places = [(0, i) if is_pair else (sum(counts[:i]), -1) for i in range(len(weights))]
        self.inner = 2 * _up(counts[0], PANEL) if is_pair else sum(counts)

    def inputs(self) -> Tensor:
        rows, width = self.x.shape
        turned, dx = _matrix(self.x, width, self.inner, self.order), self.x.new_empty(rows, width, dtype=torch.float32)
        for w, (first, pair) in zip(self.weights, self.places):
            self.kernels.pack_columns(self.stream, leaves(w, self.order), width, first, pair, self.inner, turned)
        self.kernels.linear(self.stream, self.d[:rows], turned, width, self.inner, 1, None, False, dx, 0)
        return dx

    def parameters(self, biases: Sequence[Tensor], into: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Gradients of weights, added to `into` where it is given, and of biases."""
        filled, width = self.d.shape[0], self.x.shape[1]
        inputs, dws, dbs = _matrix(self.x, width, filled, self.order), [], []
        self.kernels.pack_columns(self.stream, leaves(self.x, self.order, filled), width, 0, -1, filled, inputs)
        for i, (w, (first, pair)) in enumerate(zip(self.weights, self.places)):
            columns = self.x.new_empty(w.shape[0], filled, dtype=torch.bfloat16)
            self.kernels.transpose(self.stream, self.d, first, w.shape[0], pair, columns)
            dws.append(into[i] if into else self.x.new_zeros(w.shape, dtype=torch.float32))
            self.kernels.extend(self.stream, columns, inputs, dws[i])
            if biases:
                dbs.append(self.x.new_zeros(w.shape[0], dtype=torch.float32))
                self.kernels.bias_gradient(self.stream, self.d, first, pair, dbs[i])
        return dws, dbs


def linear(dy: Tensor, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], into: Sequence[Tensor],
           order: str) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Gradients of x, of the weights (`into`, where it is given) and of the biases."""
    product = _Product(leaves(dy, order, _up(x.shape[0], LEAF)), x.detach(), weights, False, order)
    return product.inputs(), *product.parameters(biases, into)


def gated_linear(d: Tensor, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], into: Sequence[Tensor], curve: str,
                 order: str) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    (rows, width), f = x.shape, weights[0].shape[0]
    kernels, stream = kernels_for(x, order)
    dots = x.new_empty(rows, 2 * _up(f, PANEL), dtype=torch.float32)
    for i, w in enumerate(weights):
        kernels.linear(stream, leaves(x, order), cuda.matrix(w, order), f, width, 1, None, False, dots, i * _up(f, ROWS))
    back = x.new_zeros(_up(rows, LEAF), _up(dots.shape[1], LEAF), dtype=torch.bfloat16)
    added = [rounded(b, order) for b in biases] or [None, None]
    kernels.gate_backward(stream, dots, *added, floats(d), curve, back[:rows])
    product = _Product(back, x.detach(), weights, True, order)
    return product.inputs(), *product.parameters(biases, into)


def rms_norm(dy: Tensor, x: Tensor, weight: Tensor, eps: float, order: str) -> tuple[Tensor, Tensor]:
    rows, filled = x.shape[0], _up(x.shape[0], LEAF)
    kernels, stream = kernels_for(x, order)
    dy, x = _filled(dy, filled), _filled(x, filled)
    dx, dw, rs = torch.zeros_like(x), x.new_zeros(x.shape[1]), x.new_empty(filled)
    kernels.norm_backward(stream, dy, x, rounded(weight, order), eps, dx, rs)
    kernels.norm_gradient(stream, dy, x, rs[:, None], 0, 0, 1, dw)
    return dx[:rows], dw


def embedding(tokens: Tensor, dh: Tensor, shape: torch.Size, order: str) -> Tensor:
    gradient = dh.new_zeros(shape, dtype=torch.float32)
    kernels, stream = kernels_for(dh, order)
    kernels.embedding_gradient(stream, integers(tokens), floats(dh), gradient)
    return gradient


def silu_mul(d: Tensor, g: Tensor, u: Tensor, curve: str, order: str) -> tuple[Tensor, Tensor]:
    dg, du = (torch.empty(g.shape, dtype=torch.float32, device=g.device) for _ in range(2))
    kernels, stream = kernels_for(g, order)
    kernels.gate_gradients(stream, *(floats(x).view(-1) for x in (d, g, u)), curve, dg.view(-1), du.view(-1))
    return dg, du


def log_softmax_gather(logits: Tensor, targets: Tensor, largest: Tensor, total: Tensor, d: Tensor, order: str) -> Tensor:
    rows, vocab = logits.shape
    out = logits.new_empty(rows, _up(vocab, LEAF), dtype=torch.bfloat16)
    kernels, stream = kernels_for(logits, order)
    kernels.loss_gradient(stream, floats(logits), integers(targets), floats(largest), floats(total), -floats(d), out)
    return out[:, :vocab].float()


def attention(d: Tensor, qkv: Tensor, out: Tensor, lengths: Sequence[int], shape: dict[str, Any],
              order: str) -> tuple[Tensor, list[Optional[Tensor]]]:
    """Gradients of qkv and, where there are such, of the norms of queries' and keys' heads. shape: packed_attention's keywords."""
    heads, kv_heads, head_dim = (shape[name] for name in ("heads", "kv_heads", "head_dim"))
    (rows, width), padded = qkv.shape, _up(head_dim, LEAF)
    at, blocks = places.of_sequences(tuple(lengths), qkv.device)
    keys, values = places.cache(blocks, kv_heads, head_dim, places.DENSE_BLOCK, qkv.device, order)
    norms = {name: rounded(shape[name], order) for name in ("q_norm", "k_norm")}
    kernels, stream = kernels_for(qkv, order)
    make = qkv.new_empty if padded == head_dim else qkv.new_zeros
    products, filled = floats(qkv), _up(rows, LEAF)
    d_heads, rs = (qkv.new_zeros(filled, n, dtype=torch.float32) for n in (width, heads + kv_heads))
    d_qkv = qkv.new_empty(rows, _up(width, LEAF), dtype=torch.bfloat16)
    largest, total = (qkv.new_empty(rows, heads, dtype=torch.float32) for _ in range(2))
    kernels.attention_backward(stream, {
        **shape, **norms, **at._asdict(), "qkv": products, "keys": keys, "values": values, "block_size": places.DENSE_BLOCK,
        "out": leaves(out, order), "q": make(rows, heads, padded, dtype=torch.bfloat16),
        "non_finite": qkv.new_empty(rows, dtype=torch.bool), "max": largest, "sum": total, "d_out": leaves(d, order),
        "d_heads": d_heads[:rows], "rs": rs[:rows], "d_qkv": d_qkv})
    gradients: list[Optional[Tensor]] = []
    for norm, first, count in ((norms["q_norm"], 0, heads), (norms["k_norm"], heads, kv_heads)):
        if norm is not None:
            gradients.append(qkv.new_zeros(head_dim, dtype=torch.float32))
            kernels.norm_gradient(stream, d_heads, _filled(products, filled), rs, first * head_dim, first, count, gradients[-1])
    return d_qkv[:, :width].float(), gradients
