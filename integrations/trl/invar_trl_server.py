"""TRL's server mode (GRPOConfig(use_vllm=True, vllm_mode="server")) with a server of `invar serve` and a trainer without a GPU.

    import invar_trl_server
    invar_trl_server.install(key="KEY")        # before the trainer is made

TRL's own client generates through the server's paths of vLLM as it is; weights it sends by NCCL, from a GPU alone. Here they go
as the bodies of requests. vLLM itself need not be installed.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import torch
import trl.generation.vllm_client
import trl.generation.vllm_generation
from trl.generation.vllm_client import VLLMClient

from invar.http_weights import HttpWeights

_settings: dict[str, Any] = {"key": None, "dtype": torch.bfloat16}


def install(key: Optional[str] = None, dtype: Optional[torch.dtype] = torch.bfloat16) -> None:
    """Lets TRL's trainers use InvarClient. key: the server's admin key; dtype: that of the served checkpoint, to which float
    weights are rounded, as the engine reads them; None: as the trainer has them."""
    _settings.update(key=key, dtype=dtype)
    for module in (trl.generation.vllm_client, trl.generation.vllm_generation):
        module.is_vllm_available = lambda min_version=None: True
    trl.generation.vllm_generation.VLLMClient = InvarClient


class InvarClient(VLLMClient):
    """TRL's client, whose weights go in bodies."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.sender: Optional[HttpWeights] = None
        super().__init__(*args, **options)

    def check_server(self, *args: Any, **options: Any) -> None:
        """The first that is asked of the server: from here on with the key."""
        if _settings["key"]:
            self.session.headers["Authorization"] = f"Bearer {_settings['key']}"
        super().check_server(*args, **options)

    def init_communicator(self, device: Any = 0) -> None:
        config = self.get_server_info()["weight_transfer_config"]
        if (config or {}).get("backend") != "http":
            raise RuntimeError(f"expected a server of `invar serve` at {self.base_url}, whose weights come by http, found {config}")
        self.sender = HttpWeights(self.base_url, _settings["key"])

    def _start_weight_update(self) -> None:
        self._sender().start()

    def _finish_weight_update(self) -> None:
        self._sender().finish()

    def update_named_params(self, metadata: list[tuple[str, str, list[int]]],
                            named_params: Iterable[tuple[str, torch.Tensor]]) -> None:
        if not self._updating_weights:
            self._start_weight_update()
        self._sender().add((name, self._rounded(tensor)) for name, tensor in named_params)
        if not self._updating_weights:
            self._finish_weight_update()

    def close_communicator(self) -> None:
        self.sender = None

    @staticmethod
    def _rounded(tensor: torch.Tensor) -> torch.Tensor:
        dtype = _settings["dtype"]
        return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor

    def _sender(self) -> HttpWeights:
        if self.sender is None:
            raise RuntimeError("call init_communicator first")
        return self.sender
