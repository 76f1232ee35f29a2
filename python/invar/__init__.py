"""Invar in Python: language models whose answers' bits depend on the request alone.

>>> import invar
>>> llm = invar.LLM(model="models/story")
>>> llm.generate("Once upon a time", invar.SamplingParams(max_tokens=8, seed=1))[0].outputs[0].text

The names are those of vLLM's offline API. docs/python.md has the whole of it.
"""
from importlib import import_module
from typing import TYPE_CHECKING

from .bundled import bundled_model
from .lora import LoRARequest
from .outputs import (CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput, Logprob, RequestOutput, ScoringOutput,
                      ScoringRequestOutput)
from .params import RequestOutputKind, SamplingParams, StructuredOutputsParams

if TYPE_CHECKING:
    from .async_llm import AsyncLLM
    from .llm import LLM
    from .tokenizer import Tokenizer

__version__ = "0.1.0"
__all__ = ["AsyncLLM", "CompletionOutput", "EmbeddingOutput", "EmbeddingRequestOutput", "LLM", "LoRARequest", "Logprob",
           "RequestOutput", "RequestOutputKind", "SamplingParams", "ScoringOutput", "ScoringRequestOutput",
           "StructuredOutputsParams", "Tokenizer", "bundled_model"]

# Loaded when they are asked for: an import costs a command-line tool as little as it can.
_LATER = {"LLM": "llm", "AsyncLLM": "async_llm", "Tokenizer": "tokenizer"}


def __getattr__(name: str) -> object:
    if name in _LATER:
        return getattr(import_module("." + _LATER[name], __name__), name)
    raise AttributeError(f"module 'invar' has no attribute {name!r}")
