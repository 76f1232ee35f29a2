#!/usr/bin/env python3
"""An adapter in a GGUF file, as llama.cpp reads it, has the logits of the one that PEFT saves with the same numbers, beside a GGUF
file and beside a directory; rows of B stand as the file's rows of queries and keys do.
Usage: gguf_adapters_test.py INVAR"""
import json, pathlib, random, struct, subprocess, sys, tempfile, unittest

from gguf_models import Made, matrices, neighbours, text, typed

INVAR = None  # the program; set by main
RANK, ALPHA = 4, 6.0
KEYS = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora", "adapter.lora.alpha": ALPHA}


def write_file(path, tensors, keys):
    """tensors: (name, ggml's type, shape as in files, bytes)."""
    out, at = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)), 0
    for key, value in keys.items():
        out += text(key) + typed(key, value)
    for name, kind, shape, data in tensors:
        out += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, at)
        at += len(data) + -len(data) % 32
    out += b"\0" * (-len(out) % 32)
    path.write_bytes(out + b"".join(data + b"\0" * (-len(data) % 32) for _, _, _, data in tensors))
    return path


class Adapter:
    """Random numbers beside every matrix of the layers: (name in GGUF files, name in directories, A, B)."""

    def __init__(self, architecture, seed=1):
        numbers = random.Random(seed)
        self.architecture, self.modules = architecture, []
        for name, other, rows, width in matrices(architecture):
            if name.startswith("blk."):
                draw = lambda count, of: [[numbers.uniform(-0.3, 0.3) for _ in range(of)] for _ in range(count)]
                self.modules.append((name, other, draw(RANK, width), draw(rows, RANK)))

    def write_peft(self, folder, alpha=ALPHA):
        folder.mkdir()
        header, data = {}, b""
        for _, other, a, b in self.modules:
            for which, rows in (("A", a), ("B", b)):
                values = [x for row in rows for x in row]
                header[f"base_model.model.{other}.lora_{which}.weight"] = {
                    "dtype": "F32", "shape": [len(rows), len(rows[0])], "data_offsets": [len(data), len(data) + 4 * len(values)]}
                data += struct.pack(f"<{len(values)}f", *values)
        head = json.dumps(header).encode()
        (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
        (folder / "adapter_config.json").write_text(json.dumps(
            {"peft_type": "LORA", "r": RANK, "lora_alpha": alpha, "bias": "none"}))
        return folder

    def tensors(self, in_order_of_files=True):
        for name, _, a, b in self.modules:
            if in_order_of_files and self.architecture == "llama" and name.endswith(("attn_q", "attn_k")):
                b = [b[row] for row in neighbours(len(b), RANK)]
            for which, rows in (("a", a), ("b", b)):
                yield (f"{name}.weight.lora_{which}", 0, (len(rows[0]), len(rows)),
                       b"".join(struct.pack(f"<{len(row)}f", *row) for row in rows))

    def write_gguf(self, path, keys=KEYS, in_order_of_files=True):
        return write_file(path, list(self.tensors(in_order_of_files)), keys)


def run(model, *more):
    words = [INVAR, "generate", model, "--max-model-len", 128, "--max-tokens", 6, "--ignore-eos", "--threads", 1,
             "-p", "The order of every sum is fixed once.", "--json", *more]
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300)


class GgufAdaptersTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def hash(self, model, *more):
        done = run(model, *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["logits_hash"]

    def test_a_file_is_the_directory(self):
        for architecture in ("llama", "qwen3"):
            with self.subTest(architecture):
                made, adapter = Made(architecture, 3, ["q8_0", "q4_0"]), Adapter(architecture)
                file = made.write_gguf(self.root / f"{architecture}.gguf")
                directory = made.write_twin(self.root / architecture)
                peft = adapter.write_peft(self.root / f"{architecture}-peft")
                gguf = adapter.write_gguf(self.root / f"{architecture}-lora.gguf")
                expected = self.hash(directory, "--lora", peft)
                self.assertNotEqual(expected, self.hash(directory))
                for model in (file, directory):
                    for lora in (peft, gguf):
                        self.assertEqual(self.hash(model, "--lora", lora), expected, (model.name, lora.name))
                other = Adapter(architecture, seed=2).write_gguf(self.root / f"{architecture}-other.gguf")
                self.assertNotEqual(self.hash(file, "--lora", other), expected)
                if architecture == "llama":  # the foil: rows as a directory has them
                    as_peft = adapter.write_gguf(self.root / "as-peft.gguf", in_order_of_files=False)
                    self.assertNotEqual(self.hash(file, "--lora", as_peft), expected)

    def test_alpha_of_0_scales_by_1(self):
        made, adapter = Made("qwen3", 3, ["q8_0"]), Adapter("qwen3")
        directory = made.write_twin(self.root / "model")
        gguf = adapter.write_gguf(self.root / "lora.gguf", KEYS | {"adapter.lora.alpha": 0.0})
        peft = adapter.write_peft(self.root / "peft", alpha=RANK)
        self.assertEqual(self.hash(directory, "--lora", gguf), self.hash(directory, "--lora", peft))

    def test_what_is_no_adapter_is_refused(self):
        directory = Made("qwen3", 3, ["q8_0"]).write_twin(self.root / "model")
        tensors = list(Adapter("qwen3").tensors())
        wide = [(name, kind, shape if not name.endswith("lora_b") else (shape[0] * 2, shape[1] // 2), data) for name, kind, shape, data in tensors]
        blocks = [(tensors[0][0], 8, (256, 4), bytes(4 * 8 * 34)), *tensors[1:]]
        for what, said, some, keys in (
                ("a model", "general.type", tensors, KEYS | {"general.type": "model"}),
                ("another kind", "adapter.type", tensors, KEYS | {"adapter.type": "control_vector"}),
                ("no alpha", "adapter.lora.alpha", tensors, {k: v for k, v in KEYS.items() if k != "adapter.lora.alpha"}),
                ("alpha no number", "adapter.lora.alpha", tensors, KEYS | {"adapter.lora.alpha": float("nan")}),
                ("no B", "attn_q", [t for t in tensors if t[0] != "blk.0.attn_q.weight.lora_b"], KEYS),
                ("two ranks", "rank", wide, KEYS),
                ("blocks", "BF16, F16 or F32", blocks, KEYS),
                ("nothing", "none", [], KEYS),
                ("another tensor", "lora_a", [*tensors, ("blk.0.attn_q.weight", 0, (4, 4), bytes(64))], KEYS),
                ("the embedding", "token_embd", [*tensors, ("token_embd.weight.lora_a", 0, (256, 4), bytes(4096)),
                                                 ("token_embd.weight.lora_b", 0, (4, 264), bytes(264 * 16))], KEYS),
                ("a layer too many", "blk.7", [*tensors, ("blk.7.attn_q.weight.lora_a", 0, (256, 4), bytes(4096)),
                                               ("blk.7.attn_q.weight.lora_b", 0, (4, 256), bytes(4096))], KEYS)):
            with self.subTest(what):
                done = run(directory, "--lora", write_file(self.root / "bad.gguf", some, keys))
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(said, done.stderr)

    def test_a_file_is_not_merged(self):
        directory = Made("qwen3", 3, ["q8_0"]).write_twin(self.root / "model")
        gguf = Adapter("qwen3").write_gguf(self.root / "lora.gguf")
        done = subprocess.run([INVAR, "convert", directory, self.root / "merged", "--merge-lora", gguf], capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("PEFT", done.stderr)


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main()
