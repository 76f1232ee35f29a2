#!/usr/bin/env python3
"""vLLM's RL surface as TRL 1.16, SkyRL 0.3, prime-rl and AReaL 1.0 call it. Usage: tokens_test.py INVAR"""
import concurrent.futures
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python/invar"))
from http_weights import HttpWeights

from served import Served, events, fast_and

INVAR = None
KEY = {"Authorization": "Bearer k"}
IDS = [5, 6, 7, 8, 9]
SAMPLING = {"max_tokens": 12, "temperature": 0.8, "ignore_eos": True, "seed": 3, "logprobs": 2}


class Raw:
    """A tensor of safetensors, which HttpWeights sends as it stands."""

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, shape, data

    def tobytes(self):
        return self.data


def tensors_of(directory):
    """(name, tensor) of a model's only file of safetensors."""
    data = next(pathlib.Path(directory).glob("*.safetensors")).read_bytes()
    size, = struct.unpack_from("<Q", data)
    types = {"BF16": "bfloat16", "F32": "float32"}
    for name, info in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + at for at in info["data_offsets"])
            yield name, Raw(types[info["dtype"]], info["shape"], data[begin:end])


class Tokens(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="invar-tokens-")
        cls.root = pathlib.Path(cls.directory.name)
        for name, seed in (("one", 1), ("two", 2)):
            subprocess.run([INVAR, "make-model", cls.root / name, "--seed", str(seed)], check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def setUp(self):
        self.served = self.serve("--weight-transfer-config", '{"backend": "http"}', "--max-logprobs", "-1", "--enable-scale-out",
                                 "--logprobs-mode", "processed_logprobs")

    def tearDown(self):
        if self.served.process.poll() is None:
            self.assertEqual(self.served.stop(), 0)

    def serve(self, *flags, model="one"):
        return Served(INVAR, command=[INVAR, "serve", self.root / model, "--host", "127.0.0.1", "--port", "0",
                                      *fast_and(["--api-key", "k", "--max-model-len", "2048", *flags])])

    def ask(self, path, body=None, status=200, method="POST", headers=KEY):
        found, self.headers, answer = self.served.ask(method, path, body, headers)
        self.assertEqual(found, status, (path, answer))
        return answer

    def generate(self, path="/inference/v1/generate", sampling=None, **body):
        return self.ask(path, {"token_ids": IDS, "sampling_params": {**SAMPLING, **(sampling or {})}, **body})

    def test_tokens_in_tokens_out_are_a_completion(self):
        plain = self.ask("/v1/completions", {"prompt": IDS, **SAMPLING, "return_token_ids": True, "return_tokens_as_token_ids": True,
                                             "logits_hash": True})["choices"][0]
        self.assertEqual(plain["logprobs"]["tokens"], [f"token_id:{token}" for token in plain["token_ids"]])
        answer = self.generate(request_id="mine", return_token_ids=True, logits_hash=True, features=None)
        self.assertEqual([answer["request_id"], answer["output_mode"], answer["prompt_token_ids"]], ["mine", "tokens", IDS])
        choice, = answer["choices"]
        self.assertEqual([choice["token_ids"], choice["finish_reason"], choice["logits_hash"]],
                         [plain["token_ids"], "length", plain["logits_hash"]])
        content = choice["logprobs"]["content"]
        self.assertEqual([one["logprob"] for one in content], plain["logprobs"]["token_logprobs"])
        self.assertEqual([one["token_id"] for one in content], plain["token_ids"])
        for one, top in zip(content, plain["logprobs"]["top_logprobs"]):  # as TRL and SkyRL read them
            self.assertEqual(int(one["token"].removeprefix("token_id:")), one["token_id"])
            self.assertEqual({other["token"]: other["logprob"] for other in one["top_logprobs"]}, top)
        self.assertEqual(answer["usage"]["completion_tokens"], 12)
        text = self.generate(output_mode="text")["choices"][0]
        self.assertEqual([text["text"], text["token_ids"]], [plain["text"], plain["token_ids"]])
        self.assertEqual(bytes(text["logprobs"]["content"][0]["bytes"]).decode(), text["logprobs"]["content"][0]["token"])
        several = self.generate(sampling={"n": 3, "output_kind": 2, "detokenize": True})["choices"]
        self.assertEqual([one["index"] for one in several], [0, 1, 2])
        self.assertEqual(several[0]["token_ids"], plain["token_ids"])
        scored = self.generate(sampling={"prompt_logprobs": 1})["prompt_logprobs"]
        self.assertEqual([scored[0], [str(token) in one for token, one in zip(IDS[1:], scored[1:])]], [None, [True] * 4])
        long = self.ask("/inference/v1/generate", {"token_ids": IDS, "sampling_params": {"ignore_eos": True, "seed": 3}})
        self.assertEqual(len(long["choices"][0]["token_ids"]), 2048 - len(IDS), "it fills the context")

    def test_a_stream_says_the_same(self):
        whole = self.generate(return_token_ids=True)
        for mode in ("tokens", "text"):
            said = self.served.stream("/inference/v1/generate", KEY, token_ids=IDS, sampling_params=SAMPLING, return_token_ids=True,
                                      output_mode=mode, stream_options={"include_usage": True})
            parts = events(said)
            self.assertEqual({part["output_mode"] for part in parts}, {mode})
            self.assertEqual([part.get("prompt_token_ids") for part in parts], [IDS] + [None] * (len(parts) - 1))
            choices = [choice for part in parts for choice in part["choices"]]
            self.assertEqual(sum((choice["token_ids"] for choice in choices), []), whole["choices"][0]["token_ids"])
            logprobs = [one["logprob"] for choice in choices for one in choice["logprobs"]["content"]]
            self.assertEqual(logprobs, [one["logprob"] for one in whole["choices"][0]["logprobs"]["content"]])
            self.assertEqual(choices[-1]["finish_reason"], "length")
            self.assertEqual(parts[-1]["usage"]["completion_tokens"], 12)

    def test_render_generate_derender_are_a_chat(self):
        chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "seed": 5, "logprobs": True, "top_logprobs": 1,
                "temperature": 0.8}
        plain = self.ask("/v1/chat/completions", {**chat, "return_token_ids": True})
        rendered = self.ask("/v1/chat/completions/render", chat)
        self.assertEqual(rendered["token_ids"], plain["prompt_token_ids"], "beside the choices, as vLLM has it")
        generated = self.ask("/inference/v1/generate", rendered)  # as it stands
        self.assertEqual(generated["choices"][0]["token_ids"], plain["choices"][0]["token_ids"])
        shown = self.ask("/v1/chat/completions/derender", {"generate_response": generated, "chat_request": chat,
                                                           "prompt_token_ids": rendered["token_ids"]})
        self.assertEqual(shown["choices"][0]["message"], plain["choices"][0]["message"])
        self.assertEqual(shown["choices"][0]["logprobs"], plain["choices"][0]["logprobs"])
        self.assertEqual([shown["choices"][0]["finish_reason"], shown["usage"]["total_tokens"]],
                         [plain["choices"][0]["finish_reason"], plain["usage"]["total_tokens"]])
        completion = {"prompt": ["hello", "a cat"], "max_tokens": 6, "seed": 5, "ignore_eos": True}
        answers = [self.ask("/inference/v1/generate", one) for one in self.ask("/v1/completions/render", completion)]
        shown = self.ask("/v1/completions/derender", {"generate_responses": answers, "prompt_tokens": [3, 4]})
        expected = self.ask("/v1/completions", completion)["choices"]
        self.assertEqual([choice["text"] for choice in shown["choices"]], [choice["text"] for choice in expected])
        self.assertEqual([shown["usage"]["prompt_tokens"], shown["usage"]["completion_tokens"]], [7, 12])

    def test_what_trl_asks_first(self):
        config = self.ask("/server_info?config_format=json", method="GET")["vllm_config"]
        self.assertEqual([config["weight_transfer_config"], config["model_config"]["logprobs_mode"]], [{"backend": "http"}, "processed_logprobs"])
        self.assertIsInstance(self.ask("/server_info", method="GET")["vllm_config"], str)
        answer = self.ask("/v1/completions", {"prompt": [IDS, IDS[:3]], "n": 2, "return_token_ids": True, "return_tokens_as_token_ids": True,
                                              "logprobs": 0, "max_tokens": 4, "repetition_penalty": 1.0, "temperature": 1.0, "top_p": 1.0,
                                              "top_k": 0, "min_p": 0.0, "ignore_eos": True})["choices"]
        self.assertEqual([choice["prompt_token_ids"] for choice in answer[::2]], [IDS, IDS[:3]])
        self.assertEqual(self.ask("/v1/completions", {"prompt": [IDS], "max_tokens": 1, "prompt_logprobs": 100, "temperature": 0.7})
                         ["choices"][0]["prompt_logprobs"][1][str(IDS[1])]["rank"] >= 1, True)
        refused = self.ask("/init_weight_transfer_engine", {"init_info": {"master_address": "x", "master_port": 1, "rank_offset": 1,
                                                                          "world_size": 2, "packed": True}}, 400)
        self.assertIn("nccl", refused["error"]["message"])

    def test_weights_come_in_bodies(self):
        address = f"http://127.0.0.1:{self.served.port}"
        sender = HttpWeights(address, "k", piece_bytes=100_000)
        before = self.ask("/weight_checker", {"action": "checksum"})["checksums"]
        self.ask("/init_weight_transfer_engine", {"init_info": {"backend": "http"}})
        reply = sender.send(tensors_of(self.root / "two"), "step-2")
        self.assertEqual(self.ask("/weight_info", method="GET"), {"weight_version": "step-2", "weights": reply["weights"]})
        other = self.generate()["choices"][0]
        self.assertEqual(self.ask("/weight_checker", {"action": "compare", "baseline": before})["match"], False)
        self.ask("/update_weights", {"update_info": {"path": str(self.root / "two")}})
        self.assertEqual(self.generate()["choices"][0], other, "the same checkpoint from a disk")
        # Asleep and awake again: they are read once more.
        sender.send(tensors_of(self.root / "one"))
        self.assertEqual(self.ask("/weight_checker", {"action": "compare", "baseline": before})["match"], True)
        self.ask("/sleep?level=2")
        self.ask("/wake_up")
        mine = self.generate()["choices"][0]
        self.assertNotEqual(mine, other)
        # What is not whole is refused, and the weights stay.
        for wrong, sentence in ((list(tensors_of(self.root / "two"))[:3], "expected"), ([("x", Raw("float32", [1], b"abcd"))], "expected")):
            with self.assertRaisesRegex(RuntimeError, sentence):
                sender.send(wrong)
        self.assertEqual(self.generate()["choices"][0], mine)
        for body in (b"", b"\x08\0\0\0\0\0\0\0{}", b"\xff" * 32, b"\x02\0\0\0\0\0\0\0{}"):
            found, _, answer = self.served.ask("POST", "/update_weights", body, {**KEY, "Content-Type": "application/octet-stream"})
            self.assertEqual(found, 400, answer)
        self.ask("/start_weight_update")
        sender.add(list(tensors_of(self.root / "two"))[:1])
        with self.assertRaisesRegex(RuntimeError, "each tensor once"):
            sender.add(list(tensors_of(self.root / "two"))[:1])

    def test_a_head_that_is_the_embedding_comes_in_bodies(self):
        self.assertEqual(self.served.stop(), 0)
        for name, seed in (("tied", 1), ("tied-two", 2)):
            subprocess.run([INVAR, "make-model", self.root / name, "--seed", str(seed), "--tied-head", "true"], check=True, capture_output=True)
        self.served = self.serve("--weight-transfer-config", '{"backend": "http"}', model="tied")
        sender = HttpWeights(f"http://127.0.0.1:{self.served.port}", "k")
        logits = lambda: self.ask("/v1/completions", {"prompt": IDS, **SAMPLING, "logits_hash": True})["choices"][0]["logits_hash"]
        first, second = (list(tensors_of(self.root / name)) for name in ("tied", "tied-two"))
        heads = [[("lm_head.weight", dict(tensors)["model.embed_tokens.weight"])] for tensors in (first, second)]
        before = logits()
        with self.assertRaisesRegex(RuntimeError, "the head differs from"):
            sender.send(second + heads[0])
        self.assertEqual(logits(), before)
        sender.send(second + heads[1])
        after = logits()
        self.assertNotEqual(after, before)
        sender.send(first)
        self.assertEqual(logits(), before)
        self.ask("/update_weights", {"update_info": {"path": str(self.root / "tied-two")}})
        self.assertEqual(logits(), after)

    def test_versions_have_names(self):
        self.ask("/update_weight_version", {"new_version": "7", "abort_all_requests": True})
        self.assertEqual(self.ask("/weight_info", method="GET")["weight_version"], "7")
        self.assertEqual(self.generate()["weight_version"], "7")
        self.ask("/inference/v1/generate", {"token_ids": IDS, "weight_version": {"exact_version": 8}}, 503)

    def test_the_calls_of_other_stacks(self):
        two = str(self.root / "two")
        digest = lambda: self.ask("/weight_info", method="GET")["weights"]
        first = digest()
        # SkyRL
        self.ask("/collective_rpc", {"method": "skyrl_start_weight_update", "kwargs": {"is_checkpoint_format": True}})
        self.ask("/update_weights", {"update_info": {"path": two}})
        self.assertEqual(digest(), first)
        self.ask("/collective_rpc", {"method": "skyrl_finish_weight_update"})
        second = digest()
        self.assertNotEqual(second, first)
        self.ask("/pause?mode=keep&clear_cache=false")
        self.ask("/resume")
        self.ask("/reset_prefix_cache", {"reset_running_requests": False})
        self.assertNotIn("routed_experts", self.generate("/skyrl/v1/generate")["choices"][0])
        # prime-rl
        self.ask("/update_weights", {"weight_dir": str(self.root / "one")})
        self.assertEqual(digest(), first)
        self.ask("/collective_rpc", {"method": "update_weights_from_path", "args": [two]})
        self.assertEqual(digest(), second)
        # AReaL
        self.ask("/areal_pause_generation", {})
        self.ask("/areal_update_weights", {"model_path": str(self.root / "one")})
        self.ask("/areal_continue_generation", {})
        self.assertEqual(digest(), first)
        # slime
        self.ask("/begin_weight_update", {"selector": "all"})
        self.ask("/update_weights_from_disk", {"model_path": two, "weight_version": "3"})
        self.ask("/end_weight_update", {})
        self.assertEqual(digest(), second)
        self.assertEqual(self.ask("/v1/loads", method="GET")["aggregate"]["num_total_reqs"], 0)

    def test_an_answer_is_ended_by_its_id(self):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            asked = {name: pool.submit(self.served.ask, "POST", "/inference/v1/generate", {
                "token_ids": IDS, "request_id": name, "sampling_params": {"max_tokens": 1800, "n": 8, "ignore_eos": True, "seed": 1}}, KEY)
                for name in ("a", "b")}
            self.served.wait_until(lambda: self.served.ask("GET", "/load")[2]["server_load"] == 2)
            self.assertEqual(self.ask("/abort_requests", {"request_ids": ["nobody"]})["aborted"], 0)
            self.assertEqual(self.ask("/abort_requests", {"request_ids": ["a"]})["aborted"], 1)
            ends = {name: one.result()[2]["choices"][0]["finish_reason"] for name, one in asked.items()}
        self.assertEqual(ends, {"a": "abort", "b": "length"})

    def test_experts_in_each_form(self):
        subprocess.run([INVAR, "make-model", self.root / "experts", "--family", "qwen3_moe"], check=True, capture_output=True)
        self.served.stop()
        self.served = Served(INVAR, command=[INVAR, "serve", self.root / "experts", "--host", "127.0.0.1", "--port", "0",
                                             *fast_and(["--api-key", "k"])])
        import base64
        plain = self.ask("/v1/completions", {"prompt": IDS, "max_tokens": 4, "seed": 1, "ignore_eos": True, "return_routed_experts": True})
        rows = plain["choices"][0]["prompt_routed_experts"] + plain["choices"][0]["routed_experts"]
        sampling = {"max_tokens": 4, "seed": 1, "ignore_eos": True}
        nested = self.ask("/skyrl/v1/generate", {"token_ids": IDS, "sampling_params": sampling})["choices"][0]["routed_experts"]
        self.assertEqual([sum(layers, []) for layers in nested], rows)
        packed = self.ask("/inference/v1/generate", {"token_ids": IDS, "sampling_params": sampling, "return_routed_experts": True})
        data = base64.b64decode(packed["choices"][0]["routed_experts"])
        self.assertEqual(data[:6], b"\x93NUMPY")
        size = struct.unpack_from("<H", data, 8)[0]
        self.assertIn(str((len(rows), len(nested[0]), len(nested[0][0]))), data[10:10 + size].decode())
        self.assertEqual((10 + size) % 64, 0)
        self.assertEqual(list(struct.unpack(f"<{len(rows) * len(rows[0])}H", data[10 + size:])), sum(rows, []))
        sglang = self.ask("/generate", {"input_ids": IDS, "return_routed_experts": True,
                                        "sampling_params": {"max_new_tokens": 4, "sampling_seed": 1, "ignore_eos": True}})["meta_info"]
        data = base64.b64decode(sglang["routed_experts"])
        self.assertEqual(list(struct.unpack(f"<{len(data) // 4}i", data)), sum(rows, []))

    def test_what_makes_no_sense_is_refused(self):
        for path, body in (("/inference/v1/generate", {}), ("/inference/v1/generate", {"token_ids": []}),
                           ("/inference/v1/generate", {"token_ids": "x"}), ("/inference/v1/generate", {"token_ids": [10**9]}),
                           ("/inference/v1/generate", {"token_ids": IDS, "sampling_params": 3}),
                           ("/inference/v1/generate", {"token_ids": IDS, "output_mode": "derender"}),
                           ("/inference/v1/generate", {"token_ids": IDS, "output_mode": "text", "sampling_params": {"detokenize": False}}),
                           ("/inference/v1/generate", {"token_ids": IDS, "features": {"mm_hashes": {}}}),
                           ("/inference/v1/generate", {"token_ids": IDS, "request_id": "x" * 300}),
                           ("/inference/v1/generate", {"token_ids": IDS, "stream": 3}), ("/inference/v1/generate", "{"),
                           ("/inference/v1/generate", {"token_ids": IDS, "sampling_params": {"use_beam_search": True}}),
                           ("/v1/chat/completions/derender", {}), ("/v1/chat/completions/derender", {"generate_response": {"choices": 3}}),
                           ("/v1/chat/completions/derender", {"generate_response": {"choices": []}}),
                           ("/v1/chat/completions/derender", {"generate_response": {"choices": [{"token_ids": [10**9]}]}}),
                           ("/v1/chat/completions/derender", {"generate_response": {"choices": [{"token_ids": [1], "logprobs": {"content": [3]}}]}}),
                           ("/v1/chat/completions/derender", {"stream": True, "generate_response": {"choices": [{"token_ids": [1]}]}}),
                           ("/v1/completions/derender", {"generate_responses": 3}), ("/v1/completions/derender", {"generate_responses": [3]}),
                           ("/start_draft_weight_update", {}), ("/begin_weight_update", {"selector": "draft"}),
                           ("/update_weight_version", {}), ("/update_weight_version", {"new_version": "a\nb"}),
                           ("/update_weights", {"update_info": {"names": ["x"], "dtype_names": ["bfloat16"], "shapes": [[1]]}}),
                           ("/update_weights", {"update_info": {"names": [], "ipc_handles_pickled": "x"}}),
                           ("/update_weights", {"weight_dir": None}), ("/weight_checker", {"action": "reset"}),
                           ("/weight_checker", {"action": "compare", "baseline": 3}), ("/collective_rpc", {"method": "update_weights_nccl"}),
                           ("/collective_rpc", {"method": "os.system"}), ("/collective_rpc", {"method": "reload_weights"}),
                           ("/abort_requests", {"request_ids": "x"}), ("/start_profile", {}), ("/init_broadcaster", {})):
            self.assertIn("message", self.ask(path, body, 400)["error"], path)
        self.assertEqual(self.generate()["choices"][0]["finish_reason"], "length")

    def test_a_back_end_that_is_not_there_is_refused_at_the_start(self):
        done = subprocess.run([INVAR, "serve", self.root / "one", "--port", "0", "--weight-transfer-config", '{"backend": "ipc"}'],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("weights by CUDA IPC are not supported", done.stderr)

    def test_keys(self):
        for path in ("/update_weights", "/update_weight_version", "/collective_rpc", "/begin_weight_update", "/areal_update_weights"):
            self.ask(path, {}, 401, headers={})
        self.ask("/inference/v1/generate", {"token_ids": IDS}, 401, headers={})
        self.ask("/weight_info", method="GET", status=401, headers={})


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main()
