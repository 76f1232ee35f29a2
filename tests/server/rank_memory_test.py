"""Each rank that is a process reads and keeps its share of the weights: peak memory of every one of them, from its start to its first
answer, is at most 1.15 times as much."""
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

from rank_processes_test import processes_of_ranks
from served import Served

MIB = 1 << 20
MOST = 1.15
# What a process has beside its weights is measured with a model of next to nothing, and of the cache of keys and values there is little.
FLAGS = ["--distributed-executor-backend", "mp", "--kv-cache-memory", "0.01", "--max-num-seqs", "1",
         "--max-num-batched-tokens", "16", "--max-model-len", "64", "--threads", "1"]


def layers_of(model):
    with open(f"{model}/config.json") as file:
        return json.load(file)["num_hidden_layers"]


def shares(model, ranks, stages):
    """Bytes of the tensors of each worker, by stage: what is before the first layer and behind the last one is the first and the last
    stage's."""
    with open(f"{model}/model.safetensors", "rb") as file:
        tensors = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    tensors.pop("__metadata__", None)
    layers = layers_of(model)
    found = [0] * stages
    for name, tensor in tensors.items():
        begin, end = tensor["data_offsets"]
        layer = re.search(r"layers\.(\d+)\.", name)
        stage = next(s for s in range(stages) if int(layer[1]) < layers * (s + 1) // stages) if layer else \
            0 if "embed" in name else stages - 1
        found[stage] += (end - begin) / ranks
    return found


def peaks(invar, model, ranks, stages):
    """Most memory of its own that each process had, home first, then from the last stage's to the first one's; pages of the program's
    file do not count."""
    cuts = ["--layer-cuts", str(layers_of(model) // 2)] if stages == 2 else []
    server = Served(invar, command=[invar, "serve", model, "--host", "127.0.0.1", "--port", "0", "--tensor-parallel-size",
                                    str(ranks), *cuts, *FLAGS])
    server.post("/v1/completions", prompt="hello there", max_tokens=4)
    found = []
    for process in [server.process.pid] + sorted(processes_of_ranks(server.process.pid), reverse=True):
        with open(f"/proc/{process}/status") as file:
            status = dict(re.findall(r"(\w+):\s+(\d+) kB", file.read()))
        found.append((int(status["VmHWM"]) - int(status["RssFile"])) << 10)
    assert server.stop() == 0
    return found


def main(invar):
    with tempfile.TemporaryDirectory() as folder:
        small, large = (str(pathlib.Path(folder, name)) for name in ("small", "large"))
        subprocess.run([invar, "make-model", small], check=True, capture_output=True)
        subprocess.run([invar, "make-model", large, "--preset", "bench-473m"], check=True, capture_output=True)
        whole = sum(shares(large, 1, 1))
        for ranks, stages in ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2)):
            program = max(peaks(invar, small, ranks, stages))
            share_of = shares(large, ranks, stages)
            for number, peak in enumerate(peaks(invar, large, ranks, stages)):
                stage = stages - 1 - number // ranks
                ratio = (peak - program) / share_of[stage]
                print(f"{ranks} ranks x {stages} stages, stage {stage}: {(peak - program) / MIB:.0f} MiB, {ratio:.3f} x of a share")
                assert 0.9 < ratio < MOST, (ranks, stages, number, peak, program, share_of)
                # The control: a process that kept the whole model would be found.
                assert ranks * stages == 1 or whole / share_of[stage] > MOST


if __name__ == "__main__":
    main(sys.argv[1])
