"""How an answer is made: vLLM's SamplingParams, its names and defaults."""
from __future__ import annotations

import json
import random
from enum import IntEnum
from typing import Any, Optional, Union

from ._invar import GenerateOptions
from .keywords import refuse_unknown, refuse_values


class RequestOutputKind(IntEnum):
    """The contents of a stream's step: all of the answer so far, what is new, or its end alone."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class StructuredOutputsParams:
    """The form of an answer, one of: json (a schema, dict or text), regex, choice, grammar (GBNF), json_object."""

    _NAMES = ("json", "regex", "choice", "grammar", "json_object")

    def __init__(self, **form: Any) -> None:
        refuse_unknown("StructuredOutputsParams", form, self._NAMES)
        self.form = {name: value for name, value in form.items() if value is not None}

    def to_json(self) -> str:
        """The same as the server's field structured_outputs."""
        return json.dumps(self.form)


# Parameters that have another form in GenerateOptions, or no place there.
_OWN: dict[str, Any] = dict(
    n=1, seed=None, stop=None, stop_token_ids=None, bad_words=None, max_tokens=16, logprobs=None, prompt_logprobs=None,
    logprobs_mode=None, detokenize=True, output_kind=RequestOutputKind.CUMULATIVE, structured_outputs=None, logit_bias=None,
    allowed_token_ids=None, trace_decode_token_ids=None)
# Those that it has as they are, with its defaults.
_SAME: dict[str, Any] = {
    name: getattr(GenerateOptions(), name) for name in vars(GenerateOptions)
    if not name.startswith("_") and name not in (*_OWN, "choice", "lora", "top_logprobs")}
_DEFAULTS = {**_OWN, **_SAME}
# vLLM's parameters, the values of each that ask for nothing, and why others are refused.
_REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "spaces_between_special_tokens": ((True,), "special tokens have spaces between them as the tokenizer says"),
    "truncate_prompt_tokens": ((None,), "cut the prompt before"),
    "flat_logprobs": ((False,), "logprobs are dicts"),
    "logprob_token_ids": ((None,), "ask for logprobs=-1"),
    "guided_decoding": ((None,), "it is called structured_outputs"),
    "extra_args": ((None, {}), "nothing reads them"),
    "repetition_detection": ((None,), "nothing detects repetitions"),
    "routed_experts_prompt_start": ((None, 0), "no experts are reported"),
    "logits_processors": ((None, []), "Python does not see logits between steps"),
    "best_of": ((None, 1), "ask for n answers and choose"),
    "thinking_token_budget": ((None,), "thoughts have no budget of their own"),
}


def _list(value: "Union[str, list[str], None]") -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


class SamplingParams:
    """How answers are made. Names and defaults are vLLM's. seed None: one is drawn for each prompt, and its outputs say which.

    max_tokens None: as many as the context leaves. logprobs k: of each token and the k likeliest beside it, -1 for all of
    the vocabulary. logprobs_mode: "raw_logprobs" (of the model's logits), "processed_logprobs" (of what is sampled from),
    "scaled_logprobs" (of that row before top-k, top-p and min-p), "raw_logits" or "processed_logits"; None: the LLM's,
    whose own default is the first. logit_bias {token id: what is added to its logit}. trace_decode_token_ids: the answer
    is these tokens; their log-probabilities are computed. receipt: a signed receipt of each answer. logits_hash: whether logits are hashed,
    which takes time in proportion to the vocabulary. Unknown names raise TypeError.
    """

    __slots__ = tuple(_DEFAULTS)

    def __init__(self, **given: Any) -> None:
        refuse_unknown("SamplingParams", given, (*_DEFAULTS, *_REFUSED))
        refuse_values("SamplingParams", given, _REFUSED)
        for name, default in _DEFAULTS.items():
            setattr(self, name, given.get(name, default))
        if not isinstance(self.n, int) or isinstance(self.n, bool) or not 1 <= self.n <= 16384:
            raise ValueError(f"SamplingParams: expected n from 1 to 16384, found {self.n!r}")

    def __repr__(self) -> str:
        changed = ((name, getattr(self, name)) for name in _DEFAULTS)
        return f"SamplingParams({', '.join(f'{n}={v!r}' for n, v in changed if v != _DEFAULTS[n])})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SamplingParams) and all(getattr(self, n) == getattr(other, n) for n in _DEFAULTS)

    def clone(self, **changes: Any) -> "SamplingParams":
        """The same but for `changes`."""
        return SamplingParams(**{**{name: getattr(self, name) for name in _DEFAULTS}, **changes})

    def options(self, vocabulary: int, seed: int = 0, choice: int = 0) -> GenerateOptions:
        """The engine's parameters for answer `choice` of the n, by this seed."""
        o = GenerateOptions()
        for name in _SAME:
            _set(o, name, getattr(self, name))
        o.choice = choice
        if self.max_tokens is not None and (not isinstance(self.max_tokens, int) or self.max_tokens < 1):
            raise ValueError(f"SamplingParams: expected max_tokens of 1 or more, found {self.max_tokens!r}")
        _set(o, "max_tokens", self.max_tokens or 0)
        _set(o, "seed", seed % 2**64)
        _set(o, "stop", _list(self.stop))
        _set(o, "bad_words", _list(self.bad_words))
        _set(o, "stop_token_ids", list(self.stop_token_ids or []))
        _set(o, "allowed_token_ids", list(self.allowed_token_ids or []))
        _set(o, "logit_bias", sorted((int(token), bias) for token, bias in (self.logit_bias or {}).items()))
        tops = [_top(name, getattr(self, name), vocabulary) for name in ("logprobs", "prompt_logprobs")]
        o.logprobs, o.prompt_logprobs = (top is not None for top in tops)
        o.top_logprobs = max(top or 0 for top in tops)
        _set(o, "logprobs_mode", "" if self.logprobs_mode is None else self.logprobs_mode)
        form = self.structured_outputs
        if isinstance(form, dict):
            form = StructuredOutputsParams(**form)
        if form is not None and not isinstance(form, StructuredOutputsParams):
            raise TypeError(f"SamplingParams: expected StructuredOutputsParams, found {type(form).__name__}")
        o.structured_outputs = form.to_json() if form else ""
        return o


def _set(options: GenerateOptions, name: str, value: Any) -> None:
    try:
        setattr(options, name, value)
    except TypeError:
        raise TypeError(f"SamplingParams: {name} cannot be {value!r}") from None


class Seeds:
    """Draws the seeds of requests that name none. seed: of the draws, so that a program repeats them; None: they differ."""

    def __init__(self, seed: Optional[int]) -> None:
        self._random = random.SystemRandom() if seed is None else random.Random(_checked("LLM", seed))

    def of(self, params: SamplingParams) -> int:
        """The request's own, or one that every JSON reader keeps."""
        return self._random.getrandbits(53) if params.seed is None else _checked("SamplingParams", params.seed)


def _checked(where: str, seed: Any) -> int:
    if not isinstance(seed, int) or isinstance(seed, bool) or not -(2**63) <= seed < 2**64:
        raise ValueError(f"{where}: expected a seed of 64 bits, found {seed!r}")
    return seed


def _top(name: str, count: Optional[int], vocabulary: int) -> Optional[int]:
    if count is None:
        return None
    if not isinstance(count, int) or isinstance(count, bool) or not -1 <= count <= vocabulary:
        raise ValueError(f"SamplingParams: expected {name} from -1 to {vocabulary}, found {count!r}")
    return vocabulary if count == -1 else count
