"""Small models as GGUF files whose matrices are random blocks of every type, and their bf16 twins, made from docs/numerics.md
(0.1) alone: nothing here is taken from the program."""
import json, pathlib, random, struct

# name: (ggml's number, elements, bytes of scales that stand in front in files, all of the scales, values)
TYPES = {"q4_0": (2, 32, 2, 2, 16), "q4_1": (3, 32, 4, 4, 16), "q5_0": (6, 32, 2, 2, 20), "q5_1": (7, 32, 4, 4, 20),
         "q8_0": (8, 32, 2, 2, 32), "q2_k": (10, 256, 16, 20, 64), "q3_k": (11, 256, 0, 14, 96), "q4_k": (12, 256, 16, 16, 128),
         "q5_k": (13, 256, 16, 16, 160), "q6_k": (14, 256, 0, 18, 192), "iq4_nl": (20, 32, 2, 2, 16), "mxfp4": (39, 32, 1, 1, 16)}
PLAIN = {"f32": 0, "f16": 1, "bf16": 30}
STEPS = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
FOURS = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
ARCHITECTURES = ["llama", "qwen3", "gemma3"]


def f16(data, at):
    return struct.unpack_from("<e", data, at)[0]


def bf16(value):
    """The nearest bf16, ties to even, of a number that is first rounded to f32."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16 & 0xffff


def widened(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def signed(byte):
    return byte - 256 if byte > 127 else byte


def nibbles(v):
    return [b & 15 for b in v] + [b >> 4 for b in v]


def fifths(v):
    return [n + 16 * (v[i // 8] >> i % 8 & 1) for i, n in enumerate(nibbles(v[4:20]))]


def scales_k4(s, j):
    if j < 4:
        return s[j] & 63, s[j + 4] & 63
    return (s[j + 4] & 15) + 16 * (s[j - 4] >> 6), (s[j + 4] >> 4) + 16 * (s[j] >> 6)


def k4(s, integers):
    d, e = f16(s, 0), f16(s, 2)
    parts = [scales_k4(s[4:], j) for j in range(8)]
    return [d * parts[i // 32][0] * n - e * parts[i // 32][1] for i, n in enumerate(integers)]


def halves_of_64(v):
    return [v[32 * (i // 64) + i % 32] >> 4 * (i // 32 % 2) & 15 for i in range(256)]


def twos(v):
    return [v[32 * (i // 128) + i % 32] >> 2 * (i // 32 % 4) & 3 for i in range(256)]


def q6(v, i):
    j = i // 32 % 4
    low = v[64 * (i // 128) + 32 * (j % 2) + i % 32]
    return (low & 15 if j < 2 else low >> 4) + 16 * (v[128 + 32 * (i // 128) + i % 32] >> 2 * j & 3) - 32


def q3_scale(s, j):
    return (s[j % 8] >> 4 * (j // 8) & 15) + 16 * (s[8 + j % 4] >> 2 * (j // 4) & 3) - 32


def elements(kind, s, v):
    """Of a block with the scales s and the values v, as numerics 0.1 orders their bytes: f32 numbers, before bf16."""
    if kind == "q8_0":
        return [f16(s, 0) * signed(q) for q in v]
    if kind == "q4_0":
        return [f16(s, 0) * (n - 8) for n in nibbles(v)]
    if kind == "q4_1":
        return [f16(s, 0) * n + f16(s, 2) for n in nibbles(v)]
    if kind == "q5_0":
        return [f16(s, 0) * (n - 16) for n in fifths(v)]
    if kind == "q5_1":
        return [f16(s, 0) * n + f16(s, 2) for n in fifths(v)]
    if kind == "iq4_nl":
        return [f16(s, 0) * STEPS[n] for n in nibbles(v)]
    if kind == "mxfp4":
        return [2.0 ** (s[0] - 127) * FOURS[n] for n in nibbles(v)]
    if kind == "q2_k":
        return [f16(s, 16) * (s[i // 16] & 15) * p - f16(s, 18) * (s[i // 16] >> 4) for i, p in enumerate(twos(v))]
    if kind == "q3_k":
        return [f16(s, 12) * q3_scale(s, i // 16) * (p + 4 * (v[i % 32] >> i // 32 & 1) - 4) for i, p in enumerate(twos(v[32:]))]
    if kind == "q4_k":
        return k4(s, halves_of_64(v))
    if kind == "q5_k":
        return k4(s, [n + 16 * (v[i % 32] >> i // 32 & 1) for i, n in enumerate(halves_of_64(v[32:]))])
    return [f16(s, 16) * signed(s[i // 16]) * q6(v, i) for i in range(256)]


def random_scales(rng, kind, size):
    """Bytes of scales whose elements are weights of a usual size."""
    if kind == "mxfp4":
        return bytes([119 + rng.randrange(3)])
    s = bytearray(rng.randbytes(size))
    halves = {"q2_k": (16, 18), "q3_k": (12,), "q6_k": (16,), "q4_1": (0, 2), "q5_1": (0, 2), "q4_k": (0, 2), "q5_k": (0, 2)}
    usual = {"q8_0": 9e-4, "iq4_nl": 1e-3, "q2_k": 4e-3, "q3_k": 2e-3, "q4_k": 4e-4, "q5_k": 2e-4, "q6_k": 6e-5,
             "q5_0": 7e-3, "q5_1": 7e-3}.get(kind, 1.4e-2)
    for at in halves.get(kind, (0,)):
        factor = -usual * 7 if at == 2 and kind in ("q4_1", "q5_1") else usual
        struct.pack_into("<e", s, at, factor * rng.uniform(0.5, 1))
    return bytes(s)


def random_matrix(rng, kind, rows, width):
    """Its bytes in a file, and its elements as bf16."""
    _, block, front, scales, values = TYPES[kind]
    stored, twin = bytearray(), []
    for _ in range(rows * width // block):
        s, v = random_scales(rng, kind, scales), rng.randbytes(values)
        stored += s[:front] + v + s[front:] if kind != "q3_k" else v + s
        twin += [bf16(x) for x in elements(kind, s, v)]
    return bytes(stored), twin


HIDDEN, FFN, HEADS, KV, SIZE, LAYERS = 256, 256, 4, 2, 64, 2


def byte_tokens():
    """The alphabet of byte-level pairs."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) if b in own else chr(256 + [x for x in range(256) if x not in own].index(b)) for b in range(256)]


