"""The operators on CUDA tensors: the engine's kernels, launched in the caller's stream.

Nothing waits for the GPU, and memory is torch's: all of it can be recorded in a CUDA graph. What enters a product is bf16 in
rows of whole leaves (32 elements): bf16 tensors of such a width are read where they lie, float32 ones are rounded at each
call. The order `hopper` reads weights in rows; `portable` reads them in panels, which are made at each call.
"""
from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from .._invar import CudaOperators
from . import places

LEAF, PANEL, ROWS = 32, 16, 8  # elements of a leaf, outputs of a panel, rows that matrices are filled up to


@functools.lru_cache(maxsize=None)
def _operators(order: str, gpu: int, process: int) -> CudaOperators:
    return CudaOperators(order, gpu)


def kernels_for(x: Tensor, order: str) -> tuple[CudaOperators, int]:
    """The kernels of the GPU of `x`, and its current stream."""
    return _operators(order, x.device.index, os.getpid()), torch.cuda.current_stream(x.device).cuda_stream


def floats(x: Tensor) -> Tensor:
    return x.detach().to(torch.float32).contiguous()


def integers(x: Tensor) -> Tensor:
    return x.detach().to(torch.int32).contiguous()


def _up(x: int, multiple: int) -> int:
    return (x + multiple - 1) // multiple * multiple


def _aligned(x: Tensor) -> Tensor:
    """Dense, from a multiple of 16 bytes on, as copies of whole tiles want it."""
    x = x.detach().contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


def leaves(x: Tensor, order: str, rows: Optional[int] = None) -> Tensor:
    """x [T, K] as rows of bf16 of whole leaves, [rows or T, K up to 32]; zeros behind."""
    count, width = x.shape
    padded, rows = _up(width, LEAF), count if rows is None else rows
    if x.dtype == torch.bfloat16 and padded == width and rows == count:
        return _aligned(x)
    out = x.new_empty(rows, padded, dtype=torch.bfloat16)
    out[count:].zero_()
    if count:
        kernels, stream = kernels_for(x, order)
        kernels.round(stream, floats(x), out[:count])
    return out


def _float_leaves(x: Tensor, rows: int) -> Tensor:
    """The same in float32."""
    return torch.nn.functional.pad(floats(x), (0, _up(x.shape[1], LEAF) - x.shape[1], 0, rows - x.shape[0]))


def rounded(x: Optional[Tensor], order: str) -> Optional[Tensor]:
    """A vector as the forward sees it: bf16 in float32."""
    if x is None:
        return None
    out = x.new_empty(x.numel(), dtype=torch.float32)
    kernels, stream = kernels_for(x, order)
    kernels.rounded(stream, _values(x), out)
    return out


