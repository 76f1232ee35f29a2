"""The real TRL: GRPO steps of a tiny model on the CPU with the engine as its sampler and CausalLM as what it trains."""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "integrations/trl"))

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
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
            self.logprobs_mode = "raw_logprobs"
            raw, _, _ = self._get_per_token_logps_and_entropies(self.model, ids, attention, mask.shape[1])
            self.logprobs_mode = "processed_logprobs"
        self.compared.append((batch["sampling_per_token_logps"][mask], mine[mask], raw[mask]))
        return batch


class FakeTrainer:
    """What Rollout asks a trainer, on one of two ranks."""

    def __init__(self, model, rank):
        self.model, self.args = model, GRPOConfig(output_dir="none", report_to=[], use_cpu=True, bf16=False)
        self.state = SimpleNamespace(global_step=3)
        self.accelerator = SimpleNamespace(num_processes=2, process_index=rank, unwrap_model=lambda one: one)


class GrpoTest(unittest.TestCase):
    def test_ranks_draw_different_answers(self):
        with tempfile.TemporaryDirectory() as folder:
            program("make-model", folder)
            model, drawn = InvarModel.open(folder), []
            for rank in (0, 1, 0):
                llm = invar.LLM(folder, threads=1, kv_cache_gib=0.02, max_model_len=256)
                drawn += Rollout(llm, max_tokens=12, ignore_eos=True)(["hello", "hello"], FakeTrainer(model, rank))["completion_ids"]
            self.assertEqual(len({str(ids) for ids in drawn[:4]}), 4)
            self.assertEqual(drawn[4:], drawn[:2], "a rank draws them again")

    def test_what_is_saved_is_what_was_trained(self):
        with tempfile.TemporaryDirectory() as folder:
            program("make-model", folder)
            model = InvarModel.open(folder)
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(torch.randn_like(p) * 1e-4)  # no bf16 any more
            for size in ("50GB", "100KB"):  # whole, in shards
                saved = folder + "/saved" + size
                model.save_pretrained(saved, max_shard_size=size)
                theirs = AutoModelForCausalLM.from_pretrained(saved).state_dict()
                ours = InvarModel.from_pretrained(saved)
                for name, tensor in model.state_dict().items():
                    self.assertTrue(torch.equal(theirs[name], tensor), name)
                    self.assertTrue(torch.equal(ours.get_parameter(name), tensor), name)
                again = InvarModel.open(folder)
                self.assertFalse(all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters())), "the control")
                self.assertFalse(any(again.load_state_dict(theirs, strict=False).missing_keys))
                ids = torch.tensor([[5, 6, 7, 8]])
                self.assertTrue(torch.equal(again(ids).logits, model(ids).logits))
                llm = invar.LLM(folder, threads=1, kv_cache_gib=0.02, max_model_len=256)
                llm.update_weights(ours.named_weights())
                self.assertEqual(llm.score([5, 6, 7, 8])[0], model.causal_lm.log_probs(ids)[0].tolist())

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
                              max_completion_length=12, learning_rate=1e-3, temperature=0.7, top_k=60, report_to=[], use_cpu=True, save_strategy="no",
                              logging_steps=1, bf16=False, beta=0.0, gradient_checkpointing=False)
            trainer = Watched(model=model, args=args, train_dataset=data, processing_class=AutoTokenizer.from_pretrained(model_directory),
                              reward_funcs=lambda completions, **_: [float(len(set(text))) for text in completions],
                              rollout_func=Rollout(llm, max_tokens=12, ignore_eos=True))
            trainer.compared = []
            trainer.train()
            self.assertEqual(len(trainer.compared), 3)
            for sampled, trained, raw in trainer.compared:
                self.assertEqual(len(sampled), 48)
                self.assertEqual(sampled.tolist(), trained.tolist())
                self.assertFalse((sampled == raw).any(), "the control: the model's own, at the temperature 0.7")
            self.assertNotEqual(trainer.compared[0][0].tolist(), trainer.compared[1][0].tolist())
            self.assertNotEqual(llm.weights_digest(), before, "the engine took the trainer's weights over")
            self.assertEqual(llm.weight_version, "2")


if __name__ == "__main__":
    unittest.main()
