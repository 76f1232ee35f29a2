"""The operators as torch.library has them: namespace `invar`, with fake tensors and autograd.

Tensors are [T, ...] float32 or are made so; letters as in docs/python.md. An operator whose weights' gradients go into
buffers of the caller's (`into`) writes them during the backward and gives none. `dtype` is float32, or bfloat16, which holds
what is rounded as well.
"""
from __future__ import annotations

import functools
import os
from typing import Any, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .._invar import Operators
from . import cuda, cuda_backward, places


@functools.lru_cache(maxsize=None)
def _operators(order: str, process: int) -> Operators:
    return Operators(order, "auto", torch.get_num_threads())


def operators(order: str) -> Operators:
    """The library of this process: threads do not survive a fork."""
    return _operators(order, os.getpid())


def plain(x: Tensor) -> Tensor:
    """An operand of an operator of the CPU: float32, dense, without a gradient."""
    if x.device.type != "cpu":
        raise ValueError(f"invar.torch: expected a tensor of the CPU, found one of {x.device}")
    return x.detach().to(torch.float32).contiguous()


def _kept(x: Tensor, *shape: int) -> Tensor:
    """Keeps for a backward what a forward computed; the backward of CUDA computes it again."""
    return x.new_empty(shape if x.device.type == "cpu" else (0,), dtype=torch.float32)


def _integers(x: Tensor) -> Tensor:
    return x.detach().to(torch.int32).contiguous()


def _pairs(weights: Sequence[Tensor], biases: Sequence[Tensor]) -> list[list[Any]]:
    """Weights with their biases; no biases at all: none of them has one."""
    if biases and len(biases) != len(weights):
        raise ValueError(f"invar.torch: expected a bias for each of {len(weights)} weights or none, found {len(biases)}")
    return [[plain(w), plain(biases[i]) if biases else None] for i, w in enumerate(weights)]


def _with_gradients(weights: Sequence[Tensor], biases: Sequence[Tensor],
                    into: Sequence[Tensor]) -> tuple[list[list[Any]], list[Tensor], list[Tensor]]:
    """The same with what their gradients are added to: `into`, or zeros."""
    pairs = _pairs(weights, biases)
    dws = list(into) if into else [torch.zeros_like(pair[0]) for pair in pairs]
    dbs = [torch.zeros_like(pair[1]) for pair in pairs] if biases else []
    return [[*pair, dws[i], dbs[i] if biases else None] for i, pair in enumerate(pairs)], dws, dbs


# y = (residual +) x w^T + bias, in runs.

@torch.library.custom_op("invar::linear", mutates_args=())
def linear(x: Tensor, weights: List[Tensor], biases: List[Tensor], into: List[Tensor], runs: int,
           residual: Optional[Tensor], order: str) -> Tensor:
    y = torch.empty(x.shape[0], sum(w.shape[0] for w in weights))
    operators(order).linear(plain(x), _pairs(weights, biases), runs, None if residual is None else plain(residual), y)
    return y


@linear.register_kernel("cuda")
def _(x, weights, biases, into, runs, residual, order):
    return cuda.linear(x, weights, biases, runs, residual, order)


@linear.register_fake
def _(x, weights, biases, into, runs, residual, order):
    return x.new_empty(x.shape[0], sum(w.shape[0] for w in weights), dtype=torch.float32)


def _linear_setup(ctx, inputs, output):
    x, weights, biases, into, runs, residual, order = inputs
    ctx.save_for_backward(x, *weights, *biases)
    ctx.count, ctx.has_bias, ctx.into, ctx.order = len(weights), bool(biases), into, order
    ctx.has_residual = residual is not None


