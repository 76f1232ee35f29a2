"""The mode: whether PyTorch's operators are Invar's."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple, Optional

import torch

from . import operations


class AttentionBlockSize(NamedTuple):
    """The settings for callers of an attention that depends on its blocks."""

    block_m: int
    block_n: int


_library: Optional[torch.library.Library] = None


def is_batch_invariant_mode_enabled() -> bool:
    """Whether PyTorch's operators are overridden."""
    return _library is not None


def enable_batch_invariant_mode() -> None:
    """Overrides aten::mm, addmm, bmm, _log_softmax and mean.dim on the CPU and on CUDA."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("aten", "IMPL")
    for name, operation in {"aten::mm": operations.mm, "aten::addmm": operations.addmm, "aten::bmm": operations.bmm,
                            "aten::_log_softmax": operations.softmax_kernel, "aten::mean.dim": operations.mean_dim}.items():
        for device in ("CPU", "CUDA"):
            _library.impl(name, operation, device, allow_override=True)


def disable_batch_invariant_mode() -> None:
    """PyTorch's operators are its own again."""
    global _library
    if _library is not None:
        _library._destroy()
    _library = None


@contextlib.contextmanager
def set_batch_invariant_mode(enabled: bool = True) -> Iterator[None]:
    """The mode within a `with`; what it was before afterwards."""
    before = is_batch_invariant_mode_enabled()
    (enable_batch_invariant_mode if enabled else disable_batch_invariant_mode)()
    try:
        yield
    finally:
        (enable_batch_invariant_mode if before else disable_batch_invariant_mode)()


def get_batch_invariant_attention_block_size() -> AttentionBlockSize:
    """As published; Invar's attention does not depend on it."""
    return AttentionBlockSize(block_m=16, block_n=16)
