"""Two hundred calls that make no sense: an exception each, no crash, and the model answers as before."""
import os
import threading
import unittest

import numpy as np
from invar import LLM, AsyncLLM, SamplingParams, StructuredOutputsParams
from support import tiny

NAN = float("nan")


class Freed:
    """Has __dlpack__ and nothing behind it."""

    def __init__(self, gives):
        self.gives = gives

    def __dlpack__(self, **_):
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives

    def __dlpack_device__(self):
        return 1, 0


class Elsewhere:
    """Says that it is on a device, which there may not be, or nothing that makes sense."""

    def __init__(self, device):
        self.device_ = device

    def __dlpack_device__(self):
        return self.device_

    def __dlpack__(self, **_):
        return np.zeros(4, np.float32).__dlpack__()




def params_that_make_no_sense():
    wrong = {
        "n": [0, -1, 1.5, "2", None, True, 10**9], "temperature": [-1, NAN, "hot", None, [], 1e400],
        "top_p": [0, -0.1, 1.1, NAN, "x"], "top_k": [-2, 1.5, "x", 2**40], "min_p": [-0.1, 1.1, NAN, "x"],
        "repetition_penalty": [0, -1, NAN, "x"], "presence_penalty": [NAN, "x", 1e400], "frequency_penalty": [NAN, "x"],
        "seed": ["x", 1.5, 2**70, -2**70], "stop": [3, [3], "", [""], [None]], "stop_token_ids": ["x", [1.5], [10**6], [-1], [2**40]],
        "bad_words": [[""], [3], [" "]], "ignore_eos": ["x"], "max_tokens": [0, -1, "x", 1.5, 2**40, 10**6],
        "min_tokens": [-1, "x", 10**6], "logprobs": [-2, "x", 1.5, 10**7], "prompt_logprobs": [-2, "x", 10**7], "logprobs_mode": ["cooked", 3, "raw", []],
        "logit_bias": [{"x": 1}, {1: "x"}, {10**6: 1}, {-1: 1}, {1: NAN}, [1]], "allowed_token_ids": [["x"], [10**6], [-1], 3],
        "structured_outputs": [3, {"jsn": {}}, {"regex": "("}, {"choice": []}, {"json": {"type": "nothing"}}, {"grammar": "x"},
                               {"regex": "a", "choice": ["b"]}],
        "trace_decode_token_ids": [[], ["x"], [10**6], 3], "priority": ["x", 2**40], "cache_salt": [3], "logits_hash": ["x"],
        "temprature": [1], "best_of": [4], "guided_decoding": [{}], "truncate_prompt_tokens": [5], "flat_logprobs": [True],
    }
    return [(f"{name}={value!r}", lambda name=name, value=value: ("params", {name: value})) for name in wrong for value in wrong[name]]


def prompts_that_make_no_sense():
    return [None, 3, 1.5, b"bytes", {}, {"prompt": 3}, {"prompt_token_ids": "abc"}, {"prompt_token_ids": []},
            {"prompt_token_ids": [1, "x"]}, {"multi_modal_data": {"image": 1}}, [1, "x"], [[1, "x"]], [None], [10**6], [-1], [2**40],
            [1] * 300, "\ud800", object(), [[]], {"prompt_token_ids": [[1]]}, [True, False], "word " * 2000]


def tensors_that_make_no_sense(llm):
    name, _, shape = llm.tensors()[0]
    good = np.zeros(shape, np.uint16)
    wide = np.zeros((shape[0], 2 * shape[1]), np.uint16) if len(shape) == 2 else np.zeros(2 * shape[0], np.uint16)
    return [
        [(name, None)], [(name, 3)], [(name, "x")], [(name, [1.0])], [(3, good)], [(None, good)], [name], [3], [(name,)], 3, None,
        [("nothing", good)], [("", good)], [("a" * 100000, good)], [(name, good.astype(np.float32))], [(name, good.astype(np.float64))],
        [(name, good.astype(np.int32))], [(name, good.astype(np.complex64))], [(name, good[:-1])], [(name, good.reshape(-1))],
        [(name, good[None])], [(name, wide[..., ::2])], [(name, np.asfortranarray(np.zeros((3, 4), np.uint16)))],
        [(name, np.zeros((0,), np.uint16))], [(name, np.zeros((1,) * 20, np.uint16))], [(name, good | np.uint16(0x7f80))],
        [(name, good | np.uint16(0x7fc0))], [(name, Freed(None))], [(name, Freed(3))], [(name, Freed(ValueError("freed")))],
        [(name, Freed(BufferError("freed")))], *([(name, Elsewhere(device))] for device in ((2, 0), (2, 99), (2, -1), (13, 0), None, 3, (1,), ("x", 0), (2**40, 0))), [(name, good), ("nothing", good)], [(name, np.array("x"))], [(name, np.array([object()]))],
    ]


