"""The real verl's interfaces with Invar as a rollout replica, on the CPU: its own test of determinism, weights, aborts.

Ray's actors are stood in for by the server itself in this process."""
import asyncio
import os
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "integrations/verl"))
os.environ.update(HF_HUB_OFFLINE="1")

import torch
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import get_rollout_replica_class

import invar
import invar_verl
from support import program

PROMPTS = [[5, 6, 7], [100, 101, 102, 103], list(range(200, 230))]


def config():
    return types.SimpleNamespace(engine_kwargs={"invar": {"threads": 1, "kv_cache_gib": 0.02}}, max_num_seqs=8, max_model_len=256,
                                 response_length=16, full_determinism=True, seed=3, tensor_model_parallel_size=1,
                                 data_parallel_size=1, pipeline_model_parallel_size=1)


class Handle:
    """An actor's handle: .method.remote(...) is awaited."""

    def __init__(self, server):
        self.server = server

    def __getattr__(self, name):
        return types.SimpleNamespace(remote=getattr(self.server, name))


class ActorClass:
    """What ray.remote makes of a class."""
    actors = {}

    def __init__(self, cls):
        self.cls, self.name = cls, None

    def options(self, name, **_):
        self.name = name
        return self

    def remote(self, *arguments):
        self.actors[self.name] = Handle(self.cls(*arguments))
        return self.actors[self.name]


@mock.patch.multiple(invar_verl.ray, remote=ActorClass, get_actor=lambda name: ActorClass.actors[name])
class ReplicaTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.model, self.other = self.folder.name + "/one", self.folder.name + "/two"
        program("make-model", self.model)
        program("make-model", self.other, "--seed", "2")

    async def start(self, rank, suffix):
        one = get_rollout_replica_class("invar")(rank, config(), types.SimpleNamespace(path=self.model), name_suffix=suffix)
        with mock.patch.object(invar_verl.ray.util, "get_node_ip_address", lambda: "127.0.0.1"):
            await one.launch_servers()
        self.addCleanup(one.server_handle.server._llm.shutdown)
        return one

    async def answers(self, one):
        asked = [one.server_handle.generate.remote(ids, {"temperature": 0.9, "logprobs": True, "ignore_eos": True}, f"r{i}")
                 for i, ids in enumerate(PROMPTS)]
        return [(output.token_ids, output.log_probs) for output in await asyncio.gather(*asked)]

    def open(self, model):
        return invar.LLM(model, threads=1, kv_cache_gib=0.02, max_model_len=256)

    async def test_verls_determinism(self):
        """As verl's test of generation determinism: the same instance twice, and two instances."""
        first = await self.start(0, "")
        expected = await self.answers(first)
        self.assertEqual(await self.answers(first), expected)
        self.assertEqual(await self.answers(await self.start(0, "_again")), expected)
        self.assertNotEqual(await self.answers(await self.start(1, "")), expected, "the control: another replica's seed")
        with self.open(self.model) as llm:
            processed = invar.SamplingParams(temperature=0.9, logprobs_mode="processed_logprobs")
            for ids, (tokens, log_probs) in zip(PROMPTS, expected):
                self.assertEqual(llm.score([ids + tokens], processed)[0][len(ids) - 1:], log_probs)
                self.assertNotEqual(llm.score([ids + tokens])[0][len(ids) - 1:], log_probs, "the control: the model's own")

    async def test_weights_by_the_adapter(self):
        first = await self.start(0, "")
        expected = await self.answers(first)
        with self.open(self.other) as two:
            weights = [(name, torch.from_numpy(array.view("int16")).view(torch.bfloat16)) for name, array in two.named_weights()]
            digest = two.weights_digest()
        adapter_class = get_rollout_class("invar")
        adapter = adapter_class.__new__(adapter_class)
        adapter._replica_rank, adapter._is_first, adapter._server = 0, True, None
        await adapter.release()
        await adapter.resume(["weights", "kv_cache"])
        await first.abort_all_requests()
        await adapter.update_weights(iter(weights), global_steps=7)
        await first.resume_generation()
        await first.clear_kv_cache()
        self.assertEqual(await first.server_handle.weights_digest.remote(), digest)
        self.assertNotEqual(await self.answers(first), expected)
        output = await first.server_handle.generate.remote(PROMPTS[0], {"max_tokens": 2}, "x")
        self.assertEqual(output.extra_fields["weight_version"], "7")


if __name__ == "__main__":
    unittest.main()
