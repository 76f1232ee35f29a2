"""Weights that another process has in the memory of the same GPU, by CUDA IPC, in the shape of vLLM's weight transfer.

torch opens the handles, which are what torch.multiprocessing.reductions.reduce_tensor gives, and closes them.
"""
from __future__ import annotations

import base64
import binascii
import io
import pickle
from collections.abc import Mapping
from typing import Any


def _member(request: Any, name: str) -> dict[str, Any]:
    """The value that a request (a dictionary or vLLM's dataclass) calls `name`."""
    found = request.get(name) if isinstance(request, Mapping) else getattr(request, name, None)
    if not isinstance(found, Mapping):
        raise ValueError(f"expected a request with {name}, a dictionary, found {type(found).__name__}")
    return dict(found)


def is_request(weights: Any) -> bool:
    return isinstance(weights, Mapping) or hasattr(weights, "update_info")


def expect_ipc(request: Any) -> None:
    """Throws where the first request of a transfer is another back end's than ipc, whose init_info is empty."""
    if given := _member(request, "init_info"):
        raise ValueError(f"init_weight_transfer_engine: expected the back end ipc, whose init_info is empty, found {sorted(given)}")


class _Handles(pickle.Unpickler):
    """Reads what a pickle of handles holds, and nothing else: no other function is called by it."""

    def find_class(self, module: str, name: str) -> Any:
        import torch
        allowed = {("torch.multiprocessing.reductions", "rebuild_cuda_tensor"), ("torch", "Tensor"), ("torch", "Size"),
                   ("torch._tensor", "Tensor"), ("torch.nn.parameter", "Parameter"), ("torch.storage", "UntypedStorage"),
                   ("torch.storage", "TypedStorage")}
        if (module, name) in allowed or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"found {module}.{name}")


def _unpickled(text: str) -> Any:
    try:
        return _Handles(io.BytesIO(base64.b64decode(text, validate=True))).load()
    except (pickle.UnpicklingError, binascii.Error, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        raise ValueError(f"update_weights: expected ipc_handles_pickled to be handles of tensors and nothing else: {error}") from None


def _lists(info: dict[str, Any]) -> tuple[list[str], list[str], list[Any], list[Any]]:
    handles = _unpickled(info["ipc_handles_pickled"]) if info.get("ipc_handles_pickled") is not None else info.get("ipc_handles")
    lists = (info.get("names"), info.get("dtype_names"), info.get("shapes"), handles)
    for what, one in zip(("names", "dtype_names", "shapes", "ipc_handles or ipc_handles_pickled"), lists):
        if not isinstance(one, (list, tuple)) or len(one) != len(lists[0]):
            raise ValueError(f"update_weights: expected {what}, a list with a member for each of the names")
    return lists  # type: ignore[return-value]


def _opened(name: str, handle: Any, gpu: int) -> Any:
    import torch
    from torch.multiprocessing.reductions import rebuild_cuda_tensor
    known = {str(torch.cuda.get_device_properties(i).uuid): i for i in range(torch.cuda.device_count())}
    here = {uuid: i for uuid, i in known.items() if gpu < 0 or i == gpu}
    found = [uuid for uuid in handle if uuid in here] if isinstance(handle, Mapping) else []
    if not found:
        raise ValueError(f'update_weights: "{name}": expected a handle of the GPU {", ".join(here) or "of this process"}, found '
                         f'{", ".join(map(str, handle)) if isinstance(handle, Mapping) else type(handle).__name__}')
    try:
        function, args = handle[found[0]]
        if function is not rebuild_cuda_tensor:
            raise ValueError("found another function than rebuild_cuda_tensor")
        args = list(args)
        args[6] = here[found[0]]  # the sender may number its GPUs in another way
        return function(*args)
    except Exception as error:
        raise ValueError(f'update_weights: "{name}": expected a handle of memory that another process has, found one that does not '
                         f'open: {str(error).splitlines()[0] if str(error) else type(error).__name__}') from None


def tensors(request: Any, gpu: int) -> list[tuple[str, Any]]:
    """(name, tensor) of a request to update; the memory of the tensors is the sender's. gpu: the engine's, or -1."""
    info = _member(request, "update_info")
    found = []
    for name, dtype, shape, handle in zip(*_lists(info)):
        tensor = _opened(name, handle, gpu)
        if str(tensor.dtype) != f"torch.{dtype}" or list(tensor.shape) != list(shape):
            raise ValueError(f'update_weights: "{name}": expected {dtype} {list(shape)}, found {tensor.dtype} {list(tensor.shape)}')
        found.append((name, tensor))
    return found
