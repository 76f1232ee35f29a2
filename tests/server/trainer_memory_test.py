"""Each rank of a trainer that is a process keeps its share of weights, gradients and optimizer's state, and one layer beside it: its peak
memory, from its start to the last checkpoint, is at most 1.25 times as much; activations and buffers are the rest."""
import pathlib
import subprocess
import sys
import tempfile

from mpi_test import mpirun

MIB = 1 << 20
MOST = 1.25
GROUPS, LAYERS, VOCAB = 4, 8, 512
RECIPE = """
name = "memory"
seed = 3
[corpus]
seed = 1
[tokenizer]
documents = 20
[model]
hidden = {hidden}
layers = {layers}
heads = 4
kv_heads = 4
head_dim = {head}
ffn = {ffn}
vocab = {vocab}
[training]
context = 32
rows = 4
groups = {groups}
batch_rows = 1
[optimizer]
steps = 1
warmup = 0
[evaluation]
documents = 1
every = 1
[checkpoint]
every = 1
"""
# Writes the most memory of its own that the command, a process of the job, had, to a file of its own: what processes of a job print may
# be mixed within a line. Pages of the program's file and of MPI's messages do not count.
WATCH = """
import os, pathlib, re, subprocess, sys, time
process = subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL)
own = 0
while process.poll() is None:
    with open(f"/proc/{process.pid}/status") as file:
        status = dict(re.findall(r"(\\w+):\\s+(\\d+) kB", file.read()))
    if "VmHWM" in status:
        own = max(own, int(status["VmHWM"]) - int(status["RssFile"]) - int(status["RssShmem"]))
    time.sleep(0.01)
assert process.returncode == 0, process.returncode
pathlib.Path(sys.argv[1], str(os.getpid())).write_text(str(own))
"""


def peaks(invar, folder, hidden, ranks):
    """Most memory of each rank, in bytes."""
    recipe = pathlib.Path(folder, f"{hidden}.toml")
    recipe.write_text(RECIPE.format(hidden=hidden, head=hidden // 4, ffn=3 * hidden, layers=LAYERS, vocab=VOCAB, groups=GROUPS))
    launch = mpirun(ranks) if ranks > 1 else []
    seen = pathlib.Path(folder, f"peaks-{hidden}-{ranks}")
    seen.mkdir()
    done = subprocess.run([*launch, sys.executable, "-c", WATCH, str(seen), invar, "train", str(recipe), "--threads", "1", "--output",
                           str(pathlib.Path(folder, f"{hidden}-{ranks}"))], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    found = [int(file.read_text()) << 10 for file in seen.iterdir()]
    assert len(found) == ranks, (ranks, found)
    return found


def parameters(hidden):
    """Of all, and of a layer."""
    layer = 4 * hidden * hidden + 9 * hidden * hidden
    return LAYERS * layer + 2 * VOCAB * hidden, layer


def share(hidden, ranks):
    """Bytes of a rank: f32 weights, two moments and a gradient for each level of the tree over its groups, weights in bf16; one rank
    alone has these packed twice beside it, several have a layer, and its gradient, embedding and head of which are larger."""
    all_of_them, layer = parameters(hidden)
    levels = (GROUPS // ranks).bit_length()
    if ranks == 1:
        return all_of_them * (12 + 4 * levels + 6)
    return all_of_them * (12 + 4 * levels + 2) / ranks + 10 * layer + 2 * (2 + 4) * VOCAB * hidden


def main(invar):
    hidden = 640
    with tempfile.TemporaryDirectory() as folder:
        program = max(peaks(invar, folder, 32, 2))
        for ranks in (1, 2, 4):
            for rank, peak in enumerate(peaks(invar, folder, hidden, ranks)):
                ratio = (peak - program) / share(hidden, ranks)
                print(f"{ranks} ranks: {(peak - program) / MIB:.0f} MiB, {ratio:.3f} x of a share")
                assert ratio < MOST, (ranks, rank, peak, program)
            # The control: with weights and gradients whole a rank would be found.
            whole = parameters(hidden)[0] * (12 / ranks + 4 * (GROUPS // ranks).bit_length() + 6)
            assert ranks == 1 or whole > MOST * share(hidden, ranks)


if __name__ == "__main__":
    main(sys.argv[1])
