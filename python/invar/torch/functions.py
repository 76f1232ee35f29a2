"""The operators as callers use them. Letters: T rows, K inner size, N outputs, F width, H and G heads, E head size, V words."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Optional, Union

import torch
from torch import Tensor

from .._invar import row_parallel_runs
from . import library, places

Tensors = Union[Tensor, Sequence[Tensor]]


def _list(tensors: Optional[Tensors]) -> list[Tensor]:
    if tensors is None:
        return []
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def embedding(tokens: Tensor, table: Tensor, order: str = "portable") -> Tensor:
    """Rows of `table` [V, D] for `tokens` [...]: [..., D] float32. Backward: g[token] += dx[t], t ascending."""
    return library.embedding(tokens.reshape(-1), table, order).view(*tokens.shape, table.shape[1])


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6, *, rounds: bool = True, order: str = "portable",
             dtype: torch.dtype = torch.float32) -> Tensor:
    """x / rms(x) * weight over the last dimension (numerics 3), rounded to bf16 as a product's input is unless told not to.

    x [..., D], weight [D]: [..., D] of `dtype`, float32, or what is rounded as bfloat16.
    """
    return library.rms_norm(_rows(x), weight, eps, rounds, order, dtype).view(x.shape)


def linear(x: Tensor, weight: Tensors, bias: Optional[Tensors] = None, *, runs: int = 1, residual: Optional[Tensor] = None,
           accumulate_into: Optional[Tensors] = None, order: str = "portable") -> Tensor:
    """(residual +) x weight^T + bias: [..., N] float32, N the outputs of all weights, one after the other.

    x [..., K], weight [N, K] or several, which are one product (q, k, v) and so have one chain in dx. runs: 1 for
    column-parallel products, row_parallel_runs(K, heads) for row-parallel ones (numerics 2). accumulate_into: float32
    buffers of the weights' shapes in which their gradients' chains go on; the backward then gives the weights none, and the
    bits are the trainer's over several batches.
    """
    rows = None if residual is None else _rows(residual)
    y = library.linear(_rows(x), _list(weight), _list(bias), _list(accumulate_into), runs, rows, order)
    return y.view(*x.shape[:-1], y.shape[-1])


def gated_linear(x: Tensor, gate: Tensor, up: Tensor, biases: Sequence[Tensor] = (), *, curve: str = "silu",
                 accumulate_into: Optional[Tensors] = None, order: str = "portable",
                 dtype: torch.dtype = torch.float32) -> Tensor:
    """curve(x gate^T) * (x up^T), rounded: [..., F] float32 or bfloat16. curve: "silu" or "gelu_tanh"."""
    out = library.gated_linear(_rows(x), [gate, up], list(biases), _list(accumulate_into), curve, order, dtype)[0]
    return out.view(*x.shape[:-1], out.shape[-1])


def silu_mul(gate: Tensor, up: Tensor, *, curve: str = "silu", order: str = "portable",
             dtype: torch.dtype = torch.float32) -> Tensor:
    """curve(gate) * up, rounded: the shape of both, float32 or bfloat16."""
    return library.silu_mul(gate, up, curve, order, dtype)


def rope(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, order: str = "portable") -> Tensor:
    """x [T, heads, E] rotated by the angles of `positions` [T]; cos and sin [positions, E / 2]. Pairs e with e + E/2."""
    rotated = library.rope(x.reshape(x.shape[0], -1), x.shape[1], positions, cos, sin, order)
    return rotated.view(x.shape)


def packed_attention(qkv: Tensor, cos: Tensor, sin: Tensor, lengths: Sequence[int], heads: int, kv_heads: int, *,
                     window: int = 0, norms: Sequence[Tensor] = (), eps: float = 1e-6, score_scale: float = 0.0,
                     order: str = "portable", dtype: torch.dtype = torch.float32) -> Tensor:
    """Norms of heads, rotation and causal attention over sequences that stand one after the other (numerics 4).

    qkv [T, (H + 2G) * E]: q, k and v of each row, as `linear` gives them. cos and sin [positions, E / 2], at least 32
    positions. lengths: of the sequences, their sum is T. window 0: all. norms: weights [E] of the norms of q and of k, or
    none. score_scale 0: 1 / sqrt(E). Returns [T, H * E], rounded, float32 or bfloat16. A key or a value that is not finite is
    an error; on CUDA, which is not waited for, all of the result is NaN.
    """
    head_dim = qkv.shape[1] // (heads + 2 * kv_heads)
    return library.attention(qkv, list(norms), cos, sin, list(lengths), heads, kv_heads, head_dim, window, eps,
                             float(score_scale), order, dtype)[0]


def paged_cache(blocks: int, kv_heads: int, head_dim: int, block_size: int = 64, *, device: Union[str, torch.device] = "cpu",
                order: str = "portable") -> tuple[Tensor, Tensor]:
    """Memory for the keys and the values of `blocks` blocks of 32, 64 or 128 rows, as the kernels of a device and an order lay
    it out: two bfloat16 tensors [blocks, G, ...], which blocks may be copied within."""
    at = torch.empty(0, device=device).device
    return places.cache(blocks, kv_heads, head_dim, block_size, at, order)


def paged_attention(qkv: Tensor, cache: tuple[Tensor, Tensor], tables: Tensor, starts: Tensor, cos: Tensor, sin: Tensor,
                    lengths: Sequence[int], heads: int, kv_heads: int, *, block_size: int = 64, window: int = 0,
                    norms: Sequence[Tensor] = (), eps: float = 1e-6, score_scale: float = 0.0, order: str = "portable",
                    dtype: torch.dtype = torch.float32) -> Tensor:
    """packed_attention of new rows of S sequences whose earlier rows are in `cache` (paged_cache), where theirs are put too.

    lengths: new rows of each. tables [S, B] int32: the blocks of each, whose slots [i * block_size, (i + 1) * block_size) are
    the i-th's. starts [S] int32: how many rows each has already. Both may change between launches of a CUDA graph.
    """
    head_dim = qkv.shape[1] // (heads + 2 * kv_heads)
    return library.paged_attention(qkv, *cache, tables, starts, list(norms), cos, sin, list(lengths), heads, kv_heads, head_dim,
                                   block_size, window, eps, float(score_scale), order, dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, lengths: Optional[Sequence[int]] = None, *, window: int = 0,
              order: str = "portable", dtype: torch.dtype = torch.float32) -> Tensor:
    """Causal attention of q [T, H, E] to k and v [T, G, E], rotated before: [T, H, E]. lengths None: one sequence."""
    rows, heads, head_dim = q.shape
    sizes = [rows] if lengths is None else list(lengths)
    still = max([*sizes, 32])
    qkv = torch.cat([one.reshape(rows, -1) for one in (q, k, v)], dim=1)
    cos, sin = q.new_ones(still, head_dim // 2, dtype=torch.float32), q.new_zeros(still, head_dim // 2, dtype=torch.float32)
    out = packed_attention(qkv, cos, sin, sizes, heads, k.shape[1], window=window, order=order, dtype=dtype)
    return out.view(q.shape)


def log_softmax_gather(logits: Tensor, targets: Tensor, order: str = "portable") -> Tensor:
    """ln p(target) of each row: logits [..., V], targets [...]: [...] float32 (numerics 3)."""
    return library.log_softmax_gather(_rows(logits), targets.reshape(-1), order)[0].view(targets.shape)


def packings(order: str = "portable") -> int:
    """How often the products of this process have packed weights: once for weights that do not change."""
    return library.operators(order).packings()