def matrices(architecture):
    """(name in GGUF files, name in Hugging Face's, rows, width), the types in turn."""
    table = [("token_embd", "model.embed_tokens", 264, HIDDEN), ("output", "lm_head", 264, HIDDEN)]
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        table += [(f"blk.{i}.attn_q", layer + "self_attn.q_proj", HEADS * SIZE, HIDDEN),
                  (f"blk.{i}.attn_k", layer + "self_attn.k_proj", KV * SIZE, HIDDEN),
                  (f"blk.{i}.attn_v", layer + "self_attn.v_proj", KV * SIZE, HIDDEN),
                  (f"blk.{i}.attn_output", layer + "self_attn.o_proj", HIDDEN, HEADS * SIZE),
                  (f"blk.{i}.ffn_gate", layer + "mlp.gate_proj", FFN, HIDDEN),
                  (f"blk.{i}.ffn_up", layer + "mlp.up_proj", FFN, HIDDEN),
                  (f"blk.{i}.ffn_down", layer + "mlp.down_proj", HIDDEN, FFN)]
    return table if architecture != "gemma3" else [row for row in table if row[0] != "output"]


def norms(architecture):
    table = [("output_norm", "model.norm", HIDDEN)]
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        if architecture == "gemma3":
            table += [(f"blk.{i}.attn_norm", layer + "input_layernorm", HIDDEN),
                      (f"blk.{i}.post_attention_norm", layer + "post_attention_layernorm", HIDDEN),
                      (f"blk.{i}.ffn_norm", layer + "pre_feedforward_layernorm", HIDDEN),
                      (f"blk.{i}.post_ffw_norm", layer + "post_feedforward_layernorm", HIDDEN)]
        else:
            table += [(f"blk.{i}.attn_norm", layer + "input_layernorm", HIDDEN),
                      (f"blk.{i}.ffn_norm", layer + "post_attention_layernorm", HIDDEN)]
        if architecture != "llama":
            table += [(f"blk.{i}.attn_q_norm", layer + "self_attn.q_norm", SIZE),
                      (f"blk.{i}.attn_k_norm", layer + "self_attn.k_norm", SIZE)]
    return table


