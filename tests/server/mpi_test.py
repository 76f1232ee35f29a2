"""A job of MPI: the bits are those of one process, and a rank that dies ends the job with a sentence."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

from served import FAST, Served, made

INVAR = None
PROMPT = "It was a dark and stormy night"
RECIPE = """
name = "tiny"
seed = 3
[corpus]
seed = 5
[tokenizer]
documents = 20
[model]
hidden = 32
layers = 2
heads = 2
kv_heads = 1
head_dim = 16
ffn = 64
vocab = 700
[training]
context = 64
rows = 8
groups = 8
batch_rows = 1
[optimizer]
steps = 6
warmup = 2
rate = 1e-2
[evaluation]
documents = 3
every = 3
[checkpoint]
every = 3
"""
FULL = bool(os.environ.get("INVAR_FULL_TESTS"))
# Several processes on any cores, as the administrator or not, without messages over networks.
LAUNCH = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,vader",
          "--mca", "btl_vader_single_copy_mechanism", "none"]


def call(*words, status=0, **options):
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, **options)
    if status is not None:
        assert done.returncode == status, (words, done.returncode, done.stdout, done.stderr)
    return done


def generate(*flags, launch=()):
    out = call(*launch, INVAR, "generate", "-p", PROMPT, "--max-tokens", "12", "--temperature", "0", "--json",
               "--threads", "1", *made(flags), *flags)
    return json.loads(out.stdout)["logits_hash"]


def mpirun(processes):
    return [*LAUNCH, "-n", str(processes)]


def ranks_of(launcher):
    """Process ids of the job's ranks, by rank."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as stat:
                parent = int(stat.read().rsplit(")", 1)[1].split()[1])
            if parent == launcher:
                with open(f"/proc/{entry}/environ") as file:
                    said = dict(line.split("=", 1) for line in file.read().split("\0") if "=" in line)
                found[int(said["OMPI_COMM_WORLD_RANK"])] = int(entry)
        except OSError:
            pass  # it has ended
    return [found[rank] for rank in sorted(found)]


class Mpi(unittest.TestCase):
    def test_the_bits_are_those_of_one_process(self):
        alone = generate()
        for ranks, stages in ((2, 1), (1, 2), (2, 2), (4, 1)) + FULL * ((4, 2), (2, 4), (8, 1)):
            layout = ["--tensor-parallel-size", str(ranks), "--pipeline-parallel-size", str(stages)]
            for backend in ("threads", "mp"):
                self.assertEqual(generate(*layout, "--distributed-executor-backend", backend), alone)
            self.assertEqual(generate(*layout, launch=mpirun(ranks * stages)), alone, (ranks, stages))
        # The control: with other weights in every rank the hash is another.
        self.assertNotEqual(generate("--tensor-parallel-size", "2", "--load-format", "dummy:2", launch=mpirun(2)), alone)

    def test_a_trainer_of_several_processes_has_the_weights_of_one(self):
        with tempfile.TemporaryDirectory() as folder:
            recipe = pathlib.Path(folder, "recipe.toml")
            recipe.write_text(RECIPE)

            def weights(output, *launch, options=()):
                done = call(*launch, INVAR, "train", str(recipe), "--threads", "1", "--json", *options, "--output",
                            str(pathlib.Path(folder, output)))
                return json.loads(done.stdout)["weights"]  # one process prints

            def state(output):
                [checkpoint] = pathlib.Path(folder, output, "checkpoints").iterdir()
                return {path.name: path.read_bytes() for path in (checkpoint / "state").iterdir()}

            alone = weights("alone")
            for processes in (2, 4) + FULL * (8,):
                self.assertEqual(weights(f"of-{processes}", *mpirun(processes)), alone, processes)
            # A checkpoint has the optimizer's state of all ranks, so another number of processes goes on from it.
            halfway = weights("stopped", *mpirun(4), options=("--until", "1"))
            self.assertNotEqual(halfway, alone)
            self.assertEqual(weights("stopped", *mpirun(2)), alone)
            self.assertEqual(state("stopped"), state("alone"))
            # The control: another seed.
            recipe.write_text(RECIPE.replace("seed = 3", "seed = 4"))
            self.assertNotEqual(weights("other", *mpirun(2)), alone)
            done = call(*mpirun(3), INVAR, "train", str(recipe), "--output", str(pathlib.Path(folder, "three")), status=None)
            self.assertIn("a number of ranks that is a power of two", done.stderr)

    def test_what_needs_no_model(self):
        self.assertRegex(call(*mpirun(2), INVAR, "--version").stdout, r"\d+\.\d+")
        said = call(*mpirun(2), INVAR, "generate", "--nonsense", status=None)
        self.assertNotEqual(said.returncode, 0)
        self.assertEqual(said.stderr.count("--nonsense"), 1)  # of one process

    def test_what_cannot_be_is_refused(self):
        said = call(*mpirun(3), INVAR, "generate", *made(), "-p", "x", "--tensor-parallel-size", "2", status=None).stderr
        self.assertIn("found 3 processes and 2 ranks x 1 stages", said)
        said = call(*mpirun(2), INVAR, "generate", *made(), "-p", "x", "--distributed-executor-backend", "mp", status=None).stderr
        self.assertIn("expected the executor mpi in a job of 2 processes, found mp", said)

    def test_a_rank_that_dies_ends_the_job(self):
        server = Served(INVAR, command=[*mpirun(2), INVAR, "serve", "--host", "127.0.0.1", "--port", "0", *made(), *FAST,
                                        "--tensor-parallel-size", "2"])
        ask = dict(prompt=PROMPT, max_tokens=8, temperature=0)
        server.post("/v1/completions", **ask)
        os.kill(ranks_of(server.process.pid)[1], signal.SIGKILL)
        self.assertNotEqual(server.process.wait(20), 0)
        self.assertRegex(server.said(), r"rank 1 .*signal 9")
        server.stop()

    def test_a_job_that_ends_leaves_nobody(self):
        server = Served(INVAR, command=[*mpirun(2), INVAR, "serve", "--host", "127.0.0.1", "--port", "0", *made(), *FAST,
                                        "--tensor-parallel-size", "2"])
        ranks = ranks_of(server.process.pid)
        os.kill(ranks[0], signal.SIGTERM)
        self.assertEqual(server.process.wait(20), 0)
        self.assertEqual([rank for rank in ranks if os.path.exists(f"/proc/{rank}")], [])
        server.stop()


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main()
