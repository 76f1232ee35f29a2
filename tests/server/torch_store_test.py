#!/usr/bin/env python3
"""Weights from a trainer whose store is torch's own TCPStore, of both of its servers.

Usage: torch_store_test.py INVAR LIBRARY. Needs a Python with torch (INVAR_WITNESS, or /opt/witness/bin/python), else it is skipped (77).
"""
import datetime
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

try:
    import torch.distributed
except ImportError:
    torch = None

from served import Served, fast_and
from tokens_test import Raw, tensors_of
from trainer import Trainer

WITNESS = os.environ.get("INVAR_WITNESS", "/opt/witness/bin/python")
INVAR = LIBRARY = None
KEY = {"Authorization": "Bearer k"}


class TorchStore:
    """What Trainer asks of a store."""

    def __init__(self, use_libuv):
        self.use_libuv, self.store = use_libuv, None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    def wait_for(self, key, is_good, seconds):
        """Torch's constructor waits for all that are to come."""
        self.store = torch.distributed.TCPStore("127.0.0.1", self.port, world_size=2, is_master=True, use_libuv=self.use_libuv,
                                                timeout=datetime.timedelta(seconds=seconds))
        return True

    def set(self, key, value):
        self.store.set(key.removeprefix("/"), value)  # torch puts it before

    def close(self):
        self.store = None


class TorchStores(unittest.TestCase):
    def test_weights_come_by_both(self):
        with tempfile.TemporaryDirectory(prefix="invar-store-") as directory:
            root = pathlib.Path(directory)
            for name, seed in (("one", 1), ("two", 2)):
                subprocess.run([INVAR, "make-model", root / name, "--seed", str(seed)], check=True, capture_output=True)
            served = Served(INVAR, command=[INVAR, "serve", root / "one", "--host", "127.0.0.1", "--port", "0",
                                            *fast_and(["--api-key", "k", "--weight-transfer-config", '{"backend": "nccl"}'])])
            digest = lambda: served.ask("POST", "/weight_checker", {"action": "checksum"}, KEY)[2]["checksum"]
            first, second = (list(tensors_of(root / name)) for name in ("one", "two"))
            name, tensor = second[3]
            other = Raw(tensor.dtype, tensor.shape, bytes([tensor.data[0] ^ 1]) + tensor.data[1:])
            wanted = [digest()]
            for use_libuv in (True, False):
                trainer = Trainer(LIBRARY, lambda path, body=None: served.ask("POST", path, body, KEY)[2], store=TorchStore(use_libuv))
                self.assertEqual(trainer.join().get("message"), "Weight transfer initialized")
                trainer.update(second)
                wanted.append(digest())
                trainer.update([(name, other)])
                self.assertNotIn(digest(), wanted, "the control: one bit differs")
                trainer.update(first)
                self.assertEqual(digest(), wanted[0])
                trainer.close()
            self.assertEqual(wanted[1], wanted[2])
            self.assertNotEqual(wanted[0], wanted[1])
            self.assertEqual(served.stop(), 0)


if __name__ == "__main__":
    INVAR, LIBRARY = sys.argv[1], sys.argv[2]
    os.environ["INVAR_NCCL"] = LIBRARY
    if not torch:
        if not os.path.exists(WITNESS) or sys.executable == WITNESS:
            print(f"SKIPPED server.torch_store: no torch here, and none by {WITNESS} (scripts/setup_witness)")
            sys.exit(77)
        os.execv(WITNESS, [WITNESS, *sys.argv])
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
