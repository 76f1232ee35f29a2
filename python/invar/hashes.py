"""Hashes of logits (docs/numerics.md, 8): what an answer's logits_hash is made of, for logits of a trainer of one's own."""
from __future__ import annotations

import hashlib
from typing import Any

_CHUNK = 4096  # logits


def position_hash(logits: Any) -> bytes:
    """The hash of one position's logits: a float32 array [V] of numpy."""
    import numpy
    row = numpy.asarray(logits, dtype="<f4") + numpy.float32(0)  # -0 as +0
    chunks = (hashlib.sha256(row[begin:begin + _CHUNK].tobytes()).digest() for begin in range(0, len(row), _CHUNK))
    return hashlib.sha256(b"".join(chunks)).digest()


def logits_hash(rows: Any) -> str:
    """The hash of the positions that drew an answer's tokens, in their order: [n, V].

    It equals outputs[i].logits_hash where every bit is equal.
    """
    value = bytes(32)
    for row in rows:
        value = hashlib.sha256(value + position_hash(row)).digest()
    return value.hex()
