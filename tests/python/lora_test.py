"""Adapters by request: the bits of `invar generate --lora`, each answer by its own."""
import pathlib
import sys
import tempfile
import unittest

from invar import LoRARequest, SamplingParams
from support import generate_by_program, tiny

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "server"))
from adapters_test import write_adapter  # noqa: E402

TINY = dict(num_attention_heads=8, head_dim=32, hidden_size=128, intermediate_size=512, num_hidden_layers=4)


class LoraTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="invar-lora-")
        cls.requests = [LoRARequest(f"a{i}", i + 1, str(write_adapter(pathlib.Path(cls.folder.name, str(i)), TINY, i)))
                        for i in range(2)]
        cls.llm = tiny(enable_lora=True, max_loras=2)

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()
        cls.folder.cleanup()

    def test_each_prompt_has_its_own(self):
        params = SamplingParams(max_tokens=12, temperature=0.9, seed=5)
        listed = [None, *self.requests]
        together = [output.outputs[0].logits_hash for output in
                    self.llm.generate(["hello"] * 3, params, use_tqdm=False, lora_request=listed)]
        self.assertEqual(len(set(together)), 3)
        for asked, found in zip(listed, together):
            alone = self.llm.generate("hello", params, use_tqdm=False, lora_request=asked)[0].outputs[0]
            self.assertEqual(alone.logits_hash, found)
            flags = {"lora": asked.lora_path} if asked else {}
            theirs = generate_by_program("hello", max_tokens=12, temperature=0.9, seed=5, **flags)
            self.assertEqual(theirs["logits_hash"], found)

    def test_what_cannot_be_is_refused(self):
        with self.assertRaises(ValueError):
            self.llm.generate(["a", "b"], lora_request=[self.requests[0]])
        with self.assertRaisesRegex(ValueError, "lora_path"):
            self.llm.generate("a", lora_request=LoRARequest("none", 1, ""))
        with self.assertRaisesRegex(RuntimeError, "adapter_config.json"):
            self.llm.generate("a", lora_request=LoRARequest("none", 1, self.folder.name))
        with tiny() as plain, self.assertRaisesRegex(ValueError, "not enabled"):
            plain.generate("a", lora_request=self.requests[0])


if __name__ == "__main__":
    unittest.main()
