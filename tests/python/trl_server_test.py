"""The real TRL 1.16 in server mode: its VLLMClient and GRPOTrainer against `invar serve`, with CausalLM as what is trained."""
import os
import sys
import tempfile
import unittest
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "integrations/trl"), str(ROOT / "tests/server")]

import invar_trl_server
import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig

from invar_trl import InvarModel
from served import Served, fast_and
from support import program
from trl_test import Watched

PROGRAM = os.environ["INVAR_PROGRAM"]


class ServerMode(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.model = self.folder.name + "/model"
        program("make-model", self.model)
        self.served = Served(PROGRAM, command=[PROGRAM, "serve", self.model, "--host", "127.0.0.1", "--port", "0", *fast_and(
            ["--api-key", "k", "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1", "--weight-transfer-config",
             '{"backend": "http"}'])])
        self.url = f"http://127.0.0.1:{self.served.port}"
        invar_trl_server.install(key="k")

    def tearDown(self):
        self.assertEqual(self.served.stop(), 0)
        self.folder.cleanup()

    def version(self):
        return self.served.ask("GET", "/version")[2]["weights"]

    def test_the_client_alone(self):
        client = invar_trl_server.InvarClient(base_url=self.url)
        client.init_communicator(device="cpu")
        self.assertEqual(client.get_world_size(), 1)
        said = client.generate([[5, 6, 7], [8, 9]], n=2, max_tokens=6, logprobs=2, temperature=0.8, generation_kwargs={"ignore_eos": True})
        self.assertEqual([said["prompt_ids"], [len(ids) for ids in said["completion_ids"]]], [[[5, 6, 7], [8, 9]], [6] * 4])
        for ids, tops in zip(said["completion_ids"], said["logprob_token_ids"]):
            self.assertTrue(all(token in top and len(top) in (2, 3) for token, top in zip(ids, tops)))
        chats = client.chat([[{"role": "user", "content": "hello"}]], max_tokens=5, logprobs=0)
        self.assertEqual(len(chats["logprobs"][0]), len(chats["completion_ids"][0]))
        scored = client.get_sequence_logprobs([[5, 6, 7, 8, 9]], [3], top_logprobs=20)
        self.assertEqual([len(scored["logprobs"][0]), len(scored["logprobs"][0][0])], [2, 20])
        before = self.version()
        client.update_model_params(InvarModel.open(self.model))
        self.assertEqual(self.version(), before, "the same weights have the same digest")
        model = InvarModel.open(self.model)
        with torch.no_grad():
            next(model.parameters()).add_(0.5)
        client.update_model_params(model)
        self.assertNotEqual(self.version(), before)
        client.reset_prefix_cache()

    def test_sampler_and_trainer_say_the_same(self):
        torch.manual_seed(1)
        before = self.version()
        data = Dataset.from_list([{"prompt": text} for text in ("hello", "a cat", "one day", "the sun")])
        args = GRPOConfig(output_dir=self.folder.name + "/out", per_device_train_batch_size=4, num_generations=4, max_steps=3,
                          max_completion_length=12, learning_rate=1e-3, temperature=0.7, top_k=60, report_to=[], use_cpu=True,
                          save_strategy="no", logging_steps=1, bf16=False, beta=0.0, gradient_checkpointing=False, use_vllm=True,
                          vllm_mode="server", vllm_server_base_url=self.url, generation_kwargs={"ignore_eos": True})
        trainer = Watched(model=InvarModel.open(self.model), args=args, train_dataset=data,
                          processing_class=AutoTokenizer.from_pretrained(self.model),
                          reward_funcs=lambda completions, **_: [float(len(set(text))) for text in completions])
        trainer.compared = []
        trainer.train()
        self.assertEqual(len(trainer.compared), 3)
        for sampled, trained, raw in trainer.compared:
            self.assertEqual(sampled.tolist(), trained.tolist())
            self.assertFalse((sampled == raw).any(), "the control: the model's own, at the temperature 0.7")
        self.assertNotEqual(self.version(), before, "the server took the trainer's weights over")


if __name__ == "__main__":
    unittest.main()
