"""The real TRL: GRPO steps of a tiny model on the CPU with the engine as its sampler and CausalLM as what it trains."""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "integrations/trl"))

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig

import invar
from invar_trl import InvarGRPOTrainer, InvarModel, Rollout
from support import program


class Watched(InvarGRPOTrainer):
    """Keeps what the engine and what the trainer say of the same tokens."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        mask = batch["completion_mask"].bool()
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        with torch.no_grad():
            mine, _, _ = self._get_per_token_logps_and_entropies(self.model, ids, attention, mask.shape[1])
        self.compared.append((batch["sampling_per_token_logps"][mask], mine[mask]))
        return batch


class GrpoTest(unittest.TestCase):
    def test_sampler_and_trainer_say_the_same(self):
        torch.manual_seed(1)
        with tempfile.TemporaryDirectory() as folder:
            model_directory = str(Path(folder) / "model")
            program("make-model", model_directory)
            llm = invar.LLM(model_directory, threads=1, kv_cache_gib=0.02, max_model_len=256)
            model = InvarModel.open(model_directory)
            before = llm.weights_digest()
            data = Dataset.from_list([{"prompt": text} for text in ("hello", "a cat", "one day", "the sun")])
            args = GRPOConfig(output_dir=folder + "/out", per_device_train_batch_size=4, num_generations=4, max_steps=3,
                              max_completion_length=12, learning_rate=1e-3, report_to=[], use_cpu=True, save_strategy="no",
                              logging_steps=1, bf16=False, beta=0.0, gradient_checkpointing=False)
            trainer = Watched(model=model, args=args, train_dataset=data, processing_class=AutoTokenizer.from_pretrained(model_directory),
                              reward_funcs=lambda completions, **_: [float(len(set(text))) for text in completions],
                              rollout_func=Rollout(llm, max_tokens=12, ignore_eos=True))
            trainer.compared = []
            trainer.train()
            self.assertEqual(len(trainer.compared), 3)
            for sampled, trained in trainer.compared:
                self.assertEqual(len(sampled), 48)
                self.assertEqual(sampled.tolist(), trained.tolist())
            self.assertNotEqual(trainer.compared[0][0].tolist(), trainer.compared[1][0].tolist())
            self.assertNotEqual(llm.weights_digest(), before, "the engine took the trainer's weights over")
            self.assertEqual(llm.weight_version, "2")


if __name__ == "__main__":
    unittest.main()
