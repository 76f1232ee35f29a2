"""The distribution that a sampler samples from, of a trainer's logits (docs/numerics.md, 6)."""
from __future__ import annotations

import torch
from torch import Tensor

from .library import operators, plain

# The least temperature that is not greedy, and what a smaller one is taken as.
_GREEDY, _LEAST = 1e-5, 0.01


def _divisor(temperature: float) -> float:
    """The divisor of logits."""
    return 1.0 if temperature < _GREEDY else max(temperature, _LEAST)


@torch.library.custom_op("invar::processed_logits", mutates_args=())
def _processed_logits(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float, order: str) -> Tensor:
    rows = plain(logits.cpu())
    out = torch.empty_like(rows)
    operators(order).process_logits(rows, temperature, top_k, top_p, min_p, out)
    return out.to(logits.device)


@_processed_logits.register_fake
def _(logits, temperature, top_k, top_p, min_p, order):
    return logits.new_empty(logits.shape, dtype=torch.float32)


def _setup(ctx, inputs, output):
    logits, temperature, *_ = inputs
    ctx.save_for_backward(output)
    ctx.divisor, ctx.dtype = _divisor(temperature), logits.dtype


def _backward(ctx, d):
    out, = ctx.saved_tensors
    scaled = d.to(torch.float32) / torch.full((1,), ctx.divisor, dtype=torch.float32, device=d.device)
    return torch.where(out == -torch.inf, 0.0, scaled).to(ctx.dtype), None, None, None, None, None


_processed_logits.register_autograd(_backward, setup_context=_setup)


def processed_logits(logits: Tensor, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0,
                     order: str = "portable") -> Tensor:
    """Logits by the temperature, and -inf where top-k, top-p or min-p leave a token out: [..., V] float32.

    log_softmax_gather of them is the sampler's log-probability in the mode processed_logprobs. Names, ranges and what turns a
    filter off are SamplingParams'. Backward: d / temperature where a token is left, else 0; which tokens are left has no
    gradient. Tensors of CUDA are computed on the CPU.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    return _processed_logits(rows, float(temperature), top_k, float(top_p), float(min_p), order).view(logits.shape)
