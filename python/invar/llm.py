"""A model that is open, offline: prompts in, answers out."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional, Union, overload

from ._invar import Session, Update
from .engine_args import session_options
from .lora import Adapters, paths_of
from .outputs import EmbeddingOutput, EmbeddingRequestOutput, RequestOutput, ScoringRequestOutput
from .params import SamplingParams, Seeds
from .questions import Questions, Texts
from .requests import Asked, Prompt, default_params, is_ids, output_of, prompts_of, tokens_of
from .tokenizer import Message, Tokenizer
from .weights import Weights

Params = Union[SamplingParams, Sequence[SamplingParams], None]


class LLM(Questions, Weights):
    """A model with its tokenizer. Every call may come from any thread; calls of several threads are computed together.

    model: a Hugging Face directory, or "models/story", which Invar brings along. Keywords are those of vLLM's engine and,
    beside them, arith ("portable", "hopper", "pair", "control"), threads (0: one per core), kv_cache_gib, receipt_key. Some of
    vLLM's mean nothing here and are accepted (gpu_memory_utilization, enforce_eager); unknown ones raise TypeError. seed: of
    the seeds that are drawn for requests without one; None: each program draws others.
    """

    def __init__(self, model: str, **engine_args: Any) -> None:
        options = session_options("LLM", model, engine_args)
        super().__init__(Session(options))
        self.model = options.model
        self._logprobs_mode = options.logprobs_mode
        self._seeds = Seeds(engine_args.get("seed"))
        self._tokenizer = Tokenizer(self.session, self.model)
        self._next_id = 0

    # Answers.

    def generate(self, prompts: Union[Prompt, Sequence[Prompt]], sampling_params: Params = None,
                 use_tqdm: bool = True, lora_request: Adapters = None) -> list[RequestOutput]:
        """The answers to prompts, in their order.

        prompts: a text, token ids, {"prompt": text} or {"prompt_token_ids": ids}, or a list of them. sampling_params: one
        for all or one for each; None: the model's own. lora_request: likewise, with enable_lora. Raises ValueError for a prompt that can never be answered; Ctrl-C
        ends the call.
        """
        listed = prompts_of(prompts)
        asked = []
        adapters = paths_of(lora_request, len(listed))
        for prompt, params, lora in zip(listed, self._params(sampling_params, len(listed)), adapters):
            asked.append(Asked(*tokens_of(prompt, self._tokenizer), params, self._seeds.of(params), lora))
        return self._answer(asked, use_tqdm)

    def chat(self, messages: Union[list[Message], list[list[Message]]], sampling_params: Params = None,
             use_tqdm: bool = True, add_generation_prompt: bool = True, continue_final_message: bool = False,
             tools: Optional[list[dict[str, Any]]] = None,
             chat_template_kwargs: Optional[dict[str, Any]] = None,
             lora_request: Adapters = None) -> list[RequestOutput]:
        """The answers to conversations, by the prompts that the model's chat template makes of them."""
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        asked = []
        adapters = paths_of(lora_request, len(conversations))
        for conversation, params, lora in zip(conversations, self._params(sampling_params, len(conversations)), adapters):
            text = self._tokenizer.render_chat(
                conversation, tools=tools, add_generation_prompt=add_generation_prompt,  # type: ignore[arg-type]
                continue_final_message=continue_final_message, chat_template_kwargs=chat_template_kwargs)
            ids = self._tokenizer.encode(text, add_special_tokens=False)
            asked.append(Asked(text, ids, params, self._seeds.of(params), lora))
        return self._answer(asked, use_tqdm)

    @overload
    def score(self, data_1: Union[Prompt, Sequence[Prompt]],
              data_2: Optional[SamplingParams] = None) -> list[list[float]]: ...

    @overload
    def score(self, data_1: Texts, data_2: Texts, *, instruction: Optional[str] = None) -> list[ScoringRequestOutput]: ...

    def score(self, data_1: Any, data_2: Union[SamplingParams, Texts, None] = None, *,
              instruction: Optional[str] = None) -> Union[list[list[float]], list[ScoringRequestOutput]]:
        """How relevant the texts of data_2 are to data_1, one text or as many; without data_2, how likely prompts are.

        Relevance is what POST /v1/score says, with `instruction` as what makes a text relevant.
        """
        if isinstance(data_2, (str, list, tuple)):
            return self._relevance(data_1, data_2, instruction)
        if instruction is not None:
            raise TypeError("expected texts as data_2 beside an instruction, found none")
        return self._likelihoods(data_1, data_2)

    def _likelihoods(self, prompts: Union[Prompt, Sequence[Prompt]],
                     sampling_params: Optional[SamplingParams]) -> list[list[float]]:
        """ln p(token | the tokens before it) of the second token of each prompt on: [tokens - 1] floats each.

        The bits are those that generate's logprobs have. sampling_params: their temperature, top_k, top_p, min_p and
        logprobs_mode say of which distribution; what looks back at an answer, as penalties do, is not applied.
        """
        params = (sampling_params or SamplingParams(temperature=0, logprobs_mode="raw_logprobs")).clone(
            n=1, max_tokens=1, min_tokens=0, logprobs=None, prompt_logprobs=0)
        jobs = [(tokens_of(prompt, self._tokenizer)[1], params.options(self.vocab_size))
                for prompt in prompts_of(prompts)]
        return [g.prompt_logprobs for g in self.session.generate([j[0] for j in jobs], [j[1] for j in jobs], None)]

    def embed(self, prompts: Union[Prompt, Sequence[Prompt]]) -> list[EmbeddingRequestOutput]:
        """The mean of the final hidden states of each prompt: [hidden size] floats each."""
        tokens = [tokens_of(prompt, self._tokenizer)[1] for prompt in prompts_of(prompts)]
        vectors = self.session.embed(tokens, None)
        return [EmbeddingRequestOutput(self._id(), EmbeddingOutput(vector.tolist()), ids)
                for ids, vector in zip(tokens, vectors)]

    def logits(self, tokens: list[int], positions: Optional[list[int]] = None) -> Any:
        """Logits behind the tokens at `positions` (ascending; None: all): a float32 array [positions, vocabulary].

        torch.from_dlpack(array) reads the same memory.
        """
        return self.session.inspect(list(tokens), self._positions(tokens, positions), [])[0]

    def hidden_states(self, tokens: list[int], layers: Optional[list[int]] = None,
                      positions: Optional[list[int]] = None) -> Any:
        """The residual stream after `layers` (ascending; 0 the first; None: the last): [layers, positions, hidden size]."""
        wanted = [self.session.layers() - 1] if layers is None else list(layers)
        return self.session.inspect(list(tokens), self._positions(tokens, positions), wanted)[1]

    # The loop, for those who drive it themselves.

    def add(self, prompt: Prompt, sampling_params: Optional[SamplingParams] = None) -> int:
        """Adds a request for one answer and returns its id. A seed that is None is drawn; only a given one can be repeated."""
        tokens = tokens_of(prompt, self._tokenizer)[1]
        params = sampling_params or self.get_default_sampling_params()
        if params.n != 1 or params.trace_decode_token_ids is not None:
            raise ValueError("add: expected n=1 and no trace_decode_token_ids")
        return self.session.add(tokens, params.options(self.vocab_size, self._seeds.of(params)))

    def step(self) -> list[Update]:
        """Computes one step and says what became of the requests that were added: a token, the whole answer, an error."""
        return self.session.step()

    def cancel(self, request: int) -> None:
        """Ends a request without another word."""
        self.session.cancel(request)

    def has_work(self) -> bool:
        """Whether `step` has something to do or to say."""
        return self.session.has_work()

    # The model.

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The sampling parameters of the model's files, or those that its family's publisher recommends."""
        return default_params(self.model)

    @property
    def identity(self) -> str:
        """The name of what fixes the bits beside weights and tokens, e.g. "invar-1/portable/bf16/row8.8"."""
        return self.session.identity()

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return self._tokenizer.vocab_size

    @property
    def max_model_len(self) -> int:
        """Tokens of a prompt and its answer at most."""
        return self._tokenizer.model_max_length

    def close(self) -> None:
        """Gives everything back; later calls raise ValueError."""
        self.session.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The steps that the calls above are made of.

    def _id(self) -> str:
        self._next_id += 1
        return str(self._next_id - 1)

    def _params(self, given: Params, count: int) -> list[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        if isinstance(given, SamplingParams):
            return [given] * count
        listed = list(given)
        if len(listed) != count or not all(isinstance(one, SamplingParams) for one in listed):
            raise ValueError(f"expected SamplingParams, one or {count}, found {len(listed)} values")
        return listed

    def _positions(self, tokens: list[int], positions: Optional[list[int]]) -> list[int]:
        if not is_ids(tokens):
            raise TypeError(f"expected token ids, found {tokens!r:.80}")
        return list(range(len(tokens))) if positions is None else list(positions)

    def _answer(self, asked: list[Asked], use_tqdm: bool) -> list[RequestOutput]:
        version = self.weight_version
        jobs = [one.jobs(self.vocab_size, self._logprobs_mode) for one in asked]
        flat = [job for some in jobs for job in some]
        with _Progress(len(flat), use_tqdm) as progress:
            answers = iter(self.session.generate([j[0] for j in flat], [j[1] for j in flat], progress.update))
        return [output_of(self._id(), one, [next(answers) for _ in some], self._tokenizer, version)
                for one, some in zip(asked, jobs)]


class _Progress:
    """A bar of tqdm, where that is wanted and there."""

    def __init__(self, total: int, wanted: bool) -> None:
        self._total = total
        self._bar: Any = None
        self.update: Optional[Callable[[int, int], None]] = None
        if not wanted:
            return
        try:
            from tqdm.auto import tqdm
        except ImportError:
            return
        self._bar = tqdm(total=total, desc="Answers", unit="answer")
        self.update = self._show

    def _show(self, answered: int, tokens: int) -> None:
        self._bar.set_postfix_str(f"{tokens} tokens", refresh=False)
        self._bar.update(answered - self._bar.n)

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if self._bar is not None:
            if kind is None:
                self._bar.update(self._total - self._bar.n)
            self._bar.close()
