"""LLM as its users call it: answers are those of the program and of each request alone."""
import json
import signal
import struct
import tempfile
import threading
import time
import unittest
from pathlib import Path

import invar
from invar import SamplingParams
from support import generate_by_program, program, tiny

PROMPTS = ["hello", "once upon a time", "a", "the cat sat on the mat and"]


def f32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def hashes(outputs):
    return [one.logits_hash for output in outputs for one in output.outputs]


class LLMTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = tiny()

    def test_what_a_model_leaves_open_is_its_familys(self):
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder, "model")
            program("make-model", str(model), "--preset", "tiny", "--family", "qwen3")
            file = model / "generation_config.json"
            file.write_text(json.dumps({"temperature": 0.3}))
            said = lambda: invar.LLM(str(model), threads=1, max_model_len=64, kv_cache_gib=0.01).get_default_sampling_params()
            self.assertEqual((said().temperature, said().top_k), (0.3, 0))
            file.unlink()
            self.assertEqual((said().temperature, said().top_p, said().top_k), (0.6, 0.95, 20))

    def test_answers_are_those_of_the_program(self):
        params = SamplingParams(max_tokens=20, temperature=0.9, seed=5, top_k=50)
        ours = self.llm.generate("hello", params, use_tqdm=False)[0].outputs[0]
        theirs = generate_by_program("hello", max_tokens=20, temperature=0.9, seed=5, top_k=50)
        self.assertEqual(ours.logits_hash, theirs["logits_hash"])
        self.assertEqual(ours.text, theirs["text"])
        other = self.llm.generate("hello", params.clone(seed=6), use_tqdm=False)[0].outputs[0]
        self.assertNotEqual(other.logits_hash, theirs["logits_hash"], "the control: another seed")
        unhashed = self.llm.generate("hello", params.clone(logits_hash=False), use_tqdm=False)[0].outputs[0]
        self.assertEqual([unhashed.token_ids, unhashed.logits_hash], [ours.token_ids, ""])

    def test_answers_of_a_batch_are_those_of_each_alone(self):
        params = [SamplingParams(max_tokens=8 + 5 * i, seed=i, temperature=0.8, ignore_eos=True) for i in range(4)]
        together = hashes(self.llm.generate(PROMPTS, params, use_tqdm=False))
        alone = [hashes(self.llm.generate(p, one, use_tqdm=False))[0] for p, one in zip(PROMPTS, params)]
        self.assertEqual(together, alone)
        self.assertEqual(len(set(together)), 4)
        with tiny(seed=8) as control:
            self.assertNotEqual(together, hashes(control.generate(PROMPTS, params, use_tqdm=False)))

    def test_attributes_are_those_of_vllm(self):
        params = SamplingParams(n=2, max_tokens=5, logprobs=3, prompt_logprobs=0, seed=1, ignore_eos=True)
        output = self.llm.generate([{"prompt": "hello"}], params, use_tqdm=False)[0]
        self.assertEqual(output.prompt, "hello")
        self.assertEqual(output.prompt_token_ids, self.llm.get_tokenizer().encode("hello"))
        self.assertIsNone(output.prompt_logprobs[0])
        self.assertEqual(len(output.prompt_logprobs), len(output.prompt_token_ids))
        self.assertEqual([one.index for one in output.outputs], [0, 1])
        self.assertNotEqual(output.outputs[0].token_ids, output.outputs[1].token_ids)
        one = output.outputs[0]
        self.assertEqual([len(one.token_ids), len(one.logprobs)], [5, 5])
        for token, found in zip(one.token_ids, one.logprobs):
            self.assertIn(token, found)
            self.assertIn(len(found), (3, 4))
            self.assertEqual({1, 2, 3} - {entry.rank for entry in found.values()}, set())
        self.assertEqual(one.cumulative_logprob, sum(d[t].logprob for t, d in zip(one.token_ids, one.logprobs)))
        self.assertEqual(one.finish_reason, "length")

    def test_prompts_have_every_form(self):
        ids = self.llm.get_tokenizer().encode("hello")
        params = SamplingParams(max_tokens=4, seed=2)
        forms = ["hello", ids, {"prompt": "hello"}, {"prompt_token_ids": ids}, ["hello"], [{"prompt_token_ids": ids}], [ids]]
        found = {hashes(self.llm.generate(form, params, use_tqdm=False))[0] for form in forms}
        self.assertEqual(len(found), 1)

    def test_decisions_and_relevance_are_the_servers(self):
        """Decisions are the likelihoods of their answers, whatever is computed beside them; the program confirms their receipt."""
        llm = self.llm
        questions = [{"type": "predicate", "question": "Is it good?"}, {"type": "choice", "question": "Which?", "choices": ["a", "bc"]}]
        told = llm.decide("The cat sat.", questions, instructions="Be fair.")
        self.assertEqual([a["type"] for a in told["answers"]], ["predicate", "choice"])
        asked = llm.get_tokenizer().apply_chat_template(
            [{"role": "system", "content": "Be fair."},
             {"role": "user", "content": "The cat sat.\n\nIs it good?\nAnswer with one word, yes or no."}],
            add_generation_prompt=True, tokenize=False)
        ids = llm.get_tokenizer().encode(asked, add_special_tokens=False)
        yes = llm.get_tokenizer().encode("yes", add_special_tokens=False)
        # Random weights have no end of an answer.
        self.assertAlmostEqual(sum(llm.score([ids + yes])[0][len(ids) - 1:]), told["answers"][0]["probabilities"][0]["logprob"], 4)
        threads = [threading.Thread(target=llm.generate, args=(PROMPTS, SamplingParams(max_tokens=20), False)) for _ in range(2)]
        [t.start() for t in threads]
        self.assertEqual(llm.decide("The cat sat.", questions, instructions="Be fair.")["answers"], told["answers"])
        [t.join() for t in threads]
        self.assertNotEqual(llm.decide("The cat sat.", questions)["answers"], told["answers"], "the control: other instructions")
        scores = [one.outputs.score for one in llm.score("cat", ["The cat sat.", "It rained."])]
        self.assertEqual(llm.score(["cat", "cat"], ["The cat sat.", "It rained."])[1].outputs.score, scores[1])
        ranked = llm.rerank("cat", ["The cat sat.", "It rained."])
        self.assertEqual([(r["index"], r["relevance_score"]) for r in ranked], sorted(enumerate(scores), key=lambda one: -one[1]))
        with tempfile.TemporaryDirectory() as folder:
            answer = llm.decide("The cat sat.", questions, receipt=True)
            file = Path(folder, "answer.json")
            file.write_text(json.dumps(answer))
            words = ("verify", str(file), "tiny", "--load-format", "dummy:7", "--threads", "1")
            self.assertIn("confirmed", program(*words))
            answer["answers"][0]["confidence"] += 1e-9
            file.write_text(json.dumps(answer))
            self.assertIn("confidence", program(*words, check=False), "the control: one probability changed")

    def test_what_a_chat_template_lacks_is_said(self):
        """A broken one's own words, by the questions that need it; others are answered."""
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder, "model")
            program("make-model", str(model), "--preset", "tiny")
            questions = [{"type": "predicate", "question": "Is it good?"}]
            for text, words in (("{% if %}", "chat_template.jinja"), (None, "has no chat template"), ("{{ messages[-1].content }}", "")):
                for file in (model / "chat_template.jinja",) if text else model.glob("*chat_template*"):
                    file.unlink(missing_ok=True)
                if text:
                    (model / "chat_template.jinja").write_text(text)
                else:
                    config = model / "tokenizer_config.json"
                    config.write_text(json.dumps({k: v for k, v in json.loads(config.read_text()).items() if k != "chat_template"}))
                with invar.LLM(str(model), threads=1, max_model_len=256, kv_cache_gib=1 / 64, max_num_seqs=8) as llm:
                    self.assertEqual(len(llm.embed(["x"])), 1)
                    if words:
                        with self.assertRaisesRegex(ValueError, "need a chat template; .*" + words):
                            llm.decide("The cat sat.", questions)
                    else:
                        self.assertEqual(len(llm.decide("The cat sat.", questions)["answers"]), 1, "the control: one that is whole")

    def test_log_probabilities_of_every_call_have_the_same_bits(self):
        answer = self.llm.generate("hello", SamplingParams(max_tokens=9, logprobs=0, seed=3, ignore_eos=True), False)[0]
        tokens = answer.outputs[0].token_ids
        sampled = [d[t].logprob for t, d in zip(tokens, answer.outputs[0].logprobs)]
        whole = answer.prompt_token_ids + tokens
        self.assertEqual(self.llm.score([whole])[0][len(answer.prompt_token_ids) - 1:], sampled)
        traced = self.llm.generate("hello", SamplingParams(trace_decode_token_ids=tokens, logprobs=0), False)[0].outputs[0]
        self.assertEqual(traced.token_ids, tokens)
        self.assertEqual([d[t].logprob for t, d in zip(tokens, traced.logprobs)], sampled)
        self.assertNotEqual(self.llm.score([whole[::-1]])[0][-9:], sampled, "the control: another text")

    def test_log_probabilities_of_what_is_sampled_from(self):
        """In each mode the answer's are those that score and a traced answer have of the same tokens."""
        sampling = dict(max_tokens=9, logprobs=2, seed=3, ignore_eos=True, temperature=0.6, top_k=30, top_p=0.9, min_p=0.01)
        found = {}
        for mode in (None, "raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits", "scaled_logprobs"):
            params = SamplingParams(logprobs_mode=mode, **sampling)
            answer = self.llm.generate("hello", params, False)[0]
            tokens = answer.outputs[0].token_ids
            found[mode] = [d[t].logprob for t, d in zip(tokens, answer.outputs[0].logprobs)]
            scored = self.llm.score([answer.prompt_token_ids + tokens], params)[0][len(answer.prompt_token_ids) - 1:]
            self.assertEqual(scored, found[mode], mode)
            traced = self.llm.generate("hello", params.clone(trace_decode_token_ids=tokens), False)[0].outputs[0]
            self.assertEqual([d[t].logprob for t, d in zip(tokens, traced.logprobs)], found[mode], mode)
        self.assertEqual(found[None], found["raw_logprobs"])
        self.assertEqual(len({str(values) for values in found.values()}), 5, "the control: each mode differs")
        raw, processed = (found[mode + "_logits"] for mode in ("raw", "processed"))
        self.assertEqual([struct.pack("f", x) for x in processed], [struct.pack("f", x / f32(0.6)) for x in raw])
        with tiny(logprobs_mode="processed_logprobs") as llm:
            answer = llm.generate("hello", SamplingParams(**sampling), False)[0].outputs[0]
            self.assertEqual([d[t].logprob for t, d in zip(answer.token_ids, answer.logprobs)], found["processed_logprobs"])
            with self.assertRaisesRegex(ValueError, "expected no presence_penalty, which looks back"):
                llm.generate("hello", SamplingParams(trace_decode_token_ids=[5], presence_penalty=1.0), False)
            greedy = SamplingParams(temperature=0, top_k=3, max_tokens=4, logprobs=0)
            own, of_row = (self.llm.generate("hello", greedy.clone(logprobs_mode=mode), False)[0].outputs[0].cumulative_logprob
                           for mode in ("raw_logprobs", "processed_logprobs"))
            self.assertEqual(own, of_row, "greedy sampling has no other distribution")
        for make in (lambda: tiny(logprobs_mode="cooked"), lambda: self.llm.generate("x", SamplingParams(logprobs_mode="cooked"), False)):
            with self.assertRaisesRegex(ValueError, 'expected logprobs_mode as raw_logprobs, .* found "cooked"'):
                make()

    def test_seeds_are_drawn_where_none_is_given_and_returned(self):
        params = SamplingParams(max_tokens=9, ignore_eos=True)
        outputs = [output.outputs[0] for output in self.llm.generate(["hello"] * 4, params, False)]
        self.assertEqual(len({str(one.token_ids) for one in outputs}), 4)
        self.assertEqual(len({one.seed for one in outputs}), 4)
        again = [self.llm.generate("hello", params.clone(seed=one.seed), False)[0].outputs[0] for one in outputs]
        self.assertEqual([one.token_ids for one in again], [one.token_ids for one in outputs])
        given = self.llm.generate(["hello"] * 4, params.clone(seed=5), False)
        self.assertEqual(len(set(hashes(given))), 1, "the control: a seed that is given is each request's")
        self.assertEqual({one.outputs[0].seed for one in given}, {5})
        drawn = []
        for _ in range(2):
            with tiny(load_format="dummy:7", engine_seed=3) as llm:
                drawn.append([one.outputs[0].seed for one in llm.generate(["hello"] * 2, params, False)])
        self.assertEqual(drawn[0], drawn[1], "an LLM's own seed is that of the draws")

    def test_stop_texts_and_forms(self):
        params = SamplingParams(max_tokens=40, seed=4, structured_outputs={"choice": ["yes", "no"]})
        answer = self.llm.generate("hello", params, False)[0].outputs[0]
        self.assertIn(answer.text, ("yes", "no"))
        free = self.llm.generate("hello", SamplingParams(max_tokens=20, seed=4), False)[0].outputs[0]
        stop = free.text[5:7]
        stopped = self.llm.generate("hello", SamplingParams(max_tokens=20, seed=4, stop=stop), False)[0].outputs[0]
        self.assertEqual([stopped.finish_reason, stopped.stop_reason], ["stop", stop])
        self.assertEqual(stopped.text, free.text[:free.text.index(stop)])

    def test_keywords_are_known_accepted_or_refused(self):
        with self.assertRaisesRegex(TypeError, "did you mean 'temperature'"):
            SamplingParams(temprature=1)
        with self.assertRaisesRegex(TypeError, "did you mean 'gpu_memory_utilization'"):
            tiny(gpu_memory_utilisation=0.9)
        with self.assertRaisesRegex(ValueError, "quantization='fp8' is not supported"):
            tiny(quantization="fp8")
        tiny(gpu_memory_utilization=0.9, enforce_eager=True, dtype="auto").close()

    def test_speculation_changes_no_bit(self):
        params = SamplingParams(max_tokens=24, seed=3, ignore_eos=True)
        with tiny(speculative_config={"method": "ngram", "num_speculative_tokens": 3}) as drafting:
            self.assertEqual(hashes(drafting.generate(PROMPTS, params, False)), hashes(self.llm.generate(PROMPTS, params, False)))

    def test_the_loop_is_for_its_callers_to_drive(self):
        params = SamplingParams(max_tokens=6, seed=5, ignore_eos=True)
        ids = [self.llm.add(prompt, params) for prompt in PROMPTS]
        self.llm.cancel(ids[2])
        tokens, whole = {i: [] for i in ids}, {}
        while self.llm.has_work():
            for update in self.llm.step():
                if update.token is not None:
                    tokens[update.id].append(update.token.id)
                else:
                    whole[update.id] = update.generation
        self.assertEqual(sorted(whole), [ids[0], ids[1], ids[3]])
        expected = self.llm.generate(PROMPTS, params, False)
        for i in (0, 1, 3):
            self.assertEqual(tokens[ids[i]], expected[i].outputs[0].token_ids)
            self.assertEqual(whole[ids[i]].logits_hash, expected[i].outputs[0].logits_hash)

    def test_other_threads_run_while_it_computes(self):
        counted, done = [0], threading.Event()

        def count():
            while not done.is_set():
                counted[0] += 1
                time.sleep(0.0005)

        thread = threading.Thread(target=count)
        thread.start()
        self.llm.generate(PROMPTS, SamplingParams(max_tokens=100, ignore_eos=True), False)
        done.set()
        thread.join()
        self.assertGreater(counted[0], 20)

    def test_threads_are_computed_together(self):
        params = SamplingParams(max_tokens=16, seed=9, ignore_eos=True)
        expected = hashes(self.llm.generate(PROMPTS, params, False))
        found = {}
        threads = [threading.Thread(target=lambda i=i: found.update({i: hashes(self.llm.generate(PROMPTS[i], params, False))[0]}))
                   for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([found[i] for i in range(4)], expected)

    def test_ctrl_c_ends_a_call(self):
        params = SamplingParams(max_tokens=200, n=64, ignore_eos=True)
        timer = threading.Timer(0.1, lambda: signal.raise_signal(signal.SIGINT))
        timer.start()
        with self.assertRaises(KeyboardInterrupt):
            for _ in range(100):
                self.llm.generate(PROMPTS, params, False)
        timer.join()
        self.assertFalse(self.llm.has_work())
        self.assertEqual(len(self.llm.generate("hello", SamplingParams(max_tokens=3, ignore_eos=True), False)[0].outputs[0].token_ids), 3)

    def test_chat_is_the_template_and_generate(self):
        messages = [{"role": "user", "content": "hello"}]
        tokenizer = self.llm.get_tokenizer()
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        self.assertEqual(ids, tokenizer.encode(tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True), add_special_tokens=False))
        params = SamplingParams(max_tokens=5, seed=1)
        self.assertEqual(hashes(self.llm.chat(messages, params, False)), hashes(self.llm.generate(ids, params, False)))
        self.assertEqual(len(self.llm.chat([messages, messages], params, False)), 2)

    def test_the_tokenizer_goes_there_and_back(self):
        tokenizer = self.llm.get_tokenizer()
        text = "Zwölf boxers, 12 € — and a 🐈"
        self.assertEqual(tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)), text)
        ids = tokenizer.encode("hello")
        self.assertEqual(tokenizer.convert_tokens_to_ids(tokenizer.convert_ids_to_tokens(ids)), ids)
        self.assertEqual(tokenizer(["hello"])["input_ids"], [ids])

    def test_receipts_are_confirmed_by_the_program(self):
        output = self.llm.generate("hello", SamplingParams(max_tokens=70, seed=2, receipt=True, ignore_eos=True), False)[0]
        receipt = output.outputs[0].receipt
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "receipt.json"
            for change, confirmed in ((0, True), (1, False)):
                receipt["answer"]["tokens"][3] += change
                path.write_text(json.dumps(receipt))
                said = program("verify", str(path), "tiny", "--load-format", "dummy:7", "--threads", "1", check=False)
                self.assertEqual("confirmed" in said, confirmed, said)


if __name__ == "__main__":
    unittest.main()
