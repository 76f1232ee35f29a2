"""TRL's GRPO with Invar on both sides: the engine samples, CausalLM trains, and their log-probabilities are the same bits.

    model = InvarModel.open(DIRECTORY)
    llm = invar.LLM(DIRECTORY)
    trainer = InvarGRPOTrainer(model=model, rollout_func=Rollout(llm, max_tokens=64), reward_funcs=..., args=GRPOConfig(...))

`Rollout` alone is a generation function for any trainer of TRL that takes a `rollout_func`; the log-probabilities are then the
engine's and the trainer's own differ from them as its kernels do.
"""
from __future__ import annotations

import copy
import os
from collections import Counter
from typing import Any, Optional

import torch
from huggingface_hub import save_torch_state_dict
from transformers import AutoConfig, GenerationConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from trl import GRPOTrainer

import invar
from invar.models import CausalLM


class InvarModel(PreTrainedModel):
    """CausalLM as transformers' trainers want a model. state_dict has the checkpoint's names."""

    supports_gradient_checkpointing = False
    _tied_weights_keys = None

    def __init__(self, config: Any, causal_lm: CausalLM) -> None:
        super().__init__(config)
        object.__setattr__(self, "causal_lm", causal_lm)  # no module of its own, whose name would stand before its tensors'
        for name, child in causal_lm.named_children():
            self.add_module(name, child)
        self.generation_config = GenerationConfig()

    @classmethod
    def open(cls, model: str) -> "InvarModel":
        """The model of a Hugging Face directory."""
        config = AutoConfig.from_pretrained(model)
        config._name_or_path = str(model)
        return cls(config, CausalLM.from_pretrained(str(model)))

    @classmethod
    def from_pretrained(cls, model: str, *_: Any, **__: Any) -> "InvarModel":  # type: ignore[override]
        """The same under transformers' name."""
        return cls.open(model)

    def save_pretrained(self, directory: Any, *_: Any, state_dict: Optional[dict[str, torch.Tensor]] = None,
                        is_main_process: bool = True, max_shard_size: Any = "50GB", **__: Any) -> None:
        """Writes the directory that transformers, Invar and from_pretrained open: the float32 masters, bit by bit. An engine
        takes over what named_weights gives, rounded as the forward reads it."""
        if not is_main_process:
            return
        os.makedirs(directory, exist_ok=True)
        config = copy.deepcopy(self.config)
        config.dtype = torch.float32
        config.save_pretrained(directory)
        tensors = self.state_dict() if state_dict is None else state_dict
        save_torch_state_dict({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, directory,
                              max_shard_size=max_shard_size)

    def named_weights(self) -> list[tuple[str, torch.Tensor]]:
        """What the engine takes over: bf16, by the checkpoint's names."""
        return [(name, p.detach().to(torch.bfloat16)) for name, p in self.causal_lm.named_parameters()]

    def forward(self, input_ids: torch.Tensor, attention_mask: Optional[torch.Tensor] = None,
                **_: Any) -> CausalLMOutputWithPast:
        """Logits [B, S, V]."""
        return CausalLMOutputWithPast(logits=self.causal_lm(input_ids, attention_mask).logits)


def sampling_of(args: Any) -> dict[str, Any]:
    """What GRPOConfig says of sampling, by SamplingParams' names."""
    found = {name: getattr(args, name, None) for name in ("temperature", "top_k", "top_p", "min_p")}
    return {name: value for name, value in found.items() if value is not None}


class InvarGRPOTrainer(GRPOTrainer):
    """GRPOTrainer whose log-probabilities are the engine's: numerics 3 and 6 instead of torch.logsumexp.

    They are of the distribution that is sampled from: by GRPOConfig's temperature, top_k, top_p and min_p, which `Rollout`
    takes over. `logprobs_mode="raw_logprobs"` of both is the model's own distribution.
    """

    logprobs_mode = "processed_logprobs"

    def _get_per_token_logps_and_entropies(self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor,
                                           logits_to_keep: int, *_: Any, **__: Any) -> tuple[Any, ...]:
        causal_lm = self.accelerator.unwrap_model(model).causal_lm
        logits = causal_lm(input_ids, attention_mask).logits
        sampling = sampling_of(self.args) if self.logprobs_mode == "processed_logprobs" else {}
        found = causal_lm.log_probs(input_ids, attention_mask, logits, **sampling)[:, -logits_to_keep:]
        with torch.no_grad():  # shown, and no part of the loss
            logs = torch.log_softmax(logits[:, -logits_to_keep - 1:-1] / self.temperature, dim=-1)
            entropies = -(logs.exp() * logs).sum(dim=-1)
        return found, entropies, None


class Rollout:
    """TRL's rollout_func: answers of the engine to the prompts, by the trainer's weights of this step.

    `sampling`: fields of SamplingParams; temperature, top_k, top_p and min_p are the trainer's where they are not given, and
    log-probabilities those of the distribution that is sampled from. Answers to equal prompts differ by their seeds, which are made of the
    step, the rank and the number of the answer: a run's rollouts are a function of its weights and steps.
    """

    def __init__(self, llm: invar.LLM, **sampling: Any) -> None:
        self.llm = llm
        self.sampling = {"logprobs": 0, "logprobs_mode": "processed_logprobs", **sampling}
        self._synced = -1

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        step = int(trainer.state.global_step)
        if step != self._synced:
            self.llm.update_weights(self._weights(trainer), weight_version=str(step))
            self._synced = step
        tokenizer = self.llm.get_tokenizer()
        ranks, rank = trainer.accelerator.num_processes, trainer.accelerator.process_index
        seen: Counter[str] = Counter()
        asked, params = [], []
        for prompt in prompts:
            ids = tokenizer.encode(prompt) if isinstance(prompt, str) else tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True)
            asked.append({"prompt_token_ids": ids})
            seen[str(prompt)] += 1
            params.append(invar.SamplingParams(**{"seed": (step * 1_000_003 + seen[str(prompt)]) * ranks + rank, **sampling_of(trainer.args),
                                                  **self.sampling}))
        outputs = self.llm.generate(asked, params, use_tqdm=False)
        answers = [output.outputs[0] for output in outputs]
        return {"prompt_ids": [output.prompt_token_ids for output in outputs],
                "completion_ids": [answer.token_ids for answer in answers],
                "logprobs": [[entry[token].logprob for token, entry in zip(answer.token_ids, answer.logprobs)]
                             for answer in answers]}

    def _weights(self, trainer: Any) -> Any:
        model = trainer.accelerator.unwrap_model(trainer.model)
        if hasattr(model, "named_weights"):
            return model.named_weights()
        names = {name for name, _, _ in self.llm.tensors()}
        return [(name, p.detach().to(torch.bfloat16)) for name, p in model.named_parameters() if name in names]
