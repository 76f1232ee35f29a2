"""The hash of a trainer's logits, to be compared with a sampler's."""
from __future__ import annotations

from torch import Tensor

from .. import hashes


def logits_hash(logits: Tensor) -> str:
    """The logits_hash of an answer, by the positions that drew its tokens [n, V] (the prompt's last position first).

    Equal to outputs[i].logits_hash where every bit of every logit is equal, of the whole vocabulary at each position.
    """
    if logits.dim() != 2:
        raise ValueError(f"logits_hash: expected logits [n, V], found {list(logits.shape)}")
    return hashes.logits_hash(logits.detach().to("cpu").float().numpy())
