"""A trainer's weights as the bodies of requests, for a server that shares neither a disk nor a GPU with it.

    HttpWeights("http://127.0.0.1:8000", key="KEY").send(model.named_parameters(), weight_version="step-2")

Needs nothing but Python; tensors are torch's or arrays of numpy.
"""
from __future__ import annotations

import json
import struct
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Any, Optional

_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8", "uint8": "U8", "int64": "I64", "int32": "I32"}


def _piece(name: str, tensor: Any) -> tuple[str, dict[str, Any], bytes]:
    """The tensor's entry in a header of safetensors, without its place, and its bytes."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _TYPES:
        raise ValueError(f'"{name}": expected a tensor of {", ".join(_TYPES)}, found {dtype}')
    shape = [int(size) for size in tensor.shape]
    if hasattr(tensor, "detach"):  # torch's; numpy knows no bf16
        tensor = tensor.detach().to("cpu").contiguous()
        if dtype == "bfloat16":
            import torch
            tensor = tensor.view(torch.int16)
        tensor = tensor.numpy()
    return name, {"dtype": _TYPES[dtype], "shape": shape}, tensor.tobytes()


def _safetensors(pieces: list[tuple[str, dict[str, Any], bytes]]) -> bytes:
    header, at = {}, 0
    for name, entry, data in pieces:
        header[name] = {**entry, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([struct.pack("<Q", len(text)), text, *(data for _, _, data in pieces)])


class HttpWeights:
    """Sends updates to the server at `url`. key: the admin's. piece_bytes: of a body, within the server's --max-body-mib."""

    def __init__(self, url: str, key: Optional[str] = None, piece_bytes: int = 24 << 20, timeout: float = 600) -> None:
        self.url, self.key, self.piece_bytes, self.timeout = url.rstrip("/"), key, piece_bytes, timeout

    def start(self) -> None:
        """Begins an update."""
        self._post("/start_weight_update", {})

    def add(self, named_tensors: Iterable[tuple[str, Any]]) -> int:
        """Sends some of the model's tensors, under its checkpoint's names. Returns how many bytes were sent."""
        waiting: list[tuple[str, dict[str, Any], bytes]] = []
        size = sent = 0
        for name, tensor in named_tensors:
            one = _piece(name, tensor)
            if waiting and size + len(one[2]) > self.piece_bytes:
                sent += self._send(waiting)
                waiting, size = [], 0
            waiting.append(one)
            size += len(one[2])
        return sent + self._send(waiting)

    def finish(self, weight_version: Optional[str] = None) -> dict[str, Any]:
        """The server goes on with what was sent. Returns its answer, which has the digest of the weights."""
        return self._post("/finish_weight_update", {} if weight_version is None else {"weight_version": str(weight_version)})

    def send(self, named_tensors: Iterable[tuple[str, Any]], weight_version: Optional[str] = None) -> dict[str, Any]:
        """A whole update: all tensors of the model."""
        self.start()
        self.add(named_tensors)
        return self.finish(weight_version)

    def _send(self, pieces: list[tuple[str, dict[str, Any], bytes]]) -> int:
        if not pieces:
            return 0
        body = _safetensors(pieces)
        self._post("/update_weights", body, "application/octet-stream")
        return len(body)

    def _post(self, path: str, body: Any, content_type: str = "application/json") -> dict[str, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": content_type, **({"Authorization": f"Bearer {self.key}"} if self.key else {})}
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as reply:
                return dict(json.loads(reply.read()))
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            try:
                text = json.loads(text)["error"]["message"]
            except (ValueError, KeyError, TypeError):
                pass
            raise RuntimeError(f"{path}: {error.code}: {text}") from None
