"""Tensors in and out by DLPack: logits, hidden states, embeddings, weights; sleep and wake up."""
import unittest

import numpy as np
from invar import SamplingParams, hashes
from support import tiny

TEXT = list(range(3, 150))


def answer(llm):
    return llm.generate(TEXT[:20], SamplingParams(max_tokens=12, seed=3, ignore_eos=True), False)[0].outputs[0].logits_hash


class TensorsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = tiny()

    def test_the_hash_of_logits_is_an_answers(self):
        llm = tiny()
        ids = [5, 6, 7, 8]
        answer = llm.generate([{"prompt_token_ids": ids}], SamplingParams(max_tokens=6, seed=1, ignore_eos=True), use_tqdm=False)[0].outputs[0]
        rows = np.array(llm.logits(ids + answer.token_ids, list(range(3, 9))))
        self.assertEqual(hashes.logits_hash(rows), answer.logits_hash)
        rows[2, 100] = np.nextafter(rows[2, 100], np.float32(1e9))
        self.assertNotEqual(hashes.logits_hash(rows), answer.logits_hash, "the control: one bit of one logit")

    def test_logits_of_positions_are_those_of_the_whole(self):
        whole = self.llm.logits(TEXT)
        self.assertEqual(whole.shape, (len(TEXT), self.llm.vocab_size))
        self.assertEqual(whole.dtype, np.float32)
        some = self.llm.logits(TEXT, [0, 63, 64, 146])
        self.assertEqual(some.tobytes(), whole[[0, 63, 64, 146]].tobytes())
        self.assertNotEqual(self.llm.logits(TEXT[1:], [145]).tobytes(), whole[146:].tobytes(), "the control")

    def test_log_probabilities_are_of_these_logits(self):
        logits = self.llm.logits(TEXT)[:-1].astype(np.float64)
        shifted = logits - logits.max(axis=1, keepdims=True)
        expected = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        found = self.llm.score([TEXT])[0]
        np.testing.assert_allclose(found, expected[np.arange(len(TEXT) - 1), TEXT[1:]], atol=1e-5)

    def test_hidden_states_pool_to_the_embedding(self):
        hidden = self.llm.hidden_states(TEXT)
        self.assertEqual(hidden.shape[:2], (1, len(TEXT)))
        total = np.zeros(hidden.shape[2], np.float32)
        for row in hidden[0]:
            total += row
        expected = total / np.float32(len(TEXT))
        found = np.array(self.llm.embed([TEXT])[0].outputs.embedding, np.float32)
        self.assertEqual(found.tobytes(), expected.tobytes())
        layers = self.llm.hidden_states(TEXT, layers=[0, 1], positions=[5])
        self.assertEqual(layers.shape[:2], (2, 1))
        self.assertNotEqual(layers[0].tobytes(), layers[1].tobytes())

    def test_arrays_own_their_memory(self):
        llm = tiny()
        logits = llm.logits(TEXT[:4])
        expected = self.llm.logits(TEXT[:4])
        llm.close()
        del llm
        self.assertEqual(np.from_dlpack(logits).tobytes(), expected.tobytes())

    def test_updated_weights_are_those_of_the_other_model(self):
        """The weights of seed 8 by name into a model of seed 7, and back."""
        llm, other = tiny(), tiny(seed=8)
        before, digest = answer(llm), llm.weights_digest()
        self.assertNotEqual(before, answer(other))
        generated = dummy_tensors(8)
        llm.update_weights(generated.items(), weight_version="8")
        self.assertEqual(answer(llm), answer(other))
        self.assertEqual(llm.weights_digest(), other.weights_digest())
        self.assertEqual(llm.generate([1], use_tqdm=False)[0].weight_version, "8")
        llm.update_weights(dummy_tensors(7).items())
        self.assertEqual([answer(llm), llm.weights_digest()], [before, digest])

    def test_nothing_is_taken_of_an_update_that_has_a_fault(self):
        llm = tiny()
        before, digest = answer(llm), llm.weights_digest()
        tensors = dummy_tensors(8)
        last = sorted(tensors)[-1]
        tensors[last] = tensors[last] | np.uint16(0x7f80)  # infinities and NaNs
        for broken in ({**tensors}, {**tensors, "lm_head.nothing": tensors[last]},
                       {last: tensors[last][:-1].copy()}, {last: tensors[last].astype(np.float32)}):
            with self.assertRaises((ValueError, RuntimeError)):
                llm.update_weights(broken.items())
            self.assertEqual(answer(llm), before)
        self.assertEqual(llm.weights_digest(), digest)

    def test_weights_do_not_change_under_a_request(self):
        llm = tiny()
        llm.add([1, 2, 3], SamplingParams(max_tokens=4))
        for change in (lambda: llm.update_weights([]), llm.sleep):
            with self.assertRaisesRegex(ValueError, "live"):
                change()

    def test_who_slept_wakes_up_as_before(self):
        llm = tiny()
        llm.update_weights(dummy_tensors(8).items())
        before = answer(llm)
        for level in (1, 2):
            llm.sleep(level)
            self.assertTrue(llm.is_sleeping())
            with self.assertRaisesRegex(ValueError, "sleeps"):
                answer(llm)
            llm.wake_up(tags=["weights", "kv_cache"])
            self.assertEqual(answer(llm), before)
        self.assertTrue(llm.reset_prefix_cache())
        self.assertEqual(answer(llm), before)


def dummy_tensors(seed):
    """The tensors of another model."""
    with tiny(seed=seed) as other:
        return dict(other.named_weights())


if __name__ == "__main__":
    unittest.main()
