"""Each rank that is a process reads and keeps its share of the weights: peak memory of every one of them."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from rank_processes_test import processes_of_ranks
from served import Served

MIB = 1 << 20
BUFFERS = 10 * MIB  # keys and values (FLAGS), and what is read at a time for the digest of the weights
FLAGS = ["--distributed-executor-backend", "mp", "--kv-cache-memory", "0.01", "--max-num-seqs", "1",
         "--max-num-batched-tokens", "16", "--max-model-len", "64", "--threads", "1"]


def peaks(invar, model, ranks, stages):
    """Most memory of its own that each process had, home first; pages of the program's file do not count."""
    server = Served(invar, command=[invar, "serve", model, "--host", "127.0.0.1", "--port", "0", "--tensor-parallel-size",
                                    str(ranks), "--pipeline-parallel-size", str(stages), *FLAGS])
    server.post("/v1/completions", prompt="hello there", max_tokens=4)
    found = []
    for process in [server.process.pid] + processes_of_ranks(server.process.pid):
        with open(f"/proc/{process}/status") as file:
            status = dict(re.findall(r"(\w+):\s+(\d+) kB", file.read()))
        found.append((int(status["VmHWM"]) - int(status["RssFile"])) << 10)
    assert server.stop() == 0
    return found


def main(invar):
    with tempfile.TemporaryDirectory() as folder:
        small, large = (str(pathlib.Path(folder, name)) for name in ("small", "large"))
        subprocess.run([invar, "make-model", small], check=True, capture_output=True)
        subprocess.run([invar, "make-model", large, "--preset", "bench-100m"], check=True, capture_output=True)
        weights = os.path.getsize(f"{large}/model.safetensors")
        for ranks, stages in ((1, 1), (2, 1), (4, 1), (2, 2)):
            program = max(peaks(invar, small, ranks, stages))  # beside a model of next to nothing
            share = weights / ranks / stages
            for number, peak in enumerate(peaks(invar, large, ranks, stages)):
                ratio = (peak - program) / share
                print(f"{ranks} ranks x {stages} stages: {(peak - program) / MIB:.0f} MiB, {ratio:.2f} x of a share")
                # Stages are cut between layers, and the first and the last have embedding and head besides.
                most = (1.15 if stages == 1 else 1.4) * share + BUFFERS
                assert 0.7 * share < peak - program < most, (ranks, stages, number, peak, program, share)


if __name__ == "__main__":
    main(sys.argv[1])
