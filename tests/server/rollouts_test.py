#!/usr/bin/env python3
"""The doors of RL stacks: SGLang's names as slime uses them, vLLM's weight transfer, TRL's vllm-serve. Usage: rollouts_test.py INVAR"""
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

from served import Served, events, fast_and

INVAR = None
KEY = {"Authorization": "Bearer k"}
IDS = [5, 6, 7, 8, 9]


class Rollouts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="invar-rollouts-")
        cls.root = pathlib.Path(cls.directory.name)
        for name, seed in (("one", 1), ("two", 2)):
            subprocess.run([INVAR, "make-model", cls.root / name, "--seed", str(seed)], check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def setUp(self):
        self.served = self.serve("one", "--api-key", "k", "--max-model-len", "4096")

    def tearDown(self):
        if self.served.process.poll() is None:
            self.assertEqual(self.served.stop(), 0)

    def serve(self, model, *flags):
        return Served(INVAR, command=[INVAR, "serve", self.root / model, "--host", "127.0.0.1", "--port", "0", *fast_and(flags)])

    def ask(self, path, body=None, status=200, method="POST", headers=KEY):
        found, reply_headers, answer = self.served.ask(method, path, body, headers)
        self.assertEqual(found, status, (path, answer))
        self.headers = reply_headers
        return answer

    def wait_for_a_request(self):
        """Until the server has one."""
        self.served.wait_until(lambda: self.served.ask("GET", "/load")[2]["server_load"] > 0)

    def generate(self, tokens=12, **body):
        return self.ask("/generate", {"input_ids": IDS, "return_logprob": True, **body,
                                      "sampling_params": {"max_new_tokens": tokens, "temperature": 0.8, "ignore_eos": True,
                                                          "sampling_seed": 3, **body.get("sampling_params", {})}})

    def plain(self, mode="scaled_logprobs"):
        return self.ask("/v1/completions", {"prompt": IDS, "max_tokens": 12, "temperature": 0.8, "ignore_eos": True, "seed": 3,
                                            "logprobs": 0, "logprobs_mode": mode, "return_token_ids": True,
                                            "logits_hash": True})["choices"][0]

    def check_kinds_of_logprobs(self):
        """SGLang's: of the logits by the temperature, whatever top_k and top_p leave out."""
        said = lambda mode, **sampling: self.ask("/generate", {
            "input_ids": IDS, "return_logprob": True, **({"logprobs_mode": mode} if mode else {}),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.5, "ignore_eos": True, "sampling_seed": 3, **sampling}})
        value = lambda *args, **sampling: said(*args, **sampling)["meta_info"]["output_token_logprobs"][0][0]
        top = self.generate(top_logprobs_num=3)["meta_info"]
        for pairs, (logprob, token, _) in zip(top["output_top_logprobs"], top["output_token_logprobs"]):
            self.assertEqual((len(pairs), pairs), (3, sorted(pairs, key=lambda pair: -pair[0])))
            self.assertTrue([logprob, token, None] in pairs or logprob <= pairs[-1][0])
        for filters in ({"top_k": 5}, {"top_p": 0.01}, {"min_p": 0.9}, {"top_k": 5, "top_p": 0.5}):
            ours = said(None, **filters)
            token = ours["output_ids"][0]
            scaled, processed, raw = (value(mode, **filters) for mode in ("scaled_logprobs", "processed_logprobs", "raw_logprobs"))
            self.assertEqual(ours["meta_info"]["output_token_logprobs"][0][0], scaled)
            self.assertGreater(processed, scaled + 1e-3, "the control: the sum is smaller by what filters leave out")
            self.assertNotEqual(scaled, raw)
            prompt = self.ask("/v1/completions", {"prompt": IDS + [token], "max_tokens": 1, "temperature": 0.5, "prompt_logprobs": 0,
                                                  "logprobs_mode": "scaled_logprobs", **filters})["choices"][0]["prompt_logprobs"]
            self.assertEqual(prompt[-1][str(token)]["logprob"], scaled, "as a token of a prompt")

    def test_slimes_generate_is_a_completion(self):
        ours, theirs = self.generate(), self.plain()
        self.assertEqual(ours["text"], theirs["text"])
        self.assertEqual(ours["output_ids"], theirs["token_ids"])
        meta = ours["meta_info"]
        self.assertEqual(meta["output_token_logprobs"],
                         [[lp, token, None] for lp, token in zip(theirs["logprobs"]["token_logprobs"], theirs["token_ids"])])
        own = self.plain("raw_logprobs")["logprobs"]["token_logprobs"]
        self.assertNotEqual([pair[0] for pair in meta["output_token_logprobs"]], own, "SGLang's are by the temperature")
        raw = self.generate(logprobs_mode="raw_logprobs")["meta_info"]
        self.assertEqual([pair[0] for pair in raw["output_token_logprobs"]], own)
        self.check_kinds_of_logprobs()
        self.assertEqual(meta["finish_reason"], {"type": "length", "length": 12})
        self.assertEqual([meta["prompt_tokens"], meta["completion_tokens"], meta["weight_version"]], [5, 12, "default"])
        self.assertEqual(meta["logits_hash"], theirs["logits_hash"])
        stopped = self.generate(sampling_params={"ignore_eos": False, "stop_token_ids": [ours["output_ids"][4]]})
        self.assertEqual(stopped["meta_info"]["finish_reason"], {"type": "stop", "matched": ours["output_ids"][4]})
        several = self.ask("/generate", {"input_ids": [IDS, IDS[:3]], "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}})
        self.assertEqual([one["meta_info"]["prompt_tokens"] for one in several], [5, 3])
        long = self.generate(tokens=3000)  # sent in pieces by the endpoint behind it
        self.assertEqual(len(long["meta_info"]["output_token_logprobs"]), 3000)

    def test_slimes_loop_updates_from_disk(self):
        """What slime does between two rollouts with --update-weight-transport disk."""
        before = self.generate()
        info = self.ask("/server_info", method="GET")
        self.assertEqual(info["tp_size"], 1)
        slots = self.served.metric("invar:kv_blocks") * int(re.search(r'block_size="(\d+)"', self.served.ask("GET", "/metrics")[2].decode())[1])
        self.assertEqual(info["max_total_num_tokens"], slots)
        self.assertNotEqual(slots, info["context_length"])
        self.ask("/health_generate", method="GET", headers={})
        self.ask("/weights_checker", {"action": "snapshot"})
        self.ask("/pause_generation", {"mode": "abort"})
        self.ask("/flush_cache", method="GET")
        self.ask("/update_weights_from_disk", {"model_path": str(self.root / "two"), "load_format": None, "weight_version": "17"})
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            late = pool.submit(self.generate)
            time.sleep(0.1)
            self.assertFalse(late.done(), "a request was answered during the pause")
            self.ask("/continue_generation", {})
            after = late.result()
        self.assertEqual(self.ask("/get_weight_version", method="GET")["weight_version"], "17")
        self.assertEqual(after["meta_info"]["weight_version"], "17")
        self.assertNotEqual(after["meta_info"]["logits_hash"], before["meta_info"]["logits_hash"])
        fresh = self.serve("two", "--api-key", "k")
        self.served, mine = fresh, self.served
        self.assertEqual(self.generate()["meta_info"]["logits_hash"], after["meta_info"]["logits_hash"])
        fresh.stop()
        self.served = mine
        self.ask("/weights_checker", {"action": "compare"}, 400)
        self.plain()
        self.assertEqual(self.headers["X-Weight-Version"], "17")

    def test_who_is_late_holds_its_place_while_it_waits(self):
        """A request whose time has passed waits for the end of a pause all the same: only then is there room for another."""
        served = self.serve("one", "--api-key", "k", "--max-queued-requests", "1")
        self.addCleanup(served.stop)
        key = {"Authorization": "Bearer k"}

        def status(**headers):
            return served.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, {**key, **headers})[0]
        self.assertEqual(served.ask("POST", "/pause?mode=wait", {}, key)[0], 200)
        late = {"X-Request-Timeout": "0.05"}
        self.assertEqual([status(**late), status(**late)], [504, 429])
        self.assertEqual(served.ask("POST", "/resume", {}, key)[0], 200)
        served.wait_until(lambda: status() == 200)

    def test_vllms_weight_transfer(self):
        self.ask("/init_weight_transfer_engine", {"init_info": {}})
        self.ask("/pause?mode=wait")
        self.assertTrue(self.ask("/is_paused", method="GET")["is_paused"])
        self.ask("/start_weight_update", {})
        self.ask("/update_weights", {"update_info": {"path": str(self.root / "two")}})
        self.assertEqual(self.ask("/get_weight_version", method="GET")["weight_version"], "default", "before it is finished")
        self.ask("/finish_weight_update", {"weight_version": "step-2"})
        self.ask("/resume")
        self.assertEqual(self.ask("/get_weight_version", method="GET")["weight_version"], "step-2")
        digest = self.ask("/weight_checker", {"action": "checksum"})["checksum"]
        self.assertEqual(digest, self.served.ask("GET", "/version")[2]["weights"])
        self.ask("/weight_checker", {"action": "compare", "expected": digest})
        self.ask("/finish_weight_update", {}, 400)
        self.ask("/sleep?level=1")
        self.ask("/wake_up")
        self.ask("/reset_prefix_cache")
        self.assertEqual(self.ask("/get_world_size", method="GET"), {"world_size": 1})

    def test_sleep_gives_memory_back(self):
        """Of the server's process, and the engine's where that is another; who asks meanwhile waits."""
        self.served.stop()
        for flags in ((), ("--engine-process",)):
            self.served = Served(INVAR, command=[INVAR, "serve", "bench-100m", "--load-format", "dummy:7", "--host", "127.0.0.1", "--port", "0",
                                                 *fast_and(["--api-key", "k", "--max-model-len", "2048", "--kv-cache-memory", "0.25", *flags])])
            ids = [5 + i % 900 for i in range(1500)]
            one = {"input_ids": ids, "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}}
            bits = self.ask("/generate", one)["meta_info"]["logits_hash"]
            keys, weights = 1500 * 16 * 4 * 64 * 4, 180 << 20
            for sleep, wake, least in (("/sleep?level=1", "/wake_up", keys), ("/sleep?level=2", "/wake_up?tags=kv_cache&tags=weights", keys + weights),
                                       ("/release_memory_occupation", "/resume_memory_occupation", keys + weights)):
                before = self.resident()
                self.ask(sleep)
                self.assertGreater(before - self.resident(), least, sleep)
                self.assertTrue(self.ask("/is_sleeping", method="GET")["is_sleeping"])
                self.ask("/resume")  # of a pause, which this is not
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    late = pool.submit(self.ask, "/generate", one)
                    time.sleep(0.1)
                    self.assertFalse(late.done(), "a request was answered while the engine slept")
                    if least > keys:
                        self.ask("/update_weights", {"update_info": {"path": "bench-100m"}}, 409)
                    self.ask(wake)
                    self.assertEqual(late.result()["meta_info"]["logits_hash"], bits)
                self.assertFalse(self.ask("/is_sleeping", method="GET")["is_sleeping"])
            before = self.resident()
            self.ask("/sleep?level=0")
            self.assertLess(before - self.resident(), keys // 2, "the control: a level that gives nothing back")
            self.ask("/wake_up")
            self.ask("/sleep", {"level": 2})
            self.ask("/wake_up", {"tags": ["weights"]})
            self.assertTrue(self.ask("/is_sleeping", method="GET")["is_sleeping"])
            with concurrent.futures.ThreadPoolExecutor(1) as pool:  # a server that ends wakes up for those who wait
                late = pool.submit(self.ask, "/generate", one)
                self.wait_for_a_request()
                self.assertEqual(self.served.stop(), 0)
                self.assertEqual(late.result()["meta_info"]["logits_hash"], bits)

    def resident(self):
        """Bytes of the server and what it has started."""
        pid = self.served.process.pid
        children = [one for threads in pathlib.Path(f"/proc/{pid}/task").glob("*/children") for one in threads.read_text().split()]
        return sum(int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{one}/status").read_text())[1]) << 10 for one in (pid, *children))

    def test_trls_routes(self):
        answer = self.ask("/generate/", {"prompts": ["hello", "a cat"], "n": 2, "temperature": 0.8, "max_tokens": 6, "logprobs": 0,
                                         "repetition_penalty": 1.0, "top_k": 0, "min_p": 0.0, "images": None,
                                         "generation_kwargs": {"seed": 3, "ignore_eos": True}})
        self.assertEqual([len(answer["prompt_ids"]), len(answer["completion_ids"])], [2, 4])
        self.assertEqual([len(ids) for ids in answer["completion_ids"]], [6] * 4)
        self.assertEqual([[t[0] for t in ids] for ids in answer["logprob_token_ids"]], answer["completion_ids"])
        expected = self.ask("/v1/completions", {"prompt": ["hello", "a cat"], "n": 2, "temperature": 0.8, "max_tokens": 6, "seed": 3,
                                                "ignore_eos": True, "logprobs": 0, "return_token_ids": True,
                                                "logprobs_mode": "processed_logprobs"})["choices"]
        self.assertEqual(answer["completion_ids"], [choice["token_ids"] for choice in expected])
        self.assertEqual([[lp[0] for lp in lps] for lps in answer["logprobs"]],
                         [choice["logprobs"]["token_logprobs"] for choice in expected])
        self.ask("/health/", method="GET", headers={})
        self.ask("/get_world_size/", method="GET")
        self.ask("/reset_prefix_cache/")

    def test_no_answer_mixes_versions(self):
        """Each answer that overlaps an update is as if it were alone, by the weights that it names."""
        hashes = {"default": self.generate(300)["meta_info"]["logits_hash"]}
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            running = [pool.submit(self.generate, 300) for _ in range(4)]
            time.sleep(0.01)
            update = pool.submit(self.ask, "/update_weights_from_disk", {"model_path": str(self.root / "two"), "weight_version": 2})
            late = [pool.submit(self.generate, 300) for _ in range(3)]
            update.result()
            hashes["2"] = self.generate(300)["meta_info"]["logits_hash"]
            metas = [one.result()["meta_info"] for one in running + late]
        self.assertNotEqual(hashes["default"], hashes["2"])
        for meta in metas:
            self.assertEqual(meta["logits_hash"], hashes[meta["weight_version"]])
        self.ask("/generate", {"input_ids": IDS, "weight_version": {"exact_version": 3}}, 503)

    def wait_for_tokens(self, running):
        """Until all of these requests are computed, and some tokens of each are there."""
        tokens = lambda: self.served.metric("vllm:generation_tokens_total")
        self.served.wait_until(lambda: self.served.ask("GET", "/load")[2]["server_load"] == len(running))
        begin = tokens()
        self.served.wait_until(lambda: tokens() > begin + 30 * len(running))

    def long_answers(self, pool):
        """Requests of 2500 tokens, one by each door, that have begun, and the same answer whole."""
        body = {"max_tokens": 2500, "seed": 3, "ignore_eos": True, "return_token_ids": True}
        whole = self.ask("/v1/completions", {"prompt": IDS, **body})["choices"][0]["token_ids"]
        running = [pool.submit(self.generate, 2500, sampling_params={"temperature": 1.0}),
                   pool.submit(self.ask, "/v1/completions", {"prompt": IDS, "n": 2, **body}),
                   pool.submit(self.ask, "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], **body}),
                   pool.submit(self.served.stream, "/v1/completions", KEY, prompt=IDS, **body),
                   pool.submit(self.served.ask, "POST", "/v1/messages", {"max_tokens": 2500, "ignore_eos": True, "messages":
                                                                         [{"role": "user", "content": "hi"}]}, KEY)]
        self.wait_for_tokens(running)
        return running, whole

    def expect_partial(self, running, whole):
        """What was computed, as it is in the whole answer, and marked."""
        meta, completion, chat, stream, message = (one.result() for one in running)
        self.assertEqual(meta["meta_info"]["finish_reason"]["type"], "abort")
        self.assertEqual([c["finish_reason"] for c in completion["choices"] + chat["choices"]], ["abort"] * 3)
        parts = [e["choices"][0] for e in events(stream)]
        self.assertEqual([parts[-1]["finish_reason"], parts[0]["finish_reason"]], ["abort", None])
        for ids in (meta["output_ids"], completion["choices"][0]["token_ids"], sum((p["token_ids"] for p in parts), [])):
            self.assertTrue(0 < len(ids) < 2500, len(ids))
            self.assertEqual(ids, whole[:len(ids)])
        self.assertEqual(len(meta["meta_info"]["output_token_logprobs"]), len(meta["output_ids"]))
        self.assertEqual(completion["usage"]["completion_tokens"], sum(len(c["token_ids"]) for c in completion["choices"]))
        self.assertEqual(message[0], 503, "this protocol has no mark of it")

    def test_an_abort_keeps_what_was_computed(self):
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            running, whole = self.long_answers(pool)
            self.ask("/pause?mode=abort")
            self.expect_partial(running, whole)
        self.ask("/resume")
        self.generate()

    def test_an_update_may_abort_what_runs(self):
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            running, whole = self.long_answers(pool)
            update = {"model_path": str(self.root / "two"), "weight_version": "2"}
            self.ask("/update_weights_from_disk", {**update, "abort_all_requests": 1}, 400)
            self.ask("/update_weights_from_disk", {**update, "abort_all_requests": True})
            self.expect_partial(running, whole)
        self.assertNotEqual(self.generate()["output_ids"], whole[:12], "the control: the new weights")

    def kept(self, pool, body, doors, update):
        """Answers over which a pause came that kept them, with the time that it took to begin."""
        running = [pool.submit(door, body) for door in doors]
        self.wait_for_tokens(running)
        begin = time.monotonic()
        self.ask("/pause?mode=keep")
        self.assertLess(time.monotonic() - begin, 5)
        self.assertFalse(any(one.done() for one in running))
        update()
        waits = pool.submit(self.generate)
        time.sleep(0.2)
        self.assertFalse(waits.done() or any(one.done() for one in running), "nothing is computed in a pause")
        self.ask("/resume")
        waits.result()
        return [one.result() for one in running]

    def test_a_pause_keeps_answers_that_go_on_with_new_weights(self):
        body = {"prompt": IDS, "max_tokens": 1500, "seed": 3, "ignore_eos": True, "return_token_ids": True, "logits_hash": True}
        def plain(body):
            return self.ask("/v1/completions", body)["choices"]
        def streamed(body):
            parts = [e["choices"][0] for e in events(self.served.stream("/v1/completions", KEY, **body))]
            return [{**parts[-1], "token_ids": sum((p["token_ids"] for p in parts), [])}]
        def sglang(body):
            one = self.generate(1500, sampling_params={"temperature": 1.0})
            return [{**one["meta_info"], "token_ids": one["output_ids"]}]
        def chat(body):
            return self.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], **{**body, "prompt": None}})["choices"]
        def message(body):
            return self.served.ask("POST", "/v1/messages", {"max_tokens": 1500, "ignore_eos": True,
                                                            "messages": [{"role": "user", "content": "hi"}]}, KEY)
        whole = plain(body)[0]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            # By the same weights nothing is seen of it.
            looking = {**body, "frequency_penalty": 0.5, "repetition_penalty": 1.1, "prompt_logprobs": 0, "logprobs": 0}
            expected = plain(looking)
            for same in self.kept(pool, looking, [plain, plain], lambda: None):
                self.assertEqual(same, expected)
            update = lambda: self.ask("/update_weights_from_disk", {"model_path": str(self.root / "two"), "weight_version": "2"})
            *answers, refused = self.kept(pool, body, [plain, streamed, sglang, chat, message], update)
            self.assertEqual(refused[0], 503, "this protocol has no words for it")
        for (answer, *_), prompt in zip(answers, (IDS, IDS, IDS, None)):
            (first, before), (second, after) = ((one["weight_version"], one["tokens"]) for one in answer["weight_versions"])
            self.assertEqual([first, second, before + after], ["default", "2", 1500])
            self.assertTrue(0 < before < 1500)
            ids = answer["token_ids"]
            if prompt:
                self.assertEqual(ids[:before], whole["token_ids"][:before])
                rest = plain({**body, "prompt": prompt + ids[:before], "max_tokens": after})[0]["token_ids"]
                self.assertEqual(ids[before:], rest, "as the new weights go on")
                self.assertNotEqual(ids[before:], whole["token_ids"][before:], "the control: the old ones")
            self.assertNotEqual(answer["logits_hash"], whole["logits_hash"])

    def test_a_model_without_experts_has_no_routes(self):
        for path, body in (("/v1/completions", {"prompt": IDS}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})):
            answer = self.ask(path, {**body, "max_tokens": 2, "return_routed_experts": True}, 400)
            self.assertIn("expected a model with experts", answer["error"]["message"])
            self.assertEqual(answer["error"]["param"], "return_routed_experts")

    def test_equal_inputs_are_drawn_apart(self):
        sampling = {"max_new_tokens": 12, "ignore_eos": True}
        drawn = self.ask("/generate", {"input_ids": [IDS, IDS, IDS], "sampling_params": sampling})
        self.assertEqual(len({str(one["output_ids"]) for one in drawn}), 3)
        for one in drawn:
            again = self.ask("/generate", {"input_ids": IDS, "sampling_params": {**sampling, "sampling_seed": one["meta_info"]["sampling_seed"]}})
            self.assertEqual(again["output_ids"], one["output_ids"])
        given = self.ask("/generate", {"input_ids": [IDS, IDS], "sampling_params": {**sampling, "sampling_seed": 4}})
        self.assertEqual(given[0]["output_ids"], given[1]["output_ids"], "the control: a seed that is given")
        answer = self.ask("/generate/", {"prompts": ["hello", "hello"], "max_tokens": 12, "generation_kwargs": {"ignore_eos": True}})
        self.assertEqual([len(set(map(str, answer["completion_ids"]))), len(set(answer["seeds"]))], [2, 2])

    def test_what_makes_no_sense_is_refused(self):
        for path, body in (("/generate", {}), ("/generate", {"input_ids": "x"}), ("/generate", {"input_ids": [10**9]}),
                           ("/generate", {"input_ids": IDS, "sampling_params": {"nothing": 1}}), ("/generate", {"input_ids": IDS, "nothing": 1}),
                           ("/generate", {"input_ids": IDS, "sampling_params": 3}), ("/generate", {"input_ids": IDS, "stream": True}),
                           ("/generate", {"input_ids": IDS, "top_logprobs_num": 3}), ("/generate", "{"), ("/generate", "[]"),
                           ("/generate", {"input_ids": []}), ("/generate", {"input_ids": IDS, "return_logprob": 3}),
                           ("/generate/", {"prompts": "x"}), ("/generate/", {"prompts": []}), ("/generate/", {"prompts": ["a"], "logprobs": 3}),
                           ("/generate/", {"prompts": ["a"], "generation_kwargs": 3}), ("/generate/", {"prompts": ["a"], "images": "x"}),
                           ("/update_weights_from_disk", {}), ("/update_weights_from_disk", {"model_path": "/nowhere"}),
                           ("/update_weights_from_disk", {"model_path": str(self.root / "two"), "load_format": "delta"}),
                           ("/update_weights_from_disk", {"model_path": str(self.root / "two"), "weight_version": "a\r\nb: c"}),
                           ("/update_weights", {"update_info": {"names": ["x"], "dtype_names": ["bfloat16"], "shapes": [[1]]}}),
                           ("/update_weights", {}), ("/init_weight_transfer_engine", {"init_info": {"master_address": "x", "master_port": 1}}),
                           ("/init_weight_transfer_engine", {}), ("/weights_checker", {"action": "reset_tensors"}), ("/pause?mode=x", {"mode": "x"}),
                           ("/pause", {"mode": 3}), ("/sleep?level=3", None), ("/sleep", {"level": "1"}), ("/sleep?mode=x", None), ("/wake_up", {"tags": "weights"}),
                           ("/wake_up", {"tags": ["graphs"]}), ("/wake_up?tags=x", None), ("/resume_memory_occupation", {"tags": [3]}),
                           ("/generate", {"input_ids": IDS, "text": "x"}), ("/generate", {"input_ids": IDS, "weight_version": {}}),
                           ("/weights_checker", {"action": 3}), ("/update_weights_from_disk", {"model_path": str(self.root / "two"), "weight_version": {}}),
                           ("/collective_rpc", {"method": "reload_weights"}), ("/update_weights_from_tensor", {}), ("/init_communicator/", {}),
                           ("/update_named_param/", {"name": "x"}), ("/weights_checker", "[]")):
            self.assertIn("message", self.ask(path, body, 400)["error"], path)
        self.assertEqual(self.ask("/get_weight_version", method="GET")["weight_version"], "default")
        self.generate()

    def test_keys(self):
        update = {"model_path": str(self.root / "two")}
        self.ask("/update_weights_from_disk", update, 401, headers={})
        self.ask("/generate", {"input_ids": IDS}, 401, headers={})
        self.served.stop()
        self.served = self.serve("one")
        self.ask("/update_weights_from_disk", update, 403, headers={})
        self.ask("/generate", {"input_ids": IDS}, headers={})
        self.served.stop()
        self.served = self.serve("one", "--trust-trainers")
        self.ask("/update_weights_from_disk", update, headers={})
        self.ask("/admin/weights", {"model": str(self.root / "one")}, 403, headers={})

    def test_a_server_that_is_paused_ends(self):
        self.ask("/pause?mode=wait")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            held = pool.submit(self.generate)
            self.wait_for_a_request()
            self.assertEqual(self.served.stop(), 0)
            self.assertEqual(len(held.result()["output_ids"]), 12)


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main()
