"""From prompts and parameters to what the engine is asked, and from its answers to RequestOutput."""
from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional, Union

from ._invar import GenerateOptions, Generation, RankedLogprob, sampling_defaults
from .outputs import CompletionOutput, Logprob, RequestOutput
from .params import SamplingParams
from .tokenizer import Tokenizer

# A text, token ids, or a dict with one of them.
Prompt = Union[str, "list[int]", "dict[str, Any]"]


# Parameters that make a token's place in the processed distribution depend on the answer before it, so that no prompt
# has it.
_LOOKING_BACK = ("presence_penalty", "frequency_penalty", "repetition_penalty", "bad_words", "min_tokens", "structured_outputs")


class Asked(NamedTuple):
    """One prompt with its parameters."""

    text: Optional[str]
    tokens: list[int]
    params: SamplingParams
    seed: int  # of its answers: the params' or one that was drawn
    lora: str = ""  # the directory of its adapter; empty: none

    def jobs(self, vocabulary: int, mode: str) -> list[tuple[list[int], GenerateOptions]]:
        """The engine's requests: one for each of the n answers. mode: the LLM's of log-probabilities."""
        jobs = self._jobs(vocabulary, mode)
        for _, options in jobs:
            options.lora = self.lora
        return jobs

    def _jobs(self, vocabulary: int, mode: str) -> list[tuple[list[int], GenerateOptions]]:
        forced = self.params.trace_decode_token_ids
        if forced is None:
            return [(self.tokens, self.params.options(vocabulary, self.seed, i)) for i in range(self.params.n)]
        # The answer is known: it joins the prompt, whose log-probabilities have the bits that decoding has.
        if self.params.n != 1 or not forced:
            raise ValueError("trace_decode_token_ids: expected n=1 and at least one token, found "
                             f"n={self.params.n} and {len(forced)} tokens")
        mode = self.params.logprobs_mode or mode
        looking_back = [name for name in _LOOKING_BACK if getattr(self.params, name) != getattr(SamplingParams(), name)]
        if mode.startswith("processed") and looking_back:
            raise ValueError(f"trace_decode_token_ids: expected no {looking_back[0]}, which looks back at an answer, beside "
                             f"{mode}")
        asked = self.params.clone(max_tokens=1, min_tokens=0, prompt_logprobs=self.params.logprobs or 0, logprobs=None,
                                  logprobs_mode=mode, ignore_eos=True, stop=None, receipt=False,
                                  structured_outputs=None, trace_decode_token_ids=None)
        return [([*self.tokens, *forced], asked.options(vocabulary, self.seed))]


def is_ids(prompt: object) -> bool:
    """Whether it is token ids and not several prompts."""
    return isinstance(prompt, (list, tuple)) and len(prompt) > 0 and all(
        isinstance(token, int) and not isinstance(token, bool) for token in prompt)


def prompts_of(prompts: Union[Prompt, Sequence[Prompt]]) -> list[Prompt]:
    """One prompt or several as a list."""
    if isinstance(prompts, (str, dict)) or is_ids(prompts):
        return [prompts]  # type: ignore[list-item]
    if not isinstance(prompts, (list, tuple)):
        raise TypeError(f"expected a prompt or a list of prompts, found {type(prompts).__name__}")
    return list(prompts)  # type: ignore[arg-type]


def tokens_of(prompt: Prompt, tokenizer: Tokenizer) -> tuple[Optional[str], list[int]]:
    """The prompt's text, where it has one, and its token ids."""
    if isinstance(prompt, dict):
        if prompt.get("prompt_token_ids") is not None:
            text = prompt.get("prompt")
            ids = prompt["prompt_token_ids"]
            return text, [int(token) for token in ids]
        if prompt.get("multi_modal_data"):
            raise ValueError("expected a prompt of text or token ids, found multi_modal_data")
        prompt = prompt.get("prompt")  # type: ignore[assignment]
    if isinstance(prompt, str):
        return prompt, tokenizer.encode(prompt)
    if is_ids(prompt):
        return None, [int(token) for token in prompt]
    raise TypeError('expected a prompt as text, token ids, {"prompt": text} or {"prompt_token_ids": ids}, found '
                    f"{prompt!r:.80}")


