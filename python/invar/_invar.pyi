"""The C++ module (python/src); LLM and its like are made of it."""
from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy
from numpy.typing import NDArray

Progress = Optional[Callable[[int, int], object]]

class SessionOptions:
    model: str
    load_format: str
    arithmetic: str
    weights: str
    device: str
    instruction_set: str
    threads: int
    tensor_parallel_size: int
    max_model_len: int
    kv_cache_gib: float
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    scheduling_policy: str
    speculative_config: str
    logprobs_mode: str
    max_loras: int
    max_lora_rank: int
    receipt_key: str

class GenerateOptions:
    def __init__(self, other: GenerateOptions = ...) -> None: ...
    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: list[tuple[int, float]]
    allowed_token_ids: list[int]
    seed: int
    stop: list[str]
    stop_token_ids: list[int]
    ignore_eos: bool
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    bad_words: list[str]
    structured_outputs: str
    logprobs: bool
    prompt_logprobs: bool
    top_logprobs: int
    logprobs_mode: str
    priority: int
    cache_salt: str
    lora: str
    choice: int
    receipt: bool

class RankedLogprob:
    token: int
    logprob: float
    rank: int

class GeneratedToken:
    id: int
    index: int
    text: str
    logprob: Optional[float]

class Generation:
    text: str
    prompt_tokens: list[int]
    tokens: list[int]
    logprobs: list[float]
    prompt_logprobs: list[float]
    ranks: list[int]
    prompt_ranks: list[int]
    top_logprobs: list[list[RankedLogprob]]
    top_prompt_logprobs: list[list[RankedLogprob]]
    finish_reason: str
    stop: str
    logits_hash: str
    receipt: str

class Update:
    id: int
    token: Optional[GeneratedToken]
    generation: Optional[Generation]
    error: str

class Session:
    def __init__(self, options: SessionOptions) -> None: ...
    def close(self) -> None: ...
    def identity(self) -> str: ...
    def vocabulary_size(self) -> int: ...
    def hidden_size(self) -> int: ...
    def layers(self) -> int: ...
    def max_model_len(self) -> int: ...
    def generate(self, prompts: Sequence[Sequence[int]], options: Sequence[GenerateOptions],
                 progress: Progress) -> list[Generation]: ...
    def add(self, prompt: Sequence[int], options: GenerateOptions) -> int: ...
    def step(self) -> list[Update]: ...
    def cancel(self, request: int) -> None: ...
    def has_work(self) -> bool: ...
    def embed(self, prompts: Sequence[Sequence[int]], progress: Progress) -> NDArray[numpy.float32]: ...
    def ask(self, endpoint: str, body: str, progress: Progress) -> str: ...
    def inspect(self, tokens: Sequence[int], positions: Sequence[int],
                layers: Sequence[int]) -> tuple[NDArray[numpy.float32], NDArray[numpy.float32]]: ...
    def update_weights(self, named: Sequence[tuple[str, Any]]) -> None: ...
    def load_weights(self, directory: str) -> None: ...
    def tensors(self) -> list[tuple[str, str, list[int]]]: ...
    def tensor(self, name: str) -> NDArray[Any]: ...
    def gpu(self) -> int: ...
    def weights_digest(self) -> str: ...
    def reset_prefix_cache(self) -> None: ...
    def sleep(self, level: int) -> None: ...
    def wake_up(self, tags: list[str]) -> None: ...
    def is_sleeping(self) -> bool: ...
    def tokenize(self, text: str, add_special_tokens: bool) -> list[int]: ...
    def detokenize(self, tokens: Sequence[int], skip_special_tokens: bool) -> str: ...
    def render_chat(self, conversation: str) -> str: ...
    def token_text(self, token: int) -> bytes: ...
    def token_id(self, text: str) -> Optional[int]: ...
    def bos_token(self) -> Optional[int]: ...
    def eos_token(self) -> Optional[int]: ...

def sampling_defaults(model: str) -> dict[str, float]: ...
