#!/usr/bin/env python3
"""Adapters as clients see them: names, answers, receipts, admin's doors, crashes. Usage: adapters_test.py INVAR [unittest arguments]"""
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

from served import Served, fast_and

INVAR = None  # the program; set by main
BODY = dict(prompt="An answer of some length.", max_tokens=24, temperature=0.8, seed=3, ignore_eos=True)


def write_adapter(directory, config, seed, rank=4, modules=("q_proj", "o_proj", "gate_proj", "down_proj")):
    """An adapter of random numbers in every layer, as PEFT saves it."""
    heads, size = config["num_attention_heads"], config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    hidden, width = config["hidden_size"], config["intermediate_size"]
    shapes = {"q_proj": (heads * size, hidden), "o_proj": (hidden, heads * size), "gate_proj": (width, hidden), "down_proj": (hidden, width)}
    numbers, header, data = random.Random(seed), {}, b""
    for layer in range(config["num_hidden_layers"]):
        for module in modules:
            outputs, inputs = shapes[module]
            part = "self_attn" if module in ("q_proj", "o_proj") else "mlp"
            for which, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                values = [numbers.uniform(-0.3, 0.3) for _ in range(shape[0] * shape[1])]
                header[f"base_model.model.model.layers.{layer}.{part}.{module}.lora_{which}.weight"] = {
                    "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(values)]}
                data += struct.pack(f"<{len(values)}f", *values)
    directory.mkdir()
    text = json.dumps(header).encode()
    (directory / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (directory / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": list(modules), "bias": "none"}))
    return directory


def tensors_of(path):
    """The numbers of each tensor of BF16 or F32 in a file of safetensors."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + at for at in entry["data_offsets"])
        if entry["dtype"] == "F32":
            tensors[name] = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
        else:
            halves = struct.unpack(f"<{(end - begin) // 2}H", data[begin:end])
            tensors[name] = struct.unpack(f"<{len(halves)}f", struct.pack(f"<{len(halves)}I", *(half << 16 for half in halves)))
    return tensors


class AdaptersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="invar-adapters-")
        cls.root = pathlib.Path(cls.folder.name)
        cls.model = cls.root / "model"
        subprocess.run([INVAR, "make-model", cls.model], check=True, capture_output=True)
        config = json.loads((cls.model / "config.json").read_text())
        cls.adapters = [write_adapter(cls.root / f"adapter{i}", config, i) for i in range(3)]
        cls.server = cls.serve("--journal", str(cls.root / "journal"), "--receipt-key", str(cls.root / "key.pem"))

    @classmethod
    def serve(cls, *flags):
        return Served(INVAR, command=[INVAR, "serve", str(cls.model), "--host", "127.0.0.1", "--port", "0", "--served-model-name", "m",
                                      "--api-key", "key", "--lora-modules", f"a={cls.adapters[0]}", f"b={cls.adapters[1]}",
                                      *fast_and(list(flags))])

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()

    def ask(self, method, path, body=None, server=None):
        return (server or self.server).ask(method, path, body, {"Authorization": "Bearer key"})

    def answer(self, model, path="/v1/completions", server=None, **more):
        status, _, answer = self.ask("POST", path, {**BODY, "model": model, **more}, server)
        self.assertEqual(status, 200, answer)
        return answer

    def text(self, model, **more):
        return self.answer(model, **more)["choices"][0]["text"]

    def test_models_are_listed_with_their_parent(self):
        models = self.ask("GET", "/v1/models")[2]["data"]
        self.assertEqual([(one["id"], one.get("parent")) for one in models[:3]], [("m", None), ("a", "m"), ("b", "m")])
        self.assertEqual(self.ask("GET", "/v1/models/a")[2]["parent"], "m")
        self.assertEqual(self.ask("GET", "/v1/models/none")[0], 404)
        self.assertEqual(self.ask("POST", "/v1/completions", {**BODY, "model": "none"})[0], 404)

    def test_each_answers_with_its_own_bits_alone_and_among_others(self):
        names = ["m", "a", "b"]
        alone = {name: self.answer(name) for name in names}
        self.assertEqual(len({alone[name]["choices"][0]["text"] for name in names}), 3)
        self.assertEqual(len({alone[name]["system_fingerprint"] for name in names}), 3)
        found = []
        threads = [threading.Thread(target=lambda name=name: found.append((name, self.text(name)))) for name in names * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(found), 12)
        for name, text in found:
            self.assertEqual(text, alone[name]["choices"][0]["text"])

    def test_every_protocol_takes_the_name(self):
        chat = {"model": "a", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "seed": 1, "temperature": 0}
        for path, body in (("/v1/chat/completions", chat), ("/v1/messages", chat),
                           ("/v1/responses", {"model": "a", "input": "Hello", "max_output_tokens": 8})):
            status, _, answer = self.ask("POST", path, body)
            if status == 400 and "template" in json.dumps(answer):
                continue  # the made model has none
            self.assertEqual((status, answer.get("model")), (200, "a"), answer)
        status, _, said = self.ask("POST", "/v1/embeddings", {"model": "a", "input": "x"})  # computed by the model alone
        self.assertEqual(status, 404)
        self.assertIn("found the adapter", said["error"]["message"])

    def test_the_command_line_has_the_same_bits(self):
        answer = self.answer("b", receipt=True, temperature=0)
        done = subprocess.run([INVAR, "generate", str(self.model), "-p", BODY["prompt"], "--max-tokens", "24", "--temperature", "0", "--seed", "3",
                               "--ignore-eos", "--lora", str(self.adapters[1]), "--json", "--threads", "1"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["text"], answer["choices"][0]["text"])
        receipt = answer["choices"][0].get("receipt") or answer["receipt"]
        self.assertEqual(json.loads(done.stdout)["logits_hash"], receipt["answer"]["logits_hashes"][-1])

    def test_receipts_name_the_adapter(self):
        answer = self.answer("a", receipt=True)
        file = self.root / "answer.json"
        file.write_text(json.dumps(answer))

        def verify(*flags):
            return subprocess.run([INVAR, "verify", str(file), str(self.model), "--threads", "1", *flags], capture_output=True, text=True)

        confirmed = verify("--lora", str(self.adapters[0]))
        self.assertEqual(confirmed.returncode, 0, confirmed.stdout + confirmed.stderr)
        for flags in ((), ("--lora", str(self.adapters[1]))):
            other = verify(*flags)
            self.assertEqual(other.returncode, 1)
            self.assertIn("adapter differs", other.stdout)

    def test_adapters_come_and_go(self):
        path = str(self.adapters[2])
        before = self.text("m")
        status, _, said = self.ask("POST", "/v1/load_lora_adapter", {"lora_name": "c", "lora_path": path})
        self.assertEqual(status, 200, said)
        first = self.text("c")
        self.assertNotEqual(first, before)
        again = {"lora_name": "c", "lora_path": str(self.adapters[1])}
        self.assertEqual(self.ask("POST", "/v1/load_lora_adapter", again)[0], 400)
        self.assertEqual(self.ask("POST", "/v1/load_lora_adapter", {**again, "load_inplace": True})[0], 200)
        self.assertEqual(self.text("c"), self.text("b"))
        for body in ({"lora_name": "d", "lora_path": str(self.root)}, {"lora_name": "m", "lora_path": path}, {"lora_name": "d"},
                     {"lora_name": "", "lora_path": path}, {"lora_name": "x" * 300, "lora_path": path},
                     {"lora_name": "d", "lora_path": path, "load_inplace": "yes"}):
            self.assertEqual(self.ask("POST", "/v1/load_lora_adapter", body)[0], 400, body)
        self.assertEqual(self.server.ask("POST", "/v1/load_lora_adapter", again)[0], 401)  # without a key
        self.assertEqual(self.ask("POST", "/v1/unload_lora_adapter", {"lora_name": "c"})[0], 200)
        self.assertEqual(self.ask("POST", "/v1/unload_lora_adapter", {"lora_name": "c"})[0], 404)
        self.assertEqual(self.ask("POST", "/v1/completions", {**BODY, "model": "c"})[0], 404)
        self.assertEqual(self.text("m"), before)

    def test_a_hundred_adapters_share_a_few_slots(self):
        server = self.serve("--max-loras", "3", "--max-num-seqs", "8")
        self.addCleanup(server.stop)
        config = json.loads((self.model / "config.json").read_text())
        names = [f"many{i}" for i in range(100)]
        for i, name in enumerate(names):
            path = write_adapter(self.root / name, config, 1000 + i, rank=1, modules=("q_proj",))
            status, _, said = self.ask("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)}, server)
            self.assertEqual(status, 200, said)
        self.assertEqual(len(self.ask("GET", "/v1/models", server=server)[2]["data"]), 3 + len(names))
        alone = {name: self.text(name, server=server, max_tokens=8) for name in names}
        self.assertGreater(len(set(alone.values())), 50)  # the control: each counts
        found = {}

        def ask_some(mine):
            for name in mine:
                found[name] = self.text(name, server=server, max_tokens=8)

        order = random.Random(1).sample(names, len(names))
        threads = [threading.Thread(target=ask_some, args=(order[i::8],)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, alone)

    def test_the_journal_answers_with_the_same_adapter_or_says_why_not(self):
        journal = self.root / "other-journal"
        server = self.serve("--journal", str(journal))
        first = self.answer("a", server=server)
        server.stop()
        server = self.serve("--journal", str(journal))
        status, _, again = self.ask("GET", "/v1/completions/" + first["id"], server=server)
        self.assertEqual((status, again["choices"]), (200, first["choices"]))
        server.stop()
        held = self.root / "held"
        shutil.copytree(self.adapters[0], held)
        shutil.rmtree(self.adapters[0])
        shutil.copytree(self.adapters[1], self.adapters[0])
        try:
            server = self.serve("--journal", str(journal))
            status, _, other = self.ask("GET", "/v1/completions/" + first["id"], server=server)
            self.assertEqual(status, 409, other)
            server.stop()
        finally:
            shutil.rmtree(self.adapters[0])
            shutil.copytree(held, self.adapters[0])

    def merged(self, adapter, name):
        done = subprocess.run([INVAR, "convert", str(self.model), str(self.root / name), "--merge-lora", str(adapter)], capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("another model", done.stdout)
        return self.root / name

    def test_merging_makes_another_model(self):
        merged = self.merged(self.adapters[0], "merged")
        found, plain = (tensors_of(directory / "model.safetensors") for directory in (merged, self.model))
        adapter = tensors_of(self.adapters[0] / "adapter_model.safetensors")
        self.assertEqual(set(found), set(plain))
        # 256 elements of one matrix are W + s B A, to a bf16; a matrix without an adapter is as it was.
        name = "model.layers.1.self_attn.q_proj"
        a, b = (adapter[f"base_model.model.{name}.lora_{which}.weight"] for which in "AB")
        width, rank = len(a) // 4, 4
        for i in range(0, len(plain[name + ".weight"]), max(1, len(plain[name + ".weight"]) // 256)):
            wanted = plain[name + ".weight"][i] + 8 / rank * sum(
                b[i // width * rank + r] * a[r * width + i % width] for r in range(rank))
            self.assertAlmostEqual(found[name + ".weight"][i], wanted, delta=abs(wanted) / 256 + 1e-6)
        self.assertNotEqual(found[name + ".weight"], plain[name + ".weight"])
        self.assertEqual(found["model.layers.1.mlp.up_proj.weight"], plain["model.layers.1.mlp.up_proj.weight"])
        inspected = subprocess.run([INVAR, "generate", str(merged), "-p", "Hello", "--max-tokens", "4", "--json", "--threads", "1"],
                                   capture_output=True, text=True)
        self.assertEqual(inspected.returncode, 0, inspected.stderr)

    def test_names_of_a_model_with_images_are_understood(self):
        renamed = write_adapter(self.root / "renamed", json.loads((self.model / "config.json").read_text()), 0)
        path = renamed / "adapter_model.safetensors"
        data = path.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        header = data[8:8 + size].replace(b"base_model.model.model.", b"base_model.model.model.language_model.")
        path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size:])
        merged = [self.merged(adapter, name) / "model.safetensors" for adapter, name in ((self.adapters[0], "one"), (renamed, "other"))]
        self.assertEqual(*(path.read_bytes() for path in merged))

    def test_what_cannot_be_served_is_refused_at_start(self):
        for flags, said in ((["--lora-modules", "a"], "NAME=PATH"), (["--lora-modules", f"m={self.adapters[0]}"], "name of the model"),
                            (["--lora-modules", f"a={self.root}"], "adapter_config.json"),
                            (["--lora-modules", f"a={self.adapters[0]}", f"a={self.adapters[1]}"], "name of two adapters"),
                            (["--lora-modules", f"a={self.adapters[0]}", "--max-lora-rank", "2"], "rank 4"),
                            (["--lora-modules", f"a={self.adapters[0]}", "--arith", "control"], "control")):
            done = subprocess.run([INVAR, "serve", str(self.model), "--served-model-name", "m", "--port", "0", *fast_and([]), *flags],
                                  capture_output=True, text=True, timeout=60)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    INVAR = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
