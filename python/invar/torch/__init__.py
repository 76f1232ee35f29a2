"""The engine's operations for PyTorch: forward bits of the engine, backward bits of the trainer (docs/python.md).

Everything between products is float32, as in the engine. What enters a product is rounded to bf16 on the way in, weights and
biases too, so parameters may be float32 masters of bf16 weights, or bf16. On the CPU and on CUDA, backwards, too.
"""
from .experts import route_experts, weighted_sum
from .functions import (attention, embedding, gated_linear, linear, log_softmax_gather, packed_attention, packings,
                        paged_attention, paged_cache, rms_norm, rope, row_parallel_runs, silu_mul)
from .hashes import logits_hash
from .processed import processed_logits

__all__ = ["attention", "embedding", "gated_linear", "linear", "log_softmax_gather", "logits_hash", "packed_attention", "packings",
           "paged_attention", "paged_cache", "processed_logits", "rms_norm", "rope",
           "route_experts", "row_parallel_runs", "silu_mul", "weighted_sum"]