def _linear_backward(ctx, dy):
    x, *rest = ctx.saved_tensors
    weights, biases = rest[:ctx.count], rest[ctx.count:]
    if x.is_cuda:
        dx, dws, dbs = cuda_backward.linear(dy, x, weights, biases, ctx.into, ctx.order)
        none = [None] * len(ctx.into)
        return dx.to(x.dtype), none if ctx.into else dws, dbs, none, None, dy if ctx.has_residual else None, None
    values, dws, dbs = _with_gradients(weights, biases, ctx.into)
    dx = torch.empty(x.shape, dtype=torch.float32)
    operators(ctx.order).linear_backward(plain(dy), plain(x), values, dx)
    none = [None] * len(ctx.into)
    return dx.to(x.dtype), none if ctx.into else dws, dbs, none, None, dy if ctx.has_residual else None, None


linear.register_autograd(_linear_backward, setup_context=_linear_setup)


# out = act(curve(x gate^T) * (x up^T)), and the dots for the backward.

@torch.library.custom_op("invar::gated_linear", mutates_args=())
def gated_linear(x: Tensor, weights: List[Tensor], biases: List[Tensor], into: List[Tensor], curve: str, order: str,
                 dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
    width = weights[0].shape[0]
    out, dots = torch.empty(x.shape[0], width), torch.empty(x.shape[0], 2 * ((width + 15) // 16 * 16))
    operators(order).gated(plain(x), _pairs(weights, biases), curve, out, dots)
    return out.to(dtype), dots


@gated_linear.register_kernel("cuda")
def _(x, weights, biases, into, curve, order, dtype):
    return cuda.gated_linear(x, weights, biases, curve, order, dtype), _kept(x)


@gated_linear.register_fake
def _(x, weights, biases, into, curve, order, dtype):
    width = weights[0].shape[0]
    return x.new_empty(x.shape[0], width, dtype=dtype), _kept(x, x.shape[0], 2 * ((width + 15) // 16 * 16))


def _gated_setup(ctx, inputs, output):
    x, weights, biases, into, curve, order, _ = inputs
    ctx.save_for_backward(x, output[1], *weights, *biases)
    ctx.into, ctx.curve, ctx.order = into, curve, order


def _gated_backward(ctx, d, _):
    x, dots, *rest = ctx.saved_tensors
    if x.is_cuda:
        dx, dws, dbs = cuda_backward.gated_linear(d, x, rest[:2], rest[2:], ctx.into, ctx.curve, ctx.order)
        none = [None] * len(ctx.into)
        return dx.to(x.dtype), none if ctx.into else dws, dbs, none, None, None, None
    values, dws, dbs = _with_gradients(rest[:2], rest[2:], ctx.into)
    dx = torch.empty(x.shape, dtype=torch.float32)
    operators(ctx.order).gated_backward(plain(d), plain(x), plain(dots), values, ctx.curve, dx)
    none = [None] * len(ctx.into)
    return dx.to(x.dtype), none if ctx.into else dws, dbs, none, None, None, None


gated_linear.register_autograd(_gated_backward, setup_context=_gated_setup)


# out = act(rmsnorm(x) * weight).

@torch.library.custom_op("invar::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor, eps: float, rounds: bool, order: str, dtype: torch.dtype) -> Tensor:
    out = torch.empty(x.shape, dtype=torch.float32)
    operators(order).rms_norm(plain(x), plain(weight), eps, rounds, out)
    return out.to(dtype)


@rms_norm.register_kernel("cuda")
def _(x, weight, eps, rounds, order, dtype):
    return cuda.rms_norm(x, weight, eps, rounds, order, dtype)


@rms_norm.register_fake
def _(x, weight, eps, rounds, order, dtype):
    return x.new_empty(x.shape, dtype=dtype)


def _norm_setup(ctx, inputs, output):
    x, weight, ctx.eps, _, ctx.order, _ = inputs
    ctx.save_for_backward(x, weight)


def _norm_backward(ctx, dy):
    x, weight = ctx.saved_tensors
    if x.is_cuda:
        dx, dw = cuda_backward.rms_norm(dy, x, weight, ctx.eps, ctx.order)
        return dx.to(x.dtype), dw.to(weight.dtype), None, None, None, None
    dx, dw = torch.empty(x.shape, dtype=torch.float32), torch.zeros(weight.shape, dtype=torch.float32)
    operators(ctx.order).rms_norm_backward(plain(dy), plain(x), plain(weight), ctx.eps, dx, dw)
    return dx.to(x.dtype), dw.to(weight.dtype), None, None, None, None


rms_norm.register_autograd(_norm_backward, setup_context=_norm_setup)


# out = rows of the table.

@torch.library.custom_op("invar::embedding", mutates_args=())
def embedding(tokens: Tensor, table: Tensor, order: str) -> Tensor:
    out = torch.empty(tokens.shape[0], table.shape[1])
    operators(order).embedding(_integers(tokens), plain(table), out)
    return out


@embedding.register_kernel("cuda")
def _(tokens, table, order):
    return cuda.embedding(tokens, table, order)


@embedding.register_fake
def _(tokens, table, order):
    return table.new_empty(tokens.shape[0], table.shape[1], dtype=torch.float32)


def _embedding_setup(ctx, inputs, output):
    tokens, table, ctx.order = inputs
    ctx.save_for_backward(tokens)
    ctx.shape, ctx.dtype = table.shape, table.dtype


def _embedding_backward(ctx, dh):
    if dh.is_cuda:
        return None, cuda_backward.embedding(ctx.saved_tensors[0], dh, ctx.shape, ctx.order).to(ctx.dtype), None
    gradient = torch.zeros(ctx.shape)
    operators(ctx.order).embedding_backward(_integers(ctx.saved_tensors[0]), plain(dh), gradient)
    return None, gradient.to(ctx.dtype), None


embedding.register_autograd(_embedding_backward, setup_context=_embedding_setup)


# Heads rotated by the angles of their positions.

@torch.library.custom_op("invar::rope", mutates_args=())
def rope(x: Tensor, heads: int, positions: Tensor, cos: Tensor, sin: Tensor, order: str) -> Tensor:
    out = plain(x).clone()
    operators(order).rope(out, heads, _integers(positions), plain(cos), plain(sin))
    return out


@rope.register_kernel("cuda")
def _(x, heads, positions, cos, sin, order):
    return cuda.rope(x, heads, positions, cos, sin, order)


@rope.register_fake
def _(x, heads, positions, cos, sin, order):
    return x.new_empty(x.shape, dtype=torch.float32)


def _rope_setup(ctx, inputs, output):
    x, ctx.heads, positions, cos, sin, ctx.order = inputs
    ctx.save_for_backward(positions, cos, sin)
    ctx.dtype = x.dtype


def _rope_backward(ctx, dy):
    positions, cos, sin = ctx.saved_tensors
    if dy.is_cuda:
        return cuda.rope(dy, ctx.heads, positions, cos, -sin, ctx.order).to(ctx.dtype), None, None, None, None, None
    dx = plain(dy).clone()
    operators(ctx.order).rope(dx, ctx.heads, _integers(positions), plain(cos), -plain(sin))
    return dx.to(ctx.dtype), None, None, None, None, None


rope.register_autograd(_rope_backward, setup_context=_rope_setup)


# out = act(curve(g) * u).

@torch.library.custom_op("invar::silu_mul", mutates_args=())
def silu_mul(g: Tensor, u: Tensor, curve: str, order: str, dtype: torch.dtype) -> Tensor:
    out = torch.empty(g.shape, dtype=torch.float32)
    operators(order).gate(plain(g).view(-1), plain(u).view(-1), curve, out.view(-1))
    return out.to(dtype)


@silu_mul.register_kernel("cuda")
def _(g, u, curve, order, dtype):
    return cuda.silu_mul(g, u, curve, order, dtype)


@silu_mul.register_fake
def _(g, u, curve, order, dtype):
    return g.new_empty(g.shape, dtype=dtype)


def _gate_setup(ctx, inputs, output):
    g, u, ctx.curve, ctx.order, _ = inputs
    ctx.save_for_backward(g, u)


def _gate_backward(ctx, d):
    g, u = ctx.saved_tensors
    if g.is_cuda:
        dg, du = cuda_backward.silu_mul(d, g, u, ctx.curve, ctx.order)
        return dg.to(g.dtype), du.to(u.dtype), None, None, None
    dg, du = torch.empty(g.shape, dtype=torch.float32), torch.empty(u.shape, dtype=torch.float32)
    operators(ctx.order).gate_backward(plain(d).view(-1), plain(g).view(-1), plain(u).view(-1), ctx.curve, dg.view(-1),
                                       du.view(-1))
    return dg.to(g.dtype), du.to(u.dtype), None, None, None


silu_mul.register_autograd(_gate_backward, setup_context=_gate_setup)


# Norms of heads, rotation, attention over whole sequences; and what the backward needs of it.

def _shape(heads, kv_heads, head_dim, window, eps, score_scale, cos, sin, norms) -> dict[str, Any]:
    read = cuda.floats if cos.is_cuda else plain
    q_norm, k_norm = norms or (None, None)
    return dict(heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=window, eps=eps, score_scale=score_scale, cos=read(cos),
                sin=read(sin), q_norm=q_norm, k_norm=k_norm)


def _dense_shape(lengths, *others) -> dict[str, Any]:
    shape = _shape(*others)
    norms = {name: None if shape[name] is None else plain(shape[name]) for name in ("q_norm", "k_norm")}
    return {**shape, **norms, "lengths": list(lengths), "score_cap": 0.0}


@torch.library.custom_op("invar::attention", mutates_args=())
def attention(qkv: Tensor, norms: List[Tensor], cos: Tensor, sin: Tensor, lengths: List[int], heads: int, kv_heads: int,
              head_dim: int, window: int, eps: float, score_scale: float, order: str,
              dtype: torch.dtype) -> Tuple[Tensor, Tensor, Tensor]:
    rows = qkv.shape[0]
    out, largest, total = torch.empty(rows, heads * head_dim), torch.empty(rows, heads), torch.empty(rows, heads)
    shape = _dense_shape(lengths, heads, kv_heads, head_dim, window, eps, score_scale, cos, sin, norms)
    operators(order).attention(plain(qkv), shape, out, largest, total)
    return out.to(dtype), largest, total


@attention.register_kernel("cuda")
def _(qkv, norms, cos, sin, lengths, heads, kv_heads, head_dim, window, eps, score_scale, order, dtype):
    shape = _shape(heads, kv_heads, head_dim, window, eps, score_scale, cos, sin, norms)
    return cuda.attention(qkv, lengths, shape, order, dtype), _kept(qkv), _kept(qkv)


@attention.register_fake
def _(qkv, norms, cos, sin, lengths, heads, kv_heads, head_dim, window, eps, score_scale, order, dtype):
    rows = qkv.shape[0]
    return qkv.new_empty(rows, heads * head_dim, dtype=dtype), _kept(qkv, rows, heads), _kept(qkv, rows, heads)


def _attention_setup(ctx, inputs, output):
    qkv, norms, cos, sin, *ctx.others = inputs
    ctx.save_for_backward(qkv, cos, sin, *output, *norms)


def _attention_backward(ctx, d, *_):
    qkv, cos, sin, out, largest, total, *norms = ctx.saved_tensors
    lengths, heads, kv_heads, head_dim, window, eps, score_scale, order, _ = ctx.others
    if qkv.is_cuda:
        shape = _shape(heads, kv_heads, head_dim, window, eps, score_scale, cos, sin, norms)
        dqkv, gradients = cuda_backward.attention(d, qkv, out, lengths, shape, order)
        return (dqkv.to(qkv.dtype), [g.to(n.dtype) for g, n in zip(gradients, norms)], *[None] * 11)
    dqkv = torch.empty(qkv.shape, dtype=torch.float32)
    gradients = [torch.zeros(head_dim) for _ in norms]
    operators(order).attention_backward(
        plain(d), plain(qkv), plain(out), plain(largest), plain(total),
        _dense_shape(lengths, heads, kv_heads, head_dim, window, eps, score_scale, cos, sin, norms), dqkv,
        *(gradients or [None, None]))
    return (dqkv.to(qkv.dtype), [g.to(n.dtype) for g, n in zip(gradients, norms)], *[None] * 11)


attention.register_autograd(_attention_backward, setup_context=_attention_setup)


# The same of new rows of sequences whose keys and values stand in blocks; theirs are written there. No backward.

@torch.library.custom_op("invar::paged_attention", mutates_args=("keys", "values"))
def paged_attention(qkv: Tensor, keys: Tensor, values: Tensor, tables: Tensor, starts: Tensor, norms: List[Tensor], cos: Tensor,
                    sin: Tensor, lengths: List[int], heads: int, kv_heads: int, head_dim: int, block_size: int, window: int,
                    eps: float, score_scale: float, order: str, dtype: torch.dtype) -> Tensor:
    shape = _shape(heads, kv_heads, head_dim, window, eps, score_scale, cos, sin, norms)
    at = places.in_tables(tuple(lengths), starts, tables, block_size)
    places.expect_inside(at, keys.shape[0], cos.shape[0])
    shape.update({name: norm if norm is None else norm.detach().bfloat16().float() for name, norm in shape.items() if "norm" in name})
    return places.attend(operators(order).paged_attention, shape, at, plain(qkv), keys, values, block_size).to(dtype)


@paged_attention.register_kernel("cuda")
def _(qkv, keys, values, tables, starts, norms, cos, sin, lengths, heads, kv_heads, head_dim, block_size, window, eps,
      score_scale, order, dtype):
    shape = _shape(heads, kv_heads, head_dim, window, eps, score_scale, cos, sin, norms)
    at = cuda.in_tables(tuple(lengths), starts, tables, block_size, order)
    return cuda.attend(shape, at, qkv, keys, values, block_size, order, dtype)


@paged_attention.register_fake
def _(qkv, keys, values, tables, starts, norms, cos, sin, lengths, heads, kv_heads, head_dim, block_size, window, eps,
      score_scale, order, dtype):
    return qkv.new_empty(qkv.shape[0], heads * head_dim, dtype=dtype)


# Log-probabilities of targets; and what the backward needs.

@torch.library.custom_op("invar::log_softmax_gather", mutates_args=())
def log_softmax_gather(logits: Tensor, targets: Tensor, order: str) -> Tuple[Tensor, Tensor, Tensor]:
    out, largest, total = (torch.empty(logits.shape[0]) for _ in range(3))
    operators(order).log_softmax_gather(plain(logits), _integers(targets), out, largest, total)
    return out, largest, total


@log_softmax_gather.register_kernel("cuda")
def _(logits, targets, order):
    return cuda.log_softmax_gather(logits, targets)


@log_softmax_gather.register_fake
def _(logits, targets, order):
    return tuple(logits.new_empty(logits.shape[0], dtype=torch.float32) for _ in range(3))


def _gather_setup(ctx, inputs, output):
    logits, targets, ctx.order = inputs
    ctx.save_for_backward(logits, targets, output[1], output[2])


def _gather_backward(ctx, d, *_):
    logits, targets, largest, total = ctx.saved_tensors
    if logits.is_cuda:
        return cuda_backward.log_softmax_gather(logits, targets, largest, total, d, ctx.order).to(logits.dtype), None, None
    dx = torch.empty(logits.shape, dtype=torch.float32)
    operators(ctx.order).log_softmax_gather_backward(plain(logits), _integers(targets), plain(largest), plain(total), -plain(d), dx)
    return dx.to(logits.dtype), None, None


log_softmax_gather.register_autograd(_gather_backward, setup_context=_gather_setup)