def neighbours(rows, width):
    """The order in which a file of llama's has rows of queries or keys: those that turn together side by side."""
    return [head * SIZE + (j % 2) * (SIZE // 2) + j // 2 for head in range(rows // SIZE) for j in range(SIZE)]


class Made:
    """tensors: (name, ggml's type, shape as in files, bytes); twin: name to (dtype, shape, bytes)."""

    def __init__(self, architecture, seed, kinds):
        self.rng = random.Random(seed)
        self.architecture, self.kinds, self.tensors, self.twin = architecture, kinds, [], {}
        self.add_all()

    def add_all(self):
        for i, (name, other, rows, width) in enumerate(matrices(self.architecture)):
            self.add_matrix(self.kinds[i % len(self.kinds)], name, [other], (width, rows))
        for name, other, width in norms(self.architecture):
            self.add_norm(name, other, width)

    def add_matrix(self, kind, name, others, shape):
        """The others are its rows in equal parts, one behind the other."""
        width, rows = shape[0], 1
        for size in shape[1:]:
            rows *= size
        stored, twin = random_matrix(self.rng, kind, rows, width)
        if self.architecture == "llama" and name.endswith(("attn_q", "attn_k")):
            as_stored = [twin[r * width:(r + 1) * width] for r in range(rows)]
            twin = [None] * rows
            for at, row in enumerate(neighbours(rows, width)):
                twin[row] = as_stored[at]
            twin = [x for row in twin for x in row]
        self.tensors.append((name + ".weight", TYPES[kind][0], shape, stored))
        part = rows // len(others)
        for i, other in enumerate(others):
            of = twin[i * part * width:(i + 1) * part * width]
            self.twin[other + ".weight"] = ("BF16", [part, width], struct.pack(f"<{len(of)}H", *of))

    def add_norm(self, name, other, width):
        w = [widened(bf16(self.rng.uniform(0.5, 1.5) - (self.architecture == "gemma3"))) for _ in range(width)]
        plus = 1.0 if self.architecture == "gemma3" else 0.0
        self.tensors.append((name + ".weight", 0, (width,), struct.pack(f"<{width}f", *[plus + x for x in w])))
        self.twin[other + ".weight"] = ("F32", [width], struct.pack(f"<{width}f", *w))

    def metadata(self):
        a = self.architecture
        keys = {"general.architecture": a, f"{a}.block_count": LAYERS, f"{a}.embedding_length": HIDDEN, f"{a}.context_length": 512,
                f"{a}.feed_forward_length": FFN, f"{a}.attention.head_count": HEADS, f"{a}.attention.head_count_kv": KV,
                f"{a}.attention.key_length": SIZE, f"{a}.attention.value_length": SIZE,
                f"{a}.attention.layer_norm_rms_epsilon": 1e-6, f"{a}.rope.freq_base": 10000.0,
                "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2",
                "tokenizer.ggml.tokens": byte_tokens() + [f"<|{i}|>" for i in range(8)],
                "tokenizer.ggml.token_type": [1] * 256 + [3] * 8, "tokenizer.ggml.merges": [],
                "tokenizer.ggml.eos_token_id": 256}
        if a == "gemma3":
            keys |= {"gemma3.attention.sliding_window": 32}
        return keys

    def config(self):
        a = self.architecture
        config = {"model_type": {"gemma3": "gemma3_text"}.get(a, a), "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
                  "max_position_embeddings": 512, "intermediate_size": FFN, "num_attention_heads": HEADS,
                  "num_key_value_heads": KV, "head_dim": SIZE, "rms_norm_eps": struct.unpack("<f", struct.pack("<f", 1e-6))[0],
                  "rope_theta": 10000.0, "vocab_size": 264, "tie_word_embeddings": a == "gemma3", "eos_token_id": 256}
        if a == "gemma3":
            config |= {"sliding_window": 32, "query_pre_attn_scalar": SIZE, "layer_types": ["sliding_attention"] * LAYERS}
        return config

    def tokenizer(self):
        bytes_of_text = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        return {"version": "1.0", "normalizer": None, "pre_tokenizer": bytes_of_text, "post_processor": None,
                "decoder": bytes_of_text,
                "added_tokens": [{"id": 256 + i, "content": f"<|{i}|>", "single_word": False, "lstrip": False, "rstrip": False,
                                  "normalized": False, "special": True} for i in range(8)],
                "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(byte_tokens())}, "merges": []}}

    def write_twin(self, folder):
        folder = pathlib.Path(folder)
        folder.mkdir()
        header, at = {}, 0
        for name, (dtype, shape, data) in self.twin.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
            at += len(data)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        body = b"".join(data for _, _, data in self.twin.values())
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
        (folder / "config.json").write_text(json.dumps(self.config()))
        (folder / "tokenizer.json").write_text(json.dumps(self.tokenizer()))
        return folder

    def gguf(self, tensors=None, more=None):
        """The bytes of a file; of a part of one, its tensors and the keys that say so."""
        tensors = self.tensors if tensors is None else tensors
        keys = (self.metadata() if not more or more.get("split.no") == 0 else {}) | (more or {})
        out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
        for key, value in keys.items():
            out += text(key) + typed(key, value)
        at = 0
        for name, kind, shape, data in tensors:
            out += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, at)
            at += len(data) + -len(data) % 32
        out += b"\0" * (-len(out) % 32)
        return out + b"".join(data + b"\0" * (-len(data) % 32) for _, _, _, data in tensors)

    def write_gguf(self, path):
        pathlib.Path(path).write_bytes(self.gguf())
        return path

    def write_parts(self, folder, count):
        folder = pathlib.Path(folder)
        folder.mkdir()
        for i in range(count):
            some = self.tensors[i * len(self.tensors) // count:(i + 1) * len(self.tensors) // count]
            more = {"split.no": i, "split.count": count, "split.tensors.count": len(self.tensors)}
            (folder / f"model-{i + 1:05}-of-{count:05}.gguf").write_bytes(self.gguf(some, more))
        return folder / f"model-00001-of-{count:05}.gguf"


def with_other_scale(kind, data):
    """The blocks with another bit in the first one's scale, so that elements change in any type."""
    front = next(front for number, _, front, _, _ in TYPES.values() if number == kind)
    data = bytearray(data)
    at, bit = (0, 1) if front == 1 else (1, 4) if front else (-1, 4)
    data[at] ^= bit
    return bytes(data)


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def typed(key, value):
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, int):
        short = {"split.no": 2, "split.count": 2, "split.tensors.count": 5}.get(key)
        return struct.pack("<IH", 2, value) if short == 2 else struct.pack("<Ii", short or 4, value)
    kind = 8 if not value or isinstance(value[0], str) else 5
    items = b"".join(text(x) if kind == 8 else struct.pack("<i", x) for x in value)
    return struct.pack("<IIQ", 9, kind, len(value)) + items
