"""GGUF files, and directories of safetensors, by their formats' rules alone."""
import json, pathlib, struct

import numpy

BF16, F32 = 30, 0  # as ggml numbers them
KINDS = {"u32": 4, "i32": 5, "f32": 6, "bool": 7, "text": 8, "list": 9, "i64": 11}


def read_directory(folder):
    """Tensors as f32 arrays, and whether each was bf16."""
    data = (pathlib.Path(folder) / "model.safetensors").read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    header, body = json.loads(data[8:8 + size]), data[8 + size:]
    tensors = {}
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        raw = body[slice(*tensor["data_offsets"])]
        if tensor["dtype"] == "BF16":
            array = (numpy.frombuffer(raw, "<u2").astype(numpy.uint32) << 16).view(numpy.float32)
        else:
            array = numpy.frombuffer(raw, "<f4")
        tensors[name] = array.reshape(tensor["shape"])
    return tensors


def write_directory(folder, tensors):
    """The same arrays as one file of bf16, vectors too."""
    header, body = {}, b""
    for name, array in tensors.items():
        raw = (numpy.ascontiguousarray(array).view(numpy.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (pathlib.Path(folder) / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)


def as_bf16(array):
    """The nearest, of two the even one."""
    bits = array.view(numpy.uint32).astype(numpy.uint64)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()


def permuted(x, heads):
    """Rows that turn with each other side by side."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def as_text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def as_value(value):
    """Its kind, and its bytes."""
    if isinstance(value, bool):
        return KINDS["bool"], struct.pack("<?", value)
    if isinstance(value, int) and not 0 <= value < 1 << 32:
        return KINDS["i64"], struct.pack("<q", value)
    if isinstance(value, int):
        return KINDS["u32"], struct.pack("<I", value)
    if isinstance(value, float):
        return KINDS["f32"], struct.pack("<f", value)
    if isinstance(value, str):
        return KINDS["text"], as_text(value)
    kind = as_value(value[0])[0] if value else KINDS["text"]
    return KINDS["list"], struct.pack("<IQ", kind, len(value)) + b"".join(as_value(one)[1] for one in value)


def write(path, keys, tensors):
    """tensors: name to array; vectors, routers and whatever is named f32 in f32, matrices in bf16."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for key, value in keys.items():
        kind, raw = as_value(value)
        out += as_text(key) + struct.pack("<I", kind) + raw
    body = b""
    for name, array in tensors.items():
        plain = array.ndim == 1 or any(part in name for part in ("ffn_gate_inp", "ssm_a", "ssm_alpha", "ssm_d", "conv", "ssm_norm"))
        plain = plain and "_proj.weight" not in name
        raw = array.astype("<f4").tobytes() if plain else as_bf16(array)
        shape = array.shape[::-1]
        out += as_text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        out += struct.pack("<IQ", F32 if plain else BF16, len(body))
        body += raw + b"\0" * (-len(raw) % 32)
    pathlib.Path(path).write_bytes(out + b"\0" * (-len(out) % 32) + body)
