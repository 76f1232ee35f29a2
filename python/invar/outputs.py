"""The outputs of requests. Attributes are vLLM's; logits_hash and receipt are Invar's."""
from __future__ import annotations

from typing import Any, NamedTuple, Optional


class Logprob(NamedTuple):
    """One token at one position: ln p in nats, as SamplingParams.logprobs_mode says; rank 1 is the likeliest."""

    logprob: float
    rank: Optional[int] = None
    decoded_token: Optional[str] = None


class _Record:
    """Shows its fields; two are equal when these are."""

    __slots__: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(getattr(self, n) == getattr(other, n) for n in self.__slots__ if n not in self._not_compared)

    _not_compared: tuple[str, ...] = ()


class CompletionOutput(_Record):
    """One answer.

    token_ids: list of int. logprobs: one dict {token id: Logprob} for each token, or None. cumulative_logprob: their sum.
    finish_reason: "stop", "length", "abort" or None while it grows. stop_reason: the stop text or token that ended it.
    seed: that it was sampled with, given or drawn; answers are equal whatever it was. logits_hash: SHA-256 over the logits of every step, in
    hexadecimal (docs/numerics.md, 8). receipt: a dict, where one was asked for (docs/receipts.md).
    """

    __slots__ = ("index", "text", "token_ids", "cumulative_logprob", "logprobs", "finish_reason", "stop_reason",
                 "logits_hash", "receipt", "seed")
    _not_compared = ("seed",)

    def __init__(self, index: int, text: str = "", token_ids: Optional[list[int]] = None,
                 cumulative_logprob: Optional[float] = None, logprobs: Optional[list[dict[int, Logprob]]] = None,
                 finish_reason: Optional[str] = None, stop_reason: "int | str | None" = None,
                 logits_hash: str = "", receipt: Optional[dict[str, Any]] = None,
                 seed: Optional[int] = None) -> None:
        self.index = index
        self.text = text
        self.token_ids: list[int] = [] if token_ids is None else token_ids
        self.cumulative_logprob = cumulative_logprob
        self.logprobs = logprobs
        self.finish_reason = finish_reason
        self.stop_reason = stop_reason
        self.logits_hash = logits_hash
        self.receipt = receipt
        self.seed = seed

    def finished(self) -> bool:
        """Whether it grows no more."""
        return self.finish_reason is not None


class ScoringOutput(_Record):
    """How relevant a text is to another one."""

    __slots__ = ("score",)

    def __init__(self, score: float) -> None:
        self.score = score


class ScoringRequestOutput(_Record):
    """A pair of texts with its score."""

    __slots__ = ("request_id", "outputs", "finished")
    _not_compared = ("request_id",)

    def __init__(self, request_id: str, outputs: ScoringOutput) -> None:
        self.request_id = request_id
        self.outputs = outputs
        self.finished = True


class RequestOutput(_Record):
    """A prompt with its answers.

    prompt_logprobs: None for the first token, then one dict {token id: Logprob} for each of the prompt's, or None.
    weight_version: what update_weights called the weights that computed it.
    """

    __slots__ = ("request_id", "prompt", "prompt_token_ids", "prompt_logprobs", "outputs", "finished", "weight_version")

    def __init__(self, request_id: str, prompt: Optional[str], prompt_token_ids: list[int],
                 prompt_logprobs: Optional[list[Optional[dict[int, Logprob]]]], outputs: list[CompletionOutput],
                 finished: bool, weight_version: str = "default") -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.prompt_logprobs = prompt_logprobs
        self.outputs = outputs
        self.finished = finished
        self.weight_version = weight_version


class EmbeddingOutput(_Record):
    """embedding: [hidden size] floats, the mean of the final hidden states."""

    __slots__ = ("embedding",)

    def __init__(self, embedding: list[float]) -> None:
        self.embedding = embedding


class EmbeddingRequestOutput(_Record):
    """A prompt with its embedding."""

    __slots__ = ("request_id", "outputs", "prompt_token_ids", "finished")

    def __init__(self, request_id: str, outputs: EmbeddingOutput, prompt_token_ids: list[int]) -> None:
        self.request_id = request_id
        self.outputs = outputs
        self.prompt_token_ids = prompt_token_ids
        self.finished = True
