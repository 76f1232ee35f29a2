#!/usr/bin/env python3
"""Weights from a trainer by vLLM's back end nccl: the whole dialogue, over a library that has NCCL's functions for host memory.

Usage: nccl_weights_test.py INVAR LIBRARY
"""
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from served import Served, fast_and
from tokens_test import HttpWeights, Raw, tensors_of
from trainer import Store, Trainer

INVAR = LIBRARY = None
KEY = {"Authorization": "Bearer k"}
PROMPT = {"prompt": [5, 6, 7, 8, 9], "max_tokens": 12, "temperature": 0.8, "seed": 3, "ignore_eos": True, "logits_hash": True}
NCCL = ("--weight-transfer-config", '{"backend": "nccl"}')


def in_float32(tensor):
    return Raw("float32", tensor.shape, b"".join(b"\0\0" + tensor.data[at:at + 2] for at in range(0, len(tensor.data), 2)))


class NcclWeights(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="invar-nccl-")
        cls.root = pathlib.Path(cls.directory.name)
        tied = ("--tied-head", "true", "--family", "qwen2")  # whose q, k and v have biases
        for name, *flags in (("one", "--seed", "1"), ("two", "--seed", "2"), ("tied", "--seed", "1", *tied), ("tied-two", "--seed", "2", *tied)):
            subprocess.run([INVAR, "make-model", cls.root / name, *flags], check=True, capture_output=True)
        cls.first, cls.second = (list(tensors_of(cls.root / name)) for name in ("one", "two"))
        cls.facts = {}
        for name in ("one", "two", "tied", "tied-two"):  # of a server that read them from the directory
            served = cls.serve(name)
            cls.facts[name] = cls.facts_of(served)
            assert served.stop() == 0

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    @classmethod
    def serve(cls, name, *flags):
        return Served(INVAR, command=[INVAR, "serve", cls.root / name, "--host", "127.0.0.1", "--port", "0",
                                      *fast_and(["--api-key", "k", *flags])])

    @staticmethod
    def facts_of(served):
        """The digest of the weights, and the hash of an answer's logits."""
        checked = served.ask("POST", "/weight_checker", {"action": "checksum"}, KEY)[2]["checksum"]
        return checked, served.ask("POST", "/v1/completions", PROMPT, KEY)[2]["choices"][0]["logits_hash"]

    def setUp(self):
        self.served, self.trainers = self.serve("one", *NCCL, "--weight-transfer-timeout", "2"), []

    def tearDown(self):
        for trainer in self.trainers:
            trainer.close()
        if self.served.process.poll() is None:
            self.assertEqual(self.served.stop(), 0)

    def ask(self, path, body=None, status=200):
        found, _, answer = self.served.ask("POST", path, body, KEY)
        self.assertEqual(found, status, (path, answer))
        return answer

    def asked(self, path, body=None):
        return self.served.ask("POST", path, body, KEY)[2]

    def trainer(self, **how):
        trainer = Trainer(LIBRARY, self.asked, **how)
        self.trainers.append(trainer)
        self.assertEqual(trainer.join()["message"], "Weight transfer initialized")
        return trainer

    def serves(self, name):
        self.assertEqual(self.facts_of(self.served), self.facts[name])

    def test_the_answers_are_those_of_a_directory(self):
        config = self.served.ask("GET", "/server_info?config_format=json", headers=KEY)[2]["vllm_config"]
        self.assertEqual(config["weight_transfer_config"], {"backend": "nccl"})
        largest = max(len(one.data) for _, one in self.first)
        for how in ({}, {"packed": True}, {"packed": True, "piece_bytes": 1}, {"packed": True, "piece_bytes": largest},
                    {"packed": True, "packed_at": "init", "piece_bytes": 1000}):
            trainer = self.trainer(**how)
            said = trainer.update(self.second, weight_version="step-2")
            self.assertEqual([said["message"], said["weights"]], ["Weight update finished", self.facts["two"][0]], how)
            self.serves("two")
            answer = self.asked("/inference/v1/generate", {"token_ids": [5], "sampling_params": {"max_tokens": 1}})
            self.assertEqual(answer["weight_version"], "step-2")
            trainer.update(self.first)
            self.serves("one")

    def test_one_bit(self):
        name, tensor = self.second[3]
        other = Raw(tensor.dtype, tensor.shape, bytes([tensor.data[0] ^ 1]) + tensor.data[1:])
        trainer = self.trainer(packed=True)
        trainer.update([(at, other if at == name else one) for at, one in self.second])
        self.assertNotEqual(self.facts_of(self.served)[0], self.facts["two"][0])
        trainer.update([(name, tensor)])  # and this tensor alone
        self.serves("two")

    def test_what_trl_sends(self):
        """Float32 is its default; many updates of one tensor are one; without a start each is taken at once."""
        trainer = self.trainer(packed=True)
        trainer.update([(name, in_float32(one)) for name, one in self.second])
        self.serves("two")
        self.ask("/start_weight_update", {})
        for at, one in enumerate(self.first):
            self.assertEqual(trainer.send([one])["tensors"], at + 1)
        self.ask("/finish_weight_update", {})
        self.serves("one")
        self.assertEqual(trainer.send(self.second)["message"], "Weights updated")
        self.serves("two")
        self.ask("/update_weights", {"update_info": {"path": str(self.root / "one")}})
        self.serves("one")
        trainer.send(self.second[:1])
        self.ask("/update_weights", {"update_info": {"path": str(self.root / "two")}})
        self.serves("two")

    def test_a_head_that_is_the_embedding(self):
        """What torch calls a state has both; the head alone is compared with what the server has."""
        self.assertEqual(self.served.stop(), 0)
        self.served = self.serve("tied", *NCCL, "--weight-transfer-timeout", "2")
        first, second = (list(tensors_of(self.root / name)) for name in ("tied", "tied-two"))
        heads = [("lm_head.weight", dict(tensors)["model.embed_tokens.weight"]) for tensors in (first, second)]
        self.assertNotIn("lm_head.weight", dict(first))
        trainer = self.trainer(packed=True)
        self.assertEqual(trainer.send(heads[:1])["message"], "Weights updated")
        self.assertIn("expected the bits of \"model.embed_tokens.weight\"", trainer.send(heads[1:])["error"]["message"])
        self.assertIn("found others in row 0", trainer.send([*second, heads[0]])["error"]["message"])
        self.serves("tied")
        trainer.update([heads[1], *second])
        self.serves("tied-two")
        self.assertIn("expected \"model.embed_tokens.weight\" in the update, too", trainer.send(heads[1:])["error"]["message"])
        trainer.update([(name, in_float32(one)) for name, one in [*first, heads[0]]])
        self.serves("tied")
        for one in second:  # each an update of its own
            self.assertNotEqual(self.facts_of(self.served)[0], self.facts["tied-two"][0], "the control: before the last one")
            self.assertEqual(trainer.send([one])["message"], "Weights updated")
        self.serves("tied-two")

    def test_answers_go_on(self):
        """What has begun ends with its weights; what comes during the transfer is answered."""
        trainer = self.trainer(packed=True)
        self.ask("/start_weight_update", {})
        self.assertEqual(self.trainers[0].beside(lambda: self.asked("/update_weights", {"update_info": trainer.info(self.second)}),
                                                 lambda: self.serves("one") or trainer.broadcast(self.second))["message"], "Weights noted")
        long = {**PROMPT, "max_tokens": 400}
        expected, found = self.asked("/v1/completions", long), []
        running = threading.Thread(target=lambda: found.append(self.asked("/v1/completions", long)))
        running.start()
        while self.served.ask("GET", "/load", headers=KEY)[2]["server_load"] == 0:
            self.assertTrue(running.is_alive(), "it ended before it was seen")
        self.ask("/finish_weight_update", {})
        running.join()
        hashes = [answer["choices"][0]["logits_hash"] for answer in (expected, *found, self.asked("/v1/completions", long))]
        self.assertEqual(hashes[0], hashes[1])
        self.assertNotEqual(hashes[1], hashes[2], "the control: the new weights")
        self.serves("two")

    def test_bodies_before_it(self):
        """Tensors of bodies stay the checkpoint that tensors by NCCL stand over."""
        HttpWeights(f"http://127.0.0.1:{self.served.port}", key="k").send(self.second)
        self.serves("two")
        trainer = self.trainer()
        trainer.update(self.first[:1])
        trainer.update(self.first)
        self.serves("one")

    def test_a_directory_that_fails_after_it(self):
        self.trainer().update(self.second, weight_version="step-2")
        broken = self.root / "broken"
        shutil.copytree(self.root / "one", broken, dirs_exist_ok=True)
        data = bytearray((broken / "model.safetensors").read_bytes())
        data[-2:] = struct.pack("<H", 0x7fc0)
        (broken / "model.safetensors").write_bytes(data)
        said = self.ask("/update_weights", {"update_info": {"path": str(broken)}}, 400)["error"]["message"]
        self.assertIn("again, without what came by NCCL", said)
        self.serves("one")
        answer = self.asked("/inference/v1/generate", {"token_ids": [5], "sampling_params": {"max_tokens": 1}})
        self.assertNotEqual(answer["weight_version"], "step-2")

    def test_a_trainer_that_does_not_come(self):
        began = time.monotonic()
        store = Store()
        info = {"master_address": "127.0.0.1", "master_port": store.port, "rank_offset": 1, "world_size": 2}
        said = self.ask("/init_weight_transfer_engine", {"init_info": info}, 400)["error"]["message"]
        self.assertIn("found nothing until the deadline", said)
        store.close()
        said = self.ask("/init_weight_transfer_engine", {"init_info": info}, 400)["error"]["message"]
        self.assertIn("Connection refused", said)
        self.assertLess(time.monotonic() - began, 10)
        other = Store(says=b"HTTP/1.1 400\r\n")
        said = self.ask("/init_weight_transfer_engine", {"init_info": {**info, "master_port": other.port}}, 400)["error"]["message"]
        self.assertIn("expected torch's TCPStore", said)
        other.close()
        other = Store()
        other.set("/broadcast_from/0/0", b"cposix\nsystem\n(S'false'\ntR.")
        said = self.ask("/init_weight_transfer_engine", {"init_info": {**info, "master_port": other.port}}, 400)["error"]["message"]
        self.assertIn("expected NCCL's unique id", said)
        other.close()
        self.serves("one")
        self.trainer().update(self.second)
        self.serves("two")

    def test_a_trainer_that_stops_or_dies(self):
        for end in (lambda trainer: None, lambda trainer: trainer.close()):
            trainer = self.trainer()
            self.ask("/start_weight_update", {})
            asking = {"update_info": trainer.info(self.second)}
            said = trainer.beside(lambda: self.asked("/update_weights", asking),
                                  lambda: (trainer.broadcast(self.second[:4]), end(trainer)))
            self.assertRegex(said["error"]["message"], "expected a trainer's next tensor within 2 s|NCCL failed")
            said = self.ask("/finish_weight_update", {}, 400)["error"]["message"]
            self.assertIn("the update is not taken", said)
            self.serves("one")
            self.assertIn("expected a trainer's group", self.ask("/update_weights", asking, 400)["error"]["message"])
        self.trainer().update(self.second)
        self.serves("two")

    def test_the_server_ends_beside_one_that_waits(self):
        trainer = self.trainer()
        threading.Thread(target=lambda: self.served.ask("POST", "/update_weights", {"update_info": trainer.info(self.second)}, KEY)).start()
        time.sleep(0.3)
        self.assertEqual(self.served.stop(), 0)

    def test_what_is_refused(self):
        trainer = self.trainer()
        info = trainer.info(self.second)
        name, tensor = self.second[0]
        wrong = [({"names": info["names"][1:]}, "expected as many dtype_names"), ({"dtype_names": 5}, "expected dtype_names as a list"),
                 ({"dtype_names": ["float8"] * len(self.second)}, "expected the type of"), ({"packed": 1}, "expected packed as true or false"),
                 ({"shapes": [[-1]] * len(self.second)}, "expected shapes as an integer"), ({"num_updates_list": []}, "is not supported"),
                 ({"packed_buffer_size_bytes": 0}, "expected packed_buffer_size_bytes as an integer"),
                 ({"shapes": [[1 << 39, 1 << 39]] * len(self.second)}, "expected the shape of")]
        for change, sentence in wrong:  # its tensors would come all the same, so the group is over
            trainer = self.trainer()
            self.assertIn(sentence, self.ask("/update_weights", {"update_info": {**info, **change}}, 400)["error"]["message"])
            self.assertIn("expected a trainer's group", self.ask("/update_weights", {"update_info": info}, 400)["error"]["message"])
        for body in ({"update_info": {"packed": True}}, {"update_info": 5}, "no JSON"):
            trainer = self.trainer()
            self.ask("/start_weight_update", {})
            trainer.send(self.second[:1])
            self.ask("/update_weights", body, 400)
            self.assertIn("a part of it failed", self.ask("/finish_weight_update", {}, 400)["error"]["message"])
            self.assertIn("expected a trainer's group", self.ask("/update_weights", {"update_info": info}, 400)["error"]["message"])
        trainer = self.trainer()
        self.ask("/start_weight_update", {})
        trainer.send(self.second[:1])
        self.assertIn("by one way", self.ask("/update_weights", {"update_info": {"path": str(self.root / "two")}}, 400)["error"]["message"])
        self.assertIn("is not supported", self.ask("/update_weights", {"update_info": {**info, "a": 1}}, 400)["error"]["message"])
        self.assertIn("a part of it failed", self.ask("/finish_weight_update", {}, 400)["error"]["message"])
        trainer = self.trainer()
        for sent, sentence in (([("other", tensor)], "expected a tensor of the model"),
                               ([(name, Raw(tensor.dtype, [len(tensor.data) // 2], tensor.data))], "as in the checkpoint"),
                               ([(name, tensor), (name, tensor)], "expected it once in an update")):
            self.assertIn(sentence, trainer.send(sent)["error"]["message"])  # all of it is taken: the trainer goes on
        nan = Raw(tensor.dtype, tensor.shape, struct.pack("<H", 0x7fc0) + tensor.data[2:])
        self.assertIn("expected finite weights, found nan", trainer.send([(name, nan)])["error"]["message"])
        self.serves("one")
        trainer.update(self.second)
        self.serves("two")
        self.assertIn("sleep at level 1", self.ask("/sleep?level=2", None, 400)["error"]["message"])
        self.ask("/sleep?level=1")
        self.ask("/wake_up")
        self.serves("two")
        self.ask("/shutdown_weight_transfer_engine", {})
        self.assertIn("expected a trainer's group", self.ask("/update_weights", {"update_info": info}, 400)["error"]["message"])

    def test_what_cannot_be_started(self):
        for flags, sentence in ((["--engine-process"], "found --engine-process"), (["--lab"], "found --lab"),
                                (["--data-parallel-size", "2"], "found --data-parallel-size"), (["--enable-lora"], "found --enable-lora")):
            done = subprocess.run([INVAR, "serve", self.root / "one", "--port", "0", *NCCL, *flags], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, flags)
            self.assertIn(sentence, done.stderr)
        subprocess.run([INVAR, "make-model", self.root / "experts", "--seed", "1", "--family", "qwen3_moe"], check=True, capture_output=True)
        done = subprocess.run([INVAR, "serve", self.root / "experts", "--port", "0", *NCCL], capture_output=True, text=True, timeout=60)
        self.assertEqual([done.returncode, "a checkpoint with a tensor for each" in done.stderr], [2, True], done.stderr)
        plain = {name: value for name, value in os.environ.items() if name != "INVAR_NCCL"}
        done = subprocess.run([INVAR, "serve", self.root / "one", "--port", "0", *NCCL], capture_output=True, text=True, timeout=60, env=plain)
        self.assertEqual([done.returncode, "needs a GPU" in done.stderr], [2, True], done.stderr)
        for library in ("/nonexistent.so", "/lib/x86_64-linux-gnu/libc.so.6"):
            done = subprocess.run([INVAR, "serve", self.root / "one", "--port", "0", *NCCL], capture_output=True, text=True, timeout=60,
                                  env={**plain, "INVAR_NCCL": library})
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertRegex(done.stderr, "NCCL was to be used|expected NCCL in")


if __name__ == "__main__":
    INVAR, LIBRARY = sys.argv[1], sys.argv[2]
    os.environ["INVAR_NCCL"] = LIBRARY
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
