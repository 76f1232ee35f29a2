"""Low-rank adapters by request, under vLLM's name."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional, Union


class LoRARequest(NamedTuple):
    """An adapter as PEFT saves it. Its files say which one it is: name and number are the caller's own."""

    lora_name: str
    lora_int_id: int
    lora_path: str


Adapters = Union[LoRARequest, Sequence[Optional[LoRARequest]], None]


def paths_of(given: Adapters, count: int) -> list[str]:
    """The directory for each of `count` prompts; empty: the model alone."""
    listed = [given] * count if given is None or isinstance(given, LoRARequest) else list(given)
    if len(listed) != count or not all(one is None or isinstance(one, LoRARequest) for one in listed):
        raise ValueError(f"lora_request: expected a LoRARequest, one or {count}, found {len(listed)} values")
    for one in listed:
        if one is not None and not one.lora_path:
            raise ValueError(f"lora_request: expected a directory as lora_path of {one.lora_name!r}, found none")
    return [one.lora_path if one else "" for one in listed]
