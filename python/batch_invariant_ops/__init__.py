"""The published names of thinking-machines-lab's batch_invariant_ops, on Invar's orders: code that imports them runs unchanged.

In the mode aten::mm, addmm, bmm, _log_softmax and mean.dim have one order each (docs/numerics.md): a row's bits do not depend
on the rows beside it. bf16 products sum in float32, on the CPU in the order `portable` and on CUDA in `hopper`, and are rounded
once; float32 ones are the weight mode f32.
"""
from .mode import (AttentionBlockSize, disable_batch_invariant_mode, enable_batch_invariant_mode,
                   get_batch_invariant_attention_block_size, is_batch_invariant_mode_enabled, set_batch_invariant_mode)
from .operations import log_softmax, matmul_persistent, mean_dim

__all__ = ["AttentionBlockSize", "disable_batch_invariant_mode", "enable_batch_invariant_mode",
           "get_batch_invariant_attention_block_size", "is_batch_invariant_mode_enabled", "log_softmax", "matmul_persistent",
           "mean_dim", "set_batch_invariant_mode"]
