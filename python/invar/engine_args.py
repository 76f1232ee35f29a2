"""The arguments of LLM and AsyncLLM: vLLM's names to what opens a session."""
from __future__ import annotations

import json
from typing import Any

from . import bundled
from ._invar import SessionOptions
from .keywords import refuse_unknown, refuse_values

# Keywords with a meaning, by the option that they are.
_OPTIONS = {
    "load_format": "load_format", "arith": "arithmetic", "arithmetic": "arithmetic", "weights": "weights",
    "device": "device", "instruction_set": "instruction_set", "threads": "threads",
    "tensor_parallel_size": "tensor_parallel_size", "kv_cache_gib": "kv_cache_gib", "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens", "enable_prefix_caching": "enable_prefix_caching",
    "scheduling_policy": "scheduling_policy", "receipt_key": "receipt_key", "logprobs_mode": "logprobs_mode",
}
_OTHERS = ("seed", "enable_lora", "max_loras", "max_lora_rank", "max_model_len", "speculative_config", "kv_cache_memory_bytes",
           "generation_config")
# Keywords of vLLM that mean nothing here, whatever their value.
_MEANINGLESS = (
    "gpu_memory_utilization", "enforce_eager", "trust_remote_code", "disable_log_stats", "disable_custom_all_reduce",
    "swap_space", "enable_sleep_mode", "distributed_executor_backend", "compilation_config", "enable_chunked_prefill",
    "tokenizer_mode", "max_seq_len_to_capture", "limit_mm_per_prompt", "revision", "tokenizer_revision", "hf_token",
    "download_dir", "model_impl", "served_model_name", "disable_log_requests", "block_size", "async_scheduling",
    "enable_log_requests", "hf_config_path", "mm_processor_kwargs", "runner", "convert", "max_logprobs",
    "generation_config_path", "disable_cascade_attn", "structured_outputs_config", "config_format", "task",
    "cpu_offload_gb", "max_parallel_loading_workers", "max_cpu_loras", "use_tqdm_on_load", "disable_async_output_proc")
# Keywords of vLLM that mean nothing with these values; why others are refused.
_REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "dtype": (("auto", "bfloat16"), "the checkpoint's types decide (docs/numerics.md, 0.1)"),
    "quantization": ((None,), "the checkpoint's types decide"),
    "kv_cache_dtype": (("auto", "bfloat16"), "keys and values are bf16"),
    "tokenizer": ((None,), "the model's directory has its tokenizer"),
    "skip_tokenizer_init": ((False,), "the tokenizer is always loaded"),
    "pipeline_parallel_size": ((1,), "stages are for `invar serve`"),
    "data_parallel_size": ((1,), "open another LLM"),
    "hf_overrides": ((None, {}), "change config.json"),
    "worker_extension_cls": ((None, ""), "workers run no Python"),
    "enable_expert_parallel": ((False,), "experts are not distributed"),
    "calculate_kv_scales": ((False,), "keys and values have no scales"),
}


def session_options(where: str, model: str, given: dict[str, Any]) -> SessionOptions:
    """The arguments that open the session. Raises TypeError for unknown keywords, ValueError for values that are not supported."""
    refuse_unknown(where, given, (*_OPTIONS, *_OTHERS, *_MEANINGLESS, *_REFUSED))
    if given.get("tokenizer") == model:
        given = {**given, "tokenizer": None}
    refuse_values(where, given, _REFUSED)
    options = SessionOptions()
    _set(where, options, "model", bundled.found(str(model)))
    for name, option in _OPTIONS.items():
        if given.get(name) is not None:
            _set(where, options, option, given[name])
    if options.load_format == "dummy":
        options.load_format = f"dummy:{int(given.get('seed') or 0)}"
    length = given.get("max_model_len")
    _set(where, options, "max_model_len", 0 if length is None else length)
    if given.get("kv_cache_memory_bytes") is not None:
        options.kv_cache_gib = int(given["kv_cache_memory_bytes"]) / 2**30
    if given.get("enable_lora"):
        _set(where, options, "max_loras", given.get("max_loras") or 16)
        _set(where, options, "max_lora_rank", given.get("max_lora_rank") or 256)
    options.speculative_config = _speculation(given.get("speculative_config"))
    return options


def _set(where: str, options: SessionOptions, name: str, value: Any) -> None:
    try:
        setattr(options, name, value)
    except TypeError:
        raise TypeError(f"{where}: {name} cannot be {value!r}") from None


def _speculation(config: Any) -> str:
    if not config:
        return ""
    if isinstance(config, str):
        config = json.loads(config)
    if "model" in config:
        config = {**config, "model": bundled.found(config["model"])}
    return json.dumps(config)