def _panels(rows: Tensor) -> Tensor:
    """Rows [N up to 16, K up to 32] as panels of 16 outputs (src/kernels/matrix.h): [panels, elements]."""
    n, k = rows.shape
    if rows.dtype == torch.float32:
        return rows.view(n // PANEL, PANEL, k // LEAF, LEAF).permute(0, 2, 3, 1).reshape(n // PANEL, -1)
    return rows.view(n // PANEL, PANEL, k // LEAF, LEAF // 2, 2).permute(0, 2, 3, 1, 4).reshape(n // PANEL, -1)


def matrix(w: Tensor, order: str) -> Tensor:
    """A weight [N, K] as the kernels of an order read it."""
    if order == "hopper":
        return leaves(w, order, _up(w.shape[0], ROWS)).view(-1)
    return _panels(leaves(w, order, _up(w.shape[0], PANEL))).reshape(-1)


def _are_neighbours(first: Tensor, second: Tensor) -> bool:
    """Whether the kernels can read two weights as a stack where they lie."""
    return (first.dtype == second.dtype == torch.bfloat16 and first.is_contiguous() and second.is_contiguous()
            and first.shape[0] % ROWS == 0 and first.shape[1] % LEAF == 0 and first.data_ptr() % 16 == 0
            and first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
            and second.data_ptr() == first.data_ptr() + first.numel() * first.element_size())


def _pair(gate: Tensor, up: Tensor, order: str) -> Tensor:
    """A gated pair as one stack."""
    if order != "hopper":
        return torch.stack([matrix(w, order).view(_up(w.shape[0], PANEL) // PANEL, -1) for w in (gate, up)], dim=1).view(-1)
    if _are_neighbours(gate, up):
        return torch.as_strided(gate.detach(), (2 * gate.numel(),), (1,))
    return torch.cat([matrix(gate, order), matrix(up, order)])


def _expect_biases(weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
    if biases and len(biases) != len(weights):
        raise ValueError(f"invar.torch: expected a bias for each of {len(weights)} weights or none, found {len(biases)}")
    if not weights:
        raise ValueError("invar.torch: expected 1 to 64 weights, found 0")


def _expect_width(weights: Sequence[Tensor], width: int) -> None:
    for w in weights:
        if w.dim() != 2 or w.shape[1] != width:
            raise ValueError(f"weight: expected the shape [-1, {width}] (-1: any), found {list(w.shape)}")


def linear(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], runs: int, residual: Optional[Tensor],
           order: str) -> Tensor:
    _expect_biases(weights, biases)
    _expect_width(weights, x.shape[1])
    n = sum(w.shape[0] for w in weights)
    y = x.new_empty(x.shape[0], n, dtype=torch.float32) if residual is None else floats(residual).clone()
    rows, first = leaves(x, order), 0
    for i, w in enumerate(weights):
        kernels, stream = kernels_for(x, order)
        kernels.linear(stream, rows, matrix(w, order), w.shape[0], x.shape[1], runs,
                       rounded(biases[i], order) if biases else None, residual is not None, y, first)
        first += w.shape[0]
    return y


def matmul_f32(x: Tensor, w: Tensor, bias: Optional[Tensor]) -> Tensor:
    """y = x w^T + bias in float32 throughout, the weight mode f32: x [T, K], w [N, K]."""
    y = x.new_empty(x.shape[0], w.shape[0], dtype=torch.float32)
    kernels, stream = kernels_for(x, "portable")
    kernels.linear(stream, _float_leaves(x, x.shape[0]), _panels(_float_leaves(w, _up(w.shape[0], PANEL))).reshape(-1),
                   w.shape[0], x.shape[1], 1, None if bias is None else floats(bias), False, y, 0)
    return y


def gated_linear(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], curve: str, order: str,
                 dtype: torch.dtype) -> Tensor:
    _expect_biases(weights, biases)
    _expect_width(weights, x.shape[1])
    gate, up = weights
    if gate.shape != up.shape:
        raise ValueError("expected gate and up of one width")
    if order == "hopper" and gate.dtype == up.dtype == torch.bfloat16 and not _are_neighbours(gate, up):
        # A stack would be a copy of both: the same bits by two products.
        both = [linear(x, [w], biases[i:i + 1], 1, None, order) for i, w in enumerate(weights)]
        return silu_mul(both[0], both[1], curve, order, dtype)
    out = x.new_empty(x.shape[0], _up(gate.shape[0], LEAF), dtype=torch.bfloat16)
    kernels, stream = kernels_for(x, order)
    added = [rounded(b, order) for b in biases] or [None, None]
    kernels.gated(stream, leaves(x, order), _pair(gate, up, order), gate.shape[0], x.shape[1], *added, curve, out)
    return _narrow(out, gate.shape[0], dtype)


def _narrow(out: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Without the zeros that fill leaves up."""
    return out[:, :width].to(dtype).contiguous()


def rms_norm(x: Tensor, weight: Tensor, eps: float, rounds: bool, order: str, dtype: torch.dtype) -> Tensor:
    kernels, stream = kernels_for(x, order)
    rows, width = x.shape
    out = (x.new_empty(rows, _up(width, LEAF), dtype=torch.bfloat16) if rounds else
           x.new_empty(rows, width, dtype=torch.float32))
    kernels.rms_norm(stream, floats(x), rounded(weight, order), eps, rounds, out)
    return _narrow(out, width, dtype)


def embedding(tokens: Tensor, table: Tensor, order: str) -> Tensor:
    kernels, stream = kernels_for(table, order)
    if table.dtype == torch.bfloat16 and table.shape[1] % LEAF == 0 and table.is_contiguous():
        out = table.new_empty(tokens.shape[0], table.shape[1], dtype=torch.float32)
        kernels.embedding(stream, integers(tokens), table.detach(), out)
        return out
    # + 0: no zero is negative.
    return leaves(table.detach().index_select(0, tokens), order)[:, :table.shape[1]].float() + 0.0


def rope(x: Tensor, heads: int, positions: Tensor, cos: Tensor, sin: Tensor, order: str) -> Tensor:
    out = floats(x).clone()
    kernels, stream = kernels_for(x, order)
    kernels.rope(stream, out, heads, integers(positions), floats(cos), floats(sin))
    return out


def _values(x: Tensor) -> Tensor:
    x = x.detach().contiguous().view(-1)
    return x if x.dtype == torch.bfloat16 else floats(x)


def silu_mul(g: Tensor, u: Tensor, curve: str, order: str, dtype: torch.dtype) -> Tensor:
    out = g.new_empty(g.shape, dtype=torch.bfloat16)
    kernels, stream = kernels_for(g, order)
    kernels.gate(stream, _values(g), _values(u), curve, out.view(-1))
    return out if dtype == torch.bfloat16 else out.to(dtype)


def log_sum_exp(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each row [T, V] and the log of the sum of exp(x - it)."""
    rows = x.shape[0]
    largest, total = (x.new_empty(rows, dtype=torch.float32) for _ in range(2))
    kernels, stream = kernels_for(x, "portable")
    kernels.log_sum_exp(stream, floats(x), x.new_empty(rows, dtype=torch.int32), largest, total,
                        x.new_empty(rows, dtype=torch.bool))
    return largest, total


def log_softmax_gather(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    largest, total = log_sum_exp(logits)
    found = floats(logits).gather(1, targets.detach().to(torch.int64)[:, None])[:, 0]
    return (found - largest) - total, largest, total


def mean(x: Tensor) -> Tensor:
    """sum64 of each row [T, N] over N."""
    out = x.new_empty(x.shape[0], dtype=torch.float32)
    kernels, stream = kernels_for(x, "portable")
    kernels.mean(stream, floats(x), out)
    return out


# ---- Attention

def attend(shape: dict[str, Any], at: places.Places, qkv: Tensor, keys: Tensor, values: Tensor, block_size: int, order: str,
           dtype: torch.dtype) -> Tensor:
    kernels, stream = kernels_for(qkv, order)
    words = kernels.scratch_words()
    scratch = qkv.new_empty(words, dtype=torch.float32) if words else None
    norms = {name: rounded(shape[name], order) for name in ("q_norm", "k_norm")}
    return places.attend(functools.partial(kernels.attention, stream), {**shape, **norms}, at, floats(qkv), keys, values,
                         block_size, scratch=scratch).to(dtype)


def in_tables(lengths: tuple[int, ...], starts: Tensor, tables: Tensor, block_size: int, order: str) -> places.Places:
    """places.in_tables in one launch."""
    at = places.empty(lengths, starts, tables)
    kernels, stream = kernels_for(tables, order)
    kernels.place_rows(stream, {**at._asdict(), "starts": integers(starts), "block_size": block_size})
    return at


def attention(qkv: Tensor, lengths: Sequence[int], shape: dict[str, Any], order: str, dtype: torch.dtype) -> Tensor:
    at, blocks = places.of_sequences(tuple(lengths), qkv.device)
    if at.positions.shape[0] != qkv.shape[0]:
        raise ValueError(f"expected lengths whose sum is {qkv.shape[0]}, found {at.positions.shape[0]}")
    keys, values = places.cache(blocks, shape["kv_heads"], shape["head_dim"], places.DENSE_BLOCK, qkv.device, order)
    return attend(shape, at, qkv, keys, values, places.DENSE_BLOCK, order, dtype)
