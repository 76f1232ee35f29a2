"""Products, softmax and means in one order each, without autograd: what the mode puts in the place of PyTorch's."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Optional, Union

import torch
from torch import Tensor

from invar.torch.library import operators, plain

_ORDER = "portable"


def matmul_persistent(a: Tensor, b: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """a [M, K] b [K, N] (+ bias [N]): [M, N] of their type."""
    if a.dtype != b.dtype or a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"matmul: expected matrices of one type that fit, found {a.dtype} {tuple(a.shape)} and {b.dtype} "
                         f"{tuple(b.shape)}")
    y = torch.zeros(a.shape[0], b.shape[1])
    if 0 not in (*a.shape, b.shape[1]):
        added = None if bias is None else plain(bias)
        if a.dtype == torch.bfloat16:
            operators(_ORDER).linear(plain(a), [[plain(b.t()), added]], 1, None, y)
        else:
            operators(_ORDER).matmul_f32(plain(a), plain(b.t()), added, y)
    elif bias is not None:
        y += plain(bias)
    return y.to(a.dtype)


def log_softmax(input: Tensor, dim: int = -1, _stacklevel: int = 3, dtype: Optional[torch.dtype] = None) -> Tensor:
    """(x - max) - log(sum of exp(x - max)) along `dim` (numerics 3), of the input's type or `dtype`."""
    moved = plain(input).movedim(dim, -1).contiguous()
    rows = moved.reshape(-1, moved.shape[-1])
    if rows.numel() == 0:
        return input.clone()
    largest, total = torch.empty(rows.shape[0]), torch.empty(rows.shape[0])
    operators(_ORDER).log_sum_exp(rows, largest, total)
    out = (rows - largest[:, None]) - total[:, None]
    return out.view(moved.shape).movedim(-1, dim).to(dtype or input.dtype)


def mean_dim(input: Tensor, dim: Union[int, Sequence[int], None], keepdim: bool = False,
             dtype: Optional[torch.dtype] = None) -> Tensor:
    """The mean along `dim` by sum64 (numerics 3): several dimensions are one vector, the last of them innermost."""
    listed = list(range(input.dim())) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    dims = [d % input.dim() for d in listed]
    kept = [d for d in range(input.dim()) if d not in dims]
    moved = plain(input).permute(*kept, *dims).contiguous()
    rows = moved.reshape(-1, moved[(0,) * len(kept)].numel() if kept else moved.numel())
    out = torch.empty(rows.shape[0])
    operators(_ORDER).mean(rows, out)
    shape = [1 if d in dims else input.shape[d] for d in range(input.dim())] if keepdim else [input.shape[d] for d in kept]
    return out.view(shape).to(dtype or input.dtype)


def mm(a: Tensor, b: Tensor) -> Tensor:
    """aten::mm."""
    return matmul_persistent(a, b)


def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """aten::addmm; a bias of one dimension is added before the product is rounded to its type."""
    if beta == 1 and alpha == 1 and bias.dim() == 1 and bias.shape[0] == b.shape[1]:
        return matmul_persistent(a, b, bias)
    product = matmul_persistent(a, b)
    return (beta * bias if beta else 0) + alpha * product


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """aten::bmm."""
    out = torch.empty(a.shape[0], a.shape[1], b.shape[2], dtype=a.dtype)
    for i in range(a.shape[0]):
        out[i] = matmul_persistent(a[i], b[i])
    return out


def softmax_kernel(input: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """aten::_log_softmax."""
    return log_softmax(input, dim, dtype=torch.float32 if half_to_float else None)
