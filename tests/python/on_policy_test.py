"""What a sampler says of its tokens is what the trainer says of them: CausalLM beside LLM, bit by bit."""
import itertools
import json
import tempfile
import unittest
from pathlib import Path

import torch

import invar
from invar import SamplingParams
from invar.models import CausalLM
from invar.torch import log_softmax_gather, processed_logits
from support import program, tiny


class ProcessedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = tiny(logprobs_mode="processed_logprobs")
        cls.model = CausalLM("tiny", load_format="dummy:7")

    def trained(self, answer, **sampling):
        """The trainer's log-probabilities of an answer's tokens."""
        ids = torch.tensor([answer.prompt_token_ids + answer.outputs[0].token_ids])
        with torch.no_grad():
            return self.model.log_probs(ids, **sampling)[0, len(answer.prompt_token_ids) - 1:].tolist()

    def test_of_any_temperature_and_truncation_none_differs(self):
        tokens = different = raw_differ = 0
        for temperature, top_p, top_k, min_p in itertools.product((0.5, 0.7, 0.9, 1.0, 1.2), (1.0, 0.9), (0, 40), (0.0, 0.02)):
            sampling = dict(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
            params = [SamplingParams(max_tokens=12, logprobs=0, seed=seed, ignore_eos=True, **sampling) for seed in range(2)]
            for answer in self.llm.generate(["hello", "a cat"], params, use_tqdm=False):
                sampled = [entry[token].logprob for token, entry in zip(answer.outputs[0].token_ids, answer.outputs[0].logprobs)]
                trained, raw = self.trained(answer, **sampling), self.trained(answer)
                tokens += len(sampled)
                different += sum(a != b for a, b in zip(sampled, trained))
                raw_differ += sum(a != b for a, b in zip(sampled, raw))
        self.assertEqual([tokens, different], [40 * 2 * 12, 0])
        self.assertGreater(raw_differ, tokens * 0.9, "the control: the model's own ones are others")

    def test_gradients_are_those_of_the_scaled_row(self):
        torch.manual_seed(1)
        logits = (3 * torch.randn(4, 50)).requires_grad_()
        targets = torch.tensor([1, 2, 3, 4])
        log_softmax_gather(processed_logits(logits, temperature=0.5), targets).sum().backward()
        expected = logits.detach().clone().requires_grad_()
        torch.log_softmax(expected / 0.5, dim=-1)[range(4), targets].sum().backward()
        self.assertLess((logits.grad - expected.grad).abs().max(), 0.02)
        cut = logits.detach().clone().requires_grad_()
        row = processed_logits(cut, temperature=0.7, top_k=5)
        row[row > -torch.inf].sum().backward()
        self.assertEqual(int((cut.grad != 0).sum()), 4 * 5)
        for wrong in (dict(temperature=-1.0), dict(top_p=0.0), dict(min_p=2.0), dict(top_k=-2)):
            with self.assertRaises(ValueError):
                processed_logits(logits, **wrong)


CONFIGS = Path(__file__).resolve().parents[1] / "families"
# What the trainer cannot train, and why (docs/models.md).
REFUSED = {"gemma2": "capped", "phi3": "other tensors", "granite": "scaled", "glm4": "other tensors", "hunyuan_v1_dense": "other tensors",
           "falcon-7b": "other tensors", "falcon-40b": "other tensors", "qwen2_moe": "shared expert", "mixtral": "other tensors",
           "glm4_moe": "other tensors", "granitemoe": "other tensors", "gpt_oss": "other tensors", "deepseek_v2": "", "deepseek_v3": "", "deepseek_v32": "", "glm_moe_dsa": "",
           "llama4_text": "other tensors", "mimo_v2_flash": "other tensors"}


class FamiliesTest(unittest.TestCase):
    """A model computes what the engine computes, or says in one sentence that it does not."""

    IDS = [(7 * i * i + 3 * i + 1) % 250 for i in range(120)]  # beyond every window

    def compare(self, folder, load_format, order):
        llm = invar.LLM(folder, load_format=load_format, arith=order, threads=1, kv_cache_gib=1 / 64, max_model_len=128)
        model = CausalLM(folder, load_format=load_format, order=order)
        trained = model.log_probs(torch.tensor([self.IDS]))
        self.assertEqual(trained[0].tolist(), llm.score(self.IDS)[0])
        trained.sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        self.assertTrue(all(bool(g.isfinite().all()) for g in gradients.values()))
        unused = [name for name, p in model.named_parameters() if p.grad is None and ".experts." not in name]
        self.assertEqual(unused, [])
        return model, trained[0].tolist()

    def test_every_family_is_computed_as_by_the_engine_or_refused(self):
        configs = {name: config for file in ("tiny_configs.json", "tiny_expert_configs.json")
                   for name, config in json.loads((CONFIGS / file).read_text()).items()}
        seen = set()
        for name, config in configs.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                Path(folder, "config.json").write_text(json.dumps(config))
                if name in REFUSED:
                    with self.assertRaisesRegex(RuntimeError, f"CausalLM computes no {config['model_type']} model: .*{REFUSED[name]}"):
                        CausalLM(folder, load_format="dummy:1")
                    continue
                for order in ("portable", "hopper"):
                    seen.add(str(self.compare(folder, "dummy:1", order)[1]))
        # Some families are one computation: Mistral and Ministral.
        self.assertGreater(len(seen), 1.5 * (len(configs) - len(REFUSED)), "the control: families and orders differ")

    def test_of_norms_that_stand_for_1_and_w(self):
        with tempfile.TemporaryDirectory() as folder:
            program("make-model", folder, "--family", "gemma3_text")
            model, found = self.compare(folder, "auto", "portable")
            self.assertLess(float(model.get_parameter("model.norm.weight").detach().abs().mean()), 0.5, "w, as it is stored")
            with torch.no_grad():
                model.get_parameter("model.layers.0.self_attn.q_norm.weight").add_(0.1)
            self.assertNotEqual(model.log_probs(torch.tensor([self.IDS]))[0].tolist(), found, "the control")

    def test_a_samplers_routes_are_replayed(self):
        config = json.loads((CONFIGS / "tiny_expert_configs.json").read_text())["qwen3_moe"]
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(config))
            model = CausalLM(folder, load_format="dummy:1")
        ids = torch.tensor([self.IDS])
        layers = [one for one in model.spec["layers"] if "experts" in one]
        routes = torch.full((1, len(self.IDS), len(layers), layers[0]["chosen"]), -1)
        own = model(ids).logits
        self.assertTrue(torch.equal(model(ids, routes=routes).logits, own))
        routes[:] = torch.arange(layers[0]["chosen"])
        self.assertFalse(torch.equal(model(ids, routes=routes).logits, own), "the control: other experts")


if __name__ == "__main__":
    unittest.main()
