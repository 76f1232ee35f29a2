"""TRL's GRPO with Invar on both sides: the engine samples, CausalLM trains, and their log-probabilities are the same bits.

    model = InvarModel.open(DIRECTORY)
    llm = invar.LLM(DIRECTORY)
    trainer = InvarGRPOTrainer(model=model, rollout_func=Rollout(llm, max_tokens=64), reward_funcs=..., args=GRPOConfig(...))

`Rollout` alone is a generation function for any trainer of TRL that takes a `rollout_func`; the log-probabilities are then the
engine's and the trainer's own differ from them as its kernels do.
"""
from __future__ import annotations

from collections import Counter
from typing import Any, Optional

import torch
from transformers import AutoConfig, GenerationConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from trl import GRPOTrainer

import invar
from invar.models import CausalLM


class InvarModel(PreTrainedModel):
    """CausalLM as transformers' trainers want a model."""

    supports_gradient_checkpointing = False
    _tied_weights_keys = None

    def __init__(self, config: Any, causal_lm: CausalLM) -> None:
        super().__init__(config)
        self.causal_lm = causal_lm
        self.generation_config = GenerationConfig()

    @classmethod
    def open(cls, model: str) -> "InvarModel":
        """The model of a Hugging Face directory."""
        config = AutoConfig.from_pretrained(model)
        config._name_or_path = str(model)
        return cls(config, CausalLM.from_pretrained(str(model)))

    def named_weights(self) -> list[tuple[str, torch.Tensor]]:
        """What the engine takes over: bf16, by the checkpoint's names."""
        return [(name, p.detach().to(torch.bfloat16)) for name, p in self.causal_lm.named_parameters()]

    def forward(self, input_ids: torch.Tensor, attention_mask: Optional[torch.Tensor] = None,
                **_: Any) -> CausalLMOutputWithPast:
        """Logits [B, S, V]."""
        return CausalLMOutputWithPast(logits=self.causal_lm(input_ids, attention_mask).logits)


class InvarGRPOTrainer(GRPOTrainer):
    """GRPOTrainer whose log-probabilities are the engine's: numerics 3 instead of torch.logsumexp."""

    def _get_per_token_logps_and_entropies(self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor,
                                           logits_to_keep: int, *_: Any, **__: Any) -> tuple[Any, ...]:
        causal_lm = self.accelerator.unwrap_model(model).causal_lm
        logits = causal_lm(input_ids, attention_mask).logits
        found = causal_lm.log_probs(input_ids, attention_mask, logits)[:, -logits_to_keep:]
        with torch.no_grad():  # shown, and no part of the loss
            logs = torch.log_softmax(logits[:, -logits_to_keep - 1:-1], dim=-1)
            entropies = -(logs.exp() * logs).sum(dim=-1)
        return found, entropies, None


class Rollout:
    """TRL's rollout_func: answers of the engine to the prompts, by the trainer's weights of this step.

    `sampling`: fields of SamplingParams. Answers to equal prompts differ by their seeds, which are the step's and the number
    of the answer's: a run's rollouts are a function of its weights and steps.
    """

    def __init__(self, llm: invar.LLM, **sampling: Any) -> None:
        self.llm = llm
        self.sampling = {"temperature": 1.0, "logprobs": 0, **sampling}
        self._synced = -1

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        step = int(trainer.state.global_step)
        if step != self._synced:
            self.llm.update_weights(self._weights(trainer), weight_version=str(step))
            self._synced = step
        tokenizer = self.llm.get_tokenizer()
        seen: Counter[str] = Counter()
        asked, params = [], []
        for prompt in prompts:
            ids = tokenizer.encode(prompt) if isinstance(prompt, str) else tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True)
            asked.append({"prompt_token_ids": ids})
            seen[str(prompt)] += 1
            params.append(invar.SamplingParams(seed=step * 1_000_003 + seen[str(prompt)], **self.sampling))
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
