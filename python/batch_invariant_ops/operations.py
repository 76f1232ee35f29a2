"""Products, softmax and means in one order each, without autograd: what the mode puts in the place of PyTorch's."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Optional, Union

import torch
from torch import Tensor

from invar.torch import cuda
from invar.torch.library import operators, plain


def _floats(x: Tensor) -> Tensor:
    return cuda.floats(x) if x.is_cuda else plain(x)


def _product(a: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """a weight^T (+ bias) in float32: matrices of bf16 in the order of the device's products, others in f32."""
    if a.is_cuda:
        if a.dtype == torch.bfloat16:
            return cuda.linear(a, [weight], [] if bias is None else [bias], 1, None, "hopper")
        return cuda.matmul_f32(a, weight, bias)
    y, added = torch.empty(a.shape[0], weight.shape[0]), None if bias is None else plain(bias)
    if a.dtype == torch.bfloat16:
        operators("portable").linear(plain(a), [[plain(weight), added]], 1, None, y)
    else:
        operators("portable").matmul_f32(plain(a), plain(weight), added, y)
    return y


def matmul_persistent(a: Tensor, b: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """a [M, K] b [K, N] (+ bias [N]): [M, N] of their type."""
    if a.dtype != b.dtype or a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"matmul: expected matrices of one type that fit, found {a.dtype} {tuple(a.shape)} and {b.dtype} "
                         f"{tuple(b.shape)}")
    if 0 not in (*a.shape, b.shape[1]):
        return _product(a, b.t(), bias).to(a.dtype)
    y = a.new_zeros(a.shape[0], b.shape[1], dtype=torch.float32)
    return (y if bias is None else y + _floats(bias)).to(a.dtype)


def log_softmax(input: Tensor, dim: int = -1, _stacklevel: int = 3, dtype: Optional[torch.dtype] = None) -> Tensor:
    """(x - max) - log(sum of exp(x - max)) along `dim` (numerics 3), of the input's type or `dtype`."""
    moved = _floats(input).movedim(dim, -1).contiguous()
    rows = moved.reshape(-1, moved.shape[-1])
    if rows.numel() == 0:
        return input.clone()
    if rows.is_cuda:
        largest, total = cuda.log_sum_exp(rows)
    else:
        largest, total = torch.empty(rows.shape[0]), torch.empty(rows.shape[0])
        operators("portable").log_sum_exp(rows, largest, total)
    out = (rows - largest[:, None]) - total[:, None]
    return out.view(moved.shape).movedim(-1, dim).to(dtype or input.dtype)


def mean_dim(input: Tensor, dim: Union[int, Sequence[int], None], keepdim: bool = False,
             dtype: Optional[torch.dtype] = None) -> Tensor:
    """The mean along `dim` by sum64 (numerics 3): several dimensions are one vector, the last of them innermost."""
    listed = list(range(input.dim())) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    dims = [d % input.dim() for d in listed]
    kept = [d for d in range(input.dim()) if d not in dims]
    moved = _floats(input).permute(*kept, *dims).contiguous()
    rows = moved.reshape(-1, moved[(0,) * len(kept)].numel() if kept else moved.numel())
    if rows.is_cuda:
        out = cuda.mean(rows)
    else:
        out = torch.empty(rows.shape[0])
        operators("portable").mean(rows, out)
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
    out = a.new_empty(a.shape[0], a.shape[1], b.shape[2])
    for i in range(a.shape[0]):
        out[i] = matmul_persistent(a[i], b[i])
    return out


def softmax_kernel(input: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """aten::_log_softmax."""
    return log_softmax(input, dim, dtype=torch.float32 if half_to_float else None)
