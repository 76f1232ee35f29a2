"""What sleeps gives memory back, measured as the process's resident pages, and answers with the same bits afterwards."""
import pathlib
import re
import unittest

import invar
from invar import SamplingParams

PROMPT = [5 + i % 900 for i in range(1500)]
MIB = 1 << 20
KEYS = 1500 * 16 * 4 * 64 * 2 * 2  # bytes of 16 layers, 4 heads of 64, keys and values
WEIGHTS = 180 * MIB  # at least


def resident():
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1]) << 10


def answer(llm):
    return llm.generate(PROMPT, SamplingParams(max_tokens=4, seed=3, ignore_eos=True), False)[0].outputs[0].logits_hash


class SleepTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = invar.LLM("bench-100m", load_format="dummy:7", threads=1, max_model_len=2048, kv_cache_gib=0.25, max_num_seqs=4)
        cls.bits = answer(cls.llm)

    def setUp(self):
        self.assertEqual(answer(self.llm), self.bits)
        self.before = resident()

    def given(self):
        return self.before - resident()

    def test_level_1_gives_keys_and_values_back(self):
        self.llm.sleep(1)
        self.assertGreater(self.given(), KEYS)
        self.assertLess(self.given(), WEIGHTS, "the weights stay")
        with self.assertRaisesRegex(ValueError, "sleeps"):
            answer(self.llm)
        self.llm.wake_up()
        self.assertFalse(self.llm.is_sleeping())
        self.assertEqual(answer(self.llm), self.bits)

    def test_level_2_gives_weights_back_too(self):
        self.llm.sleep(2)
        self.assertGreater(self.given(), KEYS + WEIGHTS)
        self.llm.wake_up()
        self.assertEqual(answer(self.llm), self.bits)

    def test_tags_bring_back_one_after_the_other(self):
        self.llm.sleep(2)
        name, weight = next((n, w.copy()) for n, w in self.llm_weights("model.layers.0.mlp.up_proj.weight"))
        with self.assertRaisesRegex(ValueError, "tag weights"):
            self.llm.update_weights([(name, weight)])
        self.llm.wake_up(tags=["weights"])
        self.assertLess(self.given(), WEIGHTS, "they are there")
        self.assertGreater(self.given(), KEYS // 2, "keys and values are not")
        self.assertTrue(self.llm.is_sleeping())
        with self.assertRaisesRegex(ValueError, "sleeps"):
            answer(self.llm)
        weight[0, :8] ^= 0x0180
        self.llm.update_weights([(name, weight)])
        self.llm.wake_up(tags=["kv_cache"])
        self.assertFalse(self.llm.is_sleeping())
        self.assertNotEqual(answer(self.llm), self.bits, "the control: other weights, other bits")
        weight[0, :8] ^= 0x0180
        self.llm.update_weights([(name, weight)])

    def llm_weights(self, wanted):
        """A tensor as the checkpoint has it, from a session that is awake."""
        with invar.LLM("bench-100m", load_format="dummy:7", threads=1, max_model_len=256, kv_cache_gib=0.01, max_num_seqs=1) as other:
            return [(name, other.session.tensor(name)) for name, _, _ in other.tensors() if name == wanted]

    def test_who_does_not_sleep_gives_nothing_back(self):
        """The control of what is measured."""
        self.llm.reset_prefix_cache()
        self.assertLess(self.given(), KEYS // 2)

    def test_what_cannot_be_is_refused(self):
        for level in (0, 3, -1):
            with self.assertRaisesRegex(ValueError, "level"):
                self.llm.sleep(level)
        with self.assertRaisesRegex(ValueError, "tags"):
            self.llm.wake_up(["graphs"])
        self.llm.wake_up()  # of one that is awake: nothing
        self.llm.sleep(1)
        self.llm.sleep(2)
        self.llm.sleep(2)
        self.assertGreater(self.given(), KEYS + WEIGHTS)
        self.llm.wake_up()


if __name__ == "__main__":
    unittest.main()