class MalformedTest(unittest.TestCase):
    def calls(self, llm):
        for label, make in params_that_make_no_sense():
            yield label, lambda make=make: llm.generate([1, 2, 3], SamplingParams(**{"max_tokens": 2, **make()[1]}), False)
        for prompt in prompts_that_make_no_sense():
            yield f"prompt {prompt!r:.40}", lambda prompt=prompt: llm.generate(prompt, SamplingParams(max_tokens=2), False)
        for tensors in tensors_that_make_no_sense(llm):
            yield f"tensors {tensors!r:.60}", lambda tensors=tensors: llm.update_weights(tensors)
        for tokens, positions in (([], []), ([1], [1]), ([1], [-1]), ([1, 2], [1, 0]), ([1, 2], [0, 0]), ([1] * 999, [0]), ("x", [0]),
                                  ([10**6], [0]), ([1], "x"), ([1], [0.5]), (None, None)):
            yield f"logits {tokens!r:.20} {positions}", lambda t=tokens, p=positions: llm.logits(t, p)
        for layers in ([99], [-1], [1, 0], "x", [0.5]):
            yield f"layers {layers}", lambda layers=layers: llm.hidden_states([1], layers)
        for messages in (3, [3], [{"role": 3, "content": "x"}], [{"content": "\ud800"}], [{"role": object()}]):
            yield f"messages {messages!r:.30}", lambda m=messages: llm.chat(m, SamplingParams(max_tokens=1), False)
        yield from self.others(llm)

    def others(self, llm):
        tokenizer = llm.get_tokenizer()
        for label, call in {
            "params of another type": lambda: llm.generate("a", {"max_tokens": 1}, False),
            "params for two": lambda: llm.generate("a", [SamplingParams()] * 2, False),
            "score": lambda: llm.score(3), "score of pairs": lambda: llm.score("a", [3]), "score of none": lambda: llm.score("a", []),
            "decide": lambda: llm.decide("a", []), "decide by number": lambda: llm.decide("a", [{"type": "score", "question": "x", "levels": 1}]),
            "rerank": lambda: llm.rerank("a", "b", 0), "ask": lambda: llm.ask("/v1/completions", {"prompt": "a"}), "ask nothing": lambda: llm.ask("/v1/score", 3), "embed": lambda: llm.embed([10**6]), "embed of nothing": lambda: llm.embed([[]]),
            "sleep": lambda: llm.sleep(3), "sleep of text": lambda: llm.sleep("x"), "wake up": lambda: llm.wake_up(["x"]),
            "sleep of level 0": lambda: llm.sleep(0), "sleep of None": lambda: llm.sleep(None), "wake up of text": lambda: llm.wake_up("weights"),
            "wake up of numbers": lambda: llm.wake_up([1]), "wake up of a number": lambda: llm.wake_up(3), "wake up of bytes": lambda: llm.wake_up([b"weights\xff"]),
            "load": lambda: llm.load_weights("/nowhere"), "rpc": lambda: llm.collective_rpc("reload_weights"),
            "encode": lambda: tokenizer.encode(3), "decode": lambda: tokenizer.decode("x"), "decode big": lambda: tokenizer.decode([2**40]),
            "template": lambda: tokenizer.apply_chat_template("x"), "cancel": lambda: llm.cancel("x"), "add": lambda: llm.add(None),
            "add two": lambda: llm.add("a", SamplingParams(n=2)), "form": lambda: StructuredOutputsParams(jsn=1),
            "no model": lambda: LLM(model="/nowhere"), "model of another type": lambda: LLM(model=3), "no arguments": lambda: LLM(),
            "threads": lambda: tiny(threads=-1), "threads of text": lambda: tiny(threads="x"), "arith": lambda: tiny(arith="x"),
            "device": lambda: tiny(device="tpu"), "length": lambda: tiny(max_model_len=-5), "cache": lambda: tiny(kv_cache_gib=NAN),
            "ranks": lambda: tiny(tensor_parallel_size=3), "policy": lambda: tiny(scheduling_policy="x"),
            "speculation": lambda: tiny(speculative_config={"method": "x"}), "speculation of text": lambda: tiny(speculative_config="{"),
            "unknown": lambda: tiny(nothing=1), "unknown of async": lambda: AsyncLLM(model="tiny", nothing=1),
            "key": lambda: tiny(receipt_key="/nowhere/at/all"), "nothing": lambda: llm.nothing,
        }.items():
            yield label, call

    def test_each_is_an_exception(self):
        llm = tiny()
        before = llm.generate([1, 2, 3], SamplingParams(max_tokens=8, seed=1), False)
        count = 0
        for label, call in self.calls(llm):
            count += 1
            with self.subTest(label):
                try:
                    call()
                except Exception as error:  # of any kind but the interpreter's own
                    self.assertNotIsInstance(error, SystemError)
                else:
                    self.fail("expected an exception, found none")
        print(f"{count} malformed calls")
        self.assertGreaterEqual(count, 200)
        self.assertEqual(llm.generate([1, 2, 3], SamplingParams(max_tokens=8, seed=1), False)[0].outputs, before[0].outputs)

    def test_who_is_closed_says_so(self):
        llm = tiny()
        llm.close()
        llm.close()
        for call in (lambda: llm.generate("a", use_tqdm=False), llm.step, llm.weights_digest, lambda: llm.logits([1])):
            with self.assertRaisesRegex(ValueError, "closed"):
                call()

    def test_a_forked_process_has_no_session(self):
        llm = tiny()
        child = os.fork()
        if child == 0:
            try:
                llm.generate("a", use_tqdm=False)
                code = 1
            except ValueError as error:
                code = 0 if "forked" in str(error) else 2
            del llm
            os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertEqual(len(llm.generate("a", SamplingParams(max_tokens=2, ignore_eos=True), False)[0].outputs[0].token_ids), 2)

    def test_a_session_may_be_closed_while_it_computes(self):
        llm = tiny()
        found = []

        def ask():
            try:
                found.append(llm.generate("a", SamplingParams(max_tokens=200, ignore_eos=True), False)[0].finished)
            except ValueError as error:
                found.append("closed" in str(error))

        thread = threading.Thread(target=ask)
        thread.start()
        llm.close()
        thread.join()
        self.assertEqual(found, [True])


if __name__ == "__main__":
    unittest.main()
