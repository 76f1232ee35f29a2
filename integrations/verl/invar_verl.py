"""A rollout replica of verl: `actor_rollout_ref.rollout.name=invar` after `import invar_verl` (verl's external_lib).

The server is a Ray actor with an AsyncLLM. Engine arguments of LLM go into rollout.engine_kwargs.invar. A request without a seed gets
one of its prompt and request id, with rollout.full_determinism replica_rank + seed as verl's own replicas have it.
"""
from __future__ import annotations

import hashlib
import os
from collections.abc import Generator
from typing import Any, Optional

import ray
import torch
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

import invar

_NAME = "invar"


def _actor_name(replica_rank: int, suffix: str = "") -> str:
    return f"invar_server_{replica_rank}{suffix}"


class InvarServer:
    """What a replica serves by. Every answer is of one version of the weights."""

    def __init__(self, model: str, config: Any, replica_rank: int) -> None:
        self.config = config
        self.replica_rank = replica_rank
        engine = dict((config.engine_kwargs or {}).get(_NAME, {}))
        self._llm = invar.AsyncLLM(model, **{"max_num_seqs": config.max_num_seqs, "max_model_len": config.max_model_len,
                                             **engine})
        self._steps = 0

    async def generate(self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str,
                       image_data: Optional[list[Any]] = None, video_data: Optional[list[Any]] = None, priority: int = 0,
                       **_: Any) -> TokenOutput:
        """Token ids in, token ids with their log-probabilities out."""
        if image_data or video_data:
            raise ValueError("expected a prompt of tokens, found images or videos")
        given = dict(sampling_params)
        room = self._llm.get_tokenizer().model_max_length - len(prompt_ids)
        length = given.pop("max_tokens", None) or given.pop("max_new_tokens", None) or self.config.response_length
        wants_logprobs = bool(given.pop("logprobs", False))
        if self.config.full_determinism:
            given.setdefault("seed", self.replica_rank + self.config.seed)
        given.setdefault("seed", _seed(prompt_ids, request_id))
        # verl's actor divides its logits by the temperature.
        given.setdefault("logprobs_mode", getattr(self.config, "logprobs_mode", None) or "processed_logprobs")
        params = invar.SamplingParams(max_tokens=max(1, min(length, room)), logprobs=0 if wants_logprobs else None,
                                      output_kind=invar.RequestOutputKind.FINAL_ONLY, priority=priority, **given)
        async for output in self._llm.generate([int(token) for token in prompt_ids], params, request_id):
            answer = output.outputs[0]
        log_probs = None
        if wants_logprobs and answer.logprobs is not None:
            log_probs = [entry[token].logprob for token, entry in zip(answer.token_ids, answer.logprobs)]
        return TokenOutput(token_ids=answer.token_ids, log_probs=log_probs,
                           stop_reason="aborted" if answer.finish_reason == "abort" else "completed",
                           extra_fields={"global_steps": self._steps, "logits_hash": answer.logits_hash,
                                         "weight_version": output.weight_version})

    async def update_weights(self, named: list[tuple[str, torch.Tensor]], weight_version: Optional[str] = None) -> None:
        """All of the tensors, or none."""
        await self._llm.update_weights(named, weight_version)

    async def weights_digest(self) -> str:
        """Of the weights that are served."""
        return await self._llm.weights_digest()

    async def sleep(self) -> None:
        """Gives the memory of keys and values back; the weights stay."""
        await self._llm.pause_generation("abort")
        await self._llm.sleep(1)

    async def wake_up(self, tags: Optional[list[str]] = None) -> None:
        """Goes on."""
        await self._llm.wake_up(tags)
        await self._llm.resume_generation()

    async def clear_kv_cache(self) -> None:
        """Forgets the keys and values of answers that have ended."""
        await self._llm.reset_prefix_cache()

    async def release_kv_cache(self) -> None:
        """As sleep."""
        await self.sleep()

    async def resume_kv_cache(self) -> None:
        """As wake_up."""
        await self.wake_up()

    async def abort_all_requests(self, reject_request: bool = False, **_: Any) -> dict[str, Any]:
        """Ends what is computed; what comes waits for resume_generation."""
        await self._llm.pause_generation("abort")
        return {"aborted": True}

    async def resume_generation(self) -> None:
        """After abort_all_requests."""
        await self._llm.resume_generation()

    async def set_global_steps(self, global_steps: int) -> None:
        """What answers say of the step."""
        self._steps = global_steps

    async def get_server_address(self) -> tuple[str, int]:
        """There is no HTTP beside the actor."""
        return ray.util.get_node_ip_address(), 0


def _seed(prompt_ids: list[int], request_id: str) -> int:
    digest = hashlib.sha256(repr((list(prompt_ids), request_id)).encode()).digest()
    return int.from_bytes(digest[:8], "little")


class InvarReplica(RolloutReplica):
    """One server: its ranks are threads of the actor."""

    async def launch_servers(self) -> None:
        """Starts the actor and waits until the model is open."""
        path = getattr(self.model_config, "local_path", None) or self.model_config.path
        name = _actor_name(self.replica_rank, self.name_suffix)
        server = ray.remote(InvarServer).options(name=name, max_concurrency=self.max_concurrency, num_cpus=0).remote(
            str(path), self.config, self.replica_rank)
        host, port = await server.get_server_address.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = f"{host}:{port}"

    def rollout_worker_use_gpu(self) -> bool:
        """The engine may be on the CPU."""
        return torch.cuda.is_available()


class InvarAdapter(base.BaseRollout):
    """What a trainer's worker talks to its replica by."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        size = self.config.tensor_model_parallel_size * self.config.data_parallel_size
        rank = int(os.environ.get("RANK", "0"))
        self._replica_rank = rank // size if replica_rank == -1 else replica_rank
        self._is_first = rank % size == 0
        self._server: Any = None

    def _actor(self) -> Any:
        if self._server is None:
            self._server = ray.get_actor(_actor_name(self._replica_rank))
        return self._server

    async def resume(self, tags: list[str]) -> None:
        """Weights and keys come back together."""
        if self._is_first:
            await self._actor().wake_up.remote(tags)

    async def release(self) -> None:
        """Memory of keys and values."""
        if self._is_first:
            await self._actor().sleep.remote()

    async def update_weights(self, weights: Generator[tuple[str, torch.Tensor], None, None],
                             wire_format: str = "named_tensors", global_steps: Optional[int] = None, **_: Any) -> None:
        """All of them at once, as bf16 by the checkpoint's names."""
        if wire_format != "named_tensors":
            raise ValueError(f"expected the wire format named_tensors, found {wire_format!r}")
        named = [(name, tensor.detach().to("cpu", torch.bfloat16)) for name, tensor in weights]
        if self._is_first:
            await self._actor().update_weights.remote(named, None if global_steps is None else str(global_steps))


RolloutReplicaRegistry.register(_NAME, lambda: InvarReplica)
base._ROLLOUT_REGISTRY[(_NAME, "async")] = f"{__name__}.InvarAdapter"