def default_params(model: str) -> SamplingParams:
    """The sampling parameters of the model's files, or those that its family's publisher recommends (docs/models.md)."""
    return SamplingParams(**sampling_defaults(model)) if os.path.exists(model) else SamplingParams()


def _dict(token: int, logprob: float, rank: int, top: list[RankedLogprob], tokenizer: Tokenizer) -> dict[int, Logprob]:
    found = {one.token: Logprob(one.logprob, one.rank, tokenizer.decode(one.token)) for one in top}
    if token not in found:
        found[token] = Logprob(logprob, rank, tokenizer.decode(token))
    return found


def _dicts(tokens: list[int], logprobs: list[float], ranks: list[int], top: list[list[RankedLogprob]],
           tokenizer: Tokenizer, most: int) -> list[dict[int, Logprob]]:
    return [_dict(token, logprob, rank, best[:most], tokenizer)
            for token, logprob, rank, best in zip(tokens, logprobs, ranks, top)]


def _most(count: Optional[int], vocabulary: int) -> int:
    return vocabulary if count == -1 else count or 0


def completion(index: int, asked: Asked, g: Generation, tokenizer: Tokenizer) -> CompletionOutput:
    """An answer that is whole."""
    params = asked.params
    reason: Union[int, str, None] = g.stop or None
    if g.finish_reason == "stop" and not g.stop and g.tokens and g.tokens[-1] in (params.stop_token_ids or []):
        reason = g.tokens[-1]
    logprobs = None
    if params.logprobs is not None:
        logprobs = _dicts(g.tokens, g.logprobs, g.ranks, g.top_logprobs, tokenizer,
                          _most(params.logprobs, tokenizer.vocab_size))
    return CompletionOutput(
        index=index, text=g.text if params.detokenize else "", token_ids=g.tokens, logprobs=logprobs,
        cumulative_logprob=sum(g.logprobs) if logprobs is not None else None,
        finish_reason="abort" if g.finish_reason == "cancelled" else g.finish_reason, stop_reason=reason,
        logits_hash=g.logits_hash, receipt=json.loads(g.receipt) if g.receipt else None, seed=asked.seed)


def _traced(asked: Asked, g: Generation, tokenizer: Tokenizer) -> CompletionOutput:
    """The answer that was given, with its log-probabilities."""
    forced = list(asked.params.trace_decode_token_ids)  # type: ignore[arg-type]
    at = len(asked.tokens) - 1
    logprobs = _dicts(forced, g.prompt_logprobs[at:], g.prompt_ranks[at:], g.top_prompt_logprobs[at:], tokenizer,
                      _most(asked.params.logprobs, tokenizer.vocab_size))
    return CompletionOutput(index=0, text=tokenizer.decode(forced, asked.params.skip_special_tokens), token_ids=forced,
                            logprobs=logprobs, cumulative_logprob=sum(g.prompt_logprobs[at:]), finish_reason="length")


def output_of(request_id: str, asked: Asked, generations: list[Generation], tokenizer: Tokenizer,
              weight_version: str) -> RequestOutput:
    """A prompt whose answers are whole."""
    if asked.params.trace_decode_token_ids is not None:
        return RequestOutput(request_id, asked.text, asked.tokens, None, [_traced(asked, generations[0], tokenizer)],
                             True, weight_version)
    first = generations[0]
    prompt_logprobs: Optional[list[Optional[dict[int, Logprob]]]] = None
    if asked.params.prompt_logprobs is not None:
        prompt_logprobs = [None, *_dicts(asked.tokens[1:], first.prompt_logprobs, first.prompt_ranks,
                                         first.top_prompt_logprobs, tokenizer,
                                         _most(asked.params.prompt_logprobs, tokenizer.vocab_size))]
    outputs = [completion(i, asked, one, tokenizer) for i, one in enumerate(generations)]
    return RequestOutput(request_id, asked.text, asked.tokens, prompt_logprobs, outputs, True, weight_version)
