"""Which experts rows go through, and the sum of what these say (docs/numerics.md, 7)."""
from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor

from .library import operators, plain


@torch.library.custom_op("invar::route_experts", mutates_args=())
def _route(logits: Tensor, chosen: int, renormalised: bool, given: Optional[Tensor], order: str) -> Tuple[Tensor, Tensor]:
    rows = logits.shape[0]
    ids, weights = torch.empty(rows, chosen, dtype=torch.int32), torch.empty(rows, chosen)
    known = None if given is None else given.to(torch.int32).contiguous()
    operators(order).route(plain(logits), chosen, renormalised, known, ids, weights)
    return ids, weights


@_route.register_fake
def _(logits, chosen, renormalised, given, order):
    shape = (logits.shape[0], chosen)
    return logits.new_empty(shape, dtype=torch.int32), logits.new_empty(shape, dtype=torch.float32)


def _route_setup(ctx, inputs, output):
    logits, _, ctx.renormalised, _, _ = inputs
    ctx.save_for_backward(logits, output[0])


def _route_backward(ctx, _, d):
    logits, ids = ctx.saved_tensors
    shares = torch.softmax(logits.to(torch.float32), -1)
    own = shares.gather(1, ids.long())
    if ctx.renormalised:
        total = own.sum(-1, keepdim=True)
        d = (d - (d * own / total).sum(-1, keepdim=True)) / total
    ds = torch.zeros_like(shares).scatter(1, ids.long(), d)
    return (shares * (ds - (ds * shares).sum(-1, keepdim=True))).to(logits.dtype), None, None, None, None


_route.register_autograd(_route_backward, setup_context=_route_setup)


@torch.library.custom_op("invar::weighted_sum", mutates_args=())
def _weighted_sum(y: Tensor, weights: Tensor, order: str) -> Tensor:
    out = torch.empty(y.shape[0], y.shape[2])
    operators(order).weighted_sum(plain(y), plain(weights), out)
    return out


@_weighted_sum.register_fake
def _(y, weights, order):
    return y.new_empty(y.shape[0], y.shape[2], dtype=torch.float32)


def _sum_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])


def _sum_backward(ctx, d):
    y, weights = ctx.saved_tensors
    return weights[:, :, None] * d[:, None, :], (y * d[:, None, :]).sum(-1), None


_weighted_sum.register_autograd(_sum_backward, setup_context=_sum_setup)


def route_experts(logits: Tensor, chosen: int, renormalised: bool, given: Optional[Tensor] = None,
                  order: str = "portable") -> tuple[Tensor, Tensor]:
    """Routes by a router's logits [T, E] and softmax: the experts [T, k] int32, ascending, and their weights [T, k] float32.

    given: [T, k], the experts of rows that are known, as a sampler chose them; rows of -1 choose their own. On the CPU.
    """
    return _route(logits, chosen, renormalised, given, order)


def weighted_sum(y: Tensor, weights: Tensor, order: str = "portable") -> Tensor:
    """The sum over experts of weights [T, k] times what each says, y [T, k, D], rounded: [T, D] float32. On the CPU."""
    return _weighted_sum(y, weights, order)
