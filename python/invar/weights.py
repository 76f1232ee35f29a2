"""Weights in: what LLM and AsyncLLM have in common."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Optional

from . import transfer
from ._invar import Session


def _dense(tensor: Any, gpu: int) -> Any:
    """The tensor, dense, without a gradient: torch's stay on GPU `gpu` and come from others, others stay as they are."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach()
        if tensor.device.type != "cpu" and not (tensor.device.type == "cuda" and tensor.device.index == gpu):
            tensor = tensor.cpu()
        tensor = tensor.contiguous()
    return tensor


class Weights:
    """The weights of a session. No request may be live when they change; all of a change is taken, or nothing."""

    weight_version = "default"  # what update_weights called them

    def __init__(self, session: Session) -> None:
        self.session = session

    def update_weights(self, weights: Iterable[tuple[str, Any]], weight_version: Optional[str] = None) -> None:
        """Goes on with these tensors; those that are not named stay as they are.

        weights: (name in the checkpoint, tensor) pairs. A tensor has __dlpack__ (torch, numpy, jax), the shape and the type
        of the checkpoint's; numpy gives bf16 as uint16, its bits. Tensors of the engine's GPU are copied within its memory,
        others by way of the host. Or a request of vLLM's weight transfer, {"update_info": {"names", "dtype_names", "shapes",
        "ipc_handles" or "ipc_handles_pickled"}}: tensors of another process. Raises ValueError for an unknown name, another
        shape or type, or a handle that does not open, RuntimeError for a NaN; the weights are then those of before.
        """
        named = []
        gpu = self.session.gpu()
        if transfer.is_request(weights):
            weights = transfer.tensors(weights, gpu)
        for name, tensor in weights:
            if not isinstance(name, str):
                raise TypeError(f"update_weights: expected (name, tensor) pairs, found the name {name!r}")
            named.append((name, _dense(tensor, gpu)))
        self.session.update_weights(named)
        self.weight_version = weight_version or self.weight_version

    def init_weight_transfer_engine(self, request: Any) -> None:
        """vLLM's first call of a transfer, of the back end ipc: {"init_info": {}}. Others raise ValueError."""
        transfer.expect_ipc(request)

    def start_weight_update(self, is_checkpoint_format: bool = True) -> None:
        """vLLM's call before its updates; each of these is taken as a whole, or not at all."""
        if not is_checkpoint_format:
            raise ValueError("start_weight_update: expected weights with the checkpoint's names and shapes, found is_checkpoint_format=False")

    def finish_weight_update(self, weight_version: Optional[str] = None) -> None:
        """vLLM's call after its updates."""
        self.weight_version = weight_version or self.weight_version

    def load_weights(self, directory: str, weight_version: Optional[str] = None) -> None:
        """Goes on with another checkpoint of the model, a Hugging Face directory."""
        self.session.load_weights(str(directory))
        self.weight_version = weight_version or self.weight_version

    def tensors(self) -> list[tuple[str, str, list[int]]]:
        """(name, "BF16" | "F16" | "F32", shape) of every tensor of the checkpoint."""
        return self.session.tensors()

    def named_weights(self) -> Iterator[tuple[str, Any]]:
        """(name, array) of every tensor as it is now: float32, float16, or uint16 for the bits of bf16."""
        for name, _, _ in self.tensors():
            yield name, self.session.tensor(name)

    def weights_digest(self) -> str:
        """SHA-256 over all weights, in hexadecimal (docs/numerics.md, 8): that of receipts. Reads all of them."""
        return self.session.weights_digest()

    def reset_prefix_cache(self) -> bool:
        """Forgets the keys and values of requests that have ended. No answer depends on it."""
        self.session.reset_prefix_cache()
        return True

    def sleep(self, level: int = 1) -> None:
        """Gives memory back until wake_up; no request may be live.

        level 1: that of keys and values, and of a GPU's weights, which the host keeps; level 2: that of the weights
        anywhere, which are read again.
        """
        self.session.sleep(level)

    def wake_up(self, tags: Optional[list[str]] = None) -> None:
        """Takes the memory again: "weights", which may then be changed, "kv_cache"; None: both.

        Requests are taken when both are back. Raises ValueError for another tag.
        """
        self.session.wake_up([] if tags is None else list(tags))

    def is_sleeping(self) -> bool:
        """Whether requests are refused until wake_up."""
        return self.session.is_sleeping()

    def collective_rpc(self, method: Any, *_: Any, **__: Any) -> Any:
        """Refused: workers run no Python."""
        raise NotImplementedError(f"collective_rpc({method!r}): workers run no Python; weights change by update_weights "
                                  "and load_weights")
