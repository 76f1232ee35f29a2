"""Tensor-parallel ranks as processes: the bits are those of one rank, and a rank that is killed costs nobody an answer."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from served import Served, made

INVAR = None
PROMPT = "It was a dark and stormy night"


def hash_of(*flags):
    out = subprocess.run([INVAR, "generate", "-p", PROMPT, "--max-tokens", "24", "--temperature", "0", "--json", *made(flags), *flags],
                         capture_output=True, check=True, timeout=120)
    return json.loads(out.stdout)["logits_hash"]


def processes_of_ranks(parent):
    """Process ids of the rank workers below `parent`, at any depth."""
    children, commands = {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as stat:
                children.setdefault(int(stat.read().rsplit(")", 1)[1].split()[1]), []).append(int(entry))
            with open(f"/proc/{entry}/cmdline") as line:
                commands[int(entry)] = line.read().split("\0")
        except OSError:
            pass  # it has ended
    found, waiting = [], [parent]
    while waiting:
        for child in children.get(waiting.pop(), []):
            waiting.append(child)
            if "worker" in commands.get(child, []):
                found.append(child)
    return found


class RankProcesses(unittest.TestCase):
    def test_the_bits_are_those_of_one_rank(self):
        alone = hash_of()
        for ranks in "24":
            self.assertEqual(hash_of("--tensor-parallel-size", ranks, "--distributed-executor-backend", "mp"), alone)
        for ranks in "12":
            staged = ["--tensor-parallel-size", ranks, "--distributed-executor-backend", "mp", "--layer-cuts", "1,3"]
            self.assertEqual(hash_of(*staged), alone)
        # The control: with other weights in every rank the hash is another.
        self.assertNotEqual(hash_of("--load-format", "dummy:2", "--tensor-parallel-size", "2",
                                    "--distributed-executor-backend", "mp"), alone)

    def test_what_cannot_be_is_refused(self):
        for flags, said in ((["--distributed-executor-backend", "ray"], "expected an executor of threads, mp, mp-sockets, mpi or hosts"),
                            (["--tensor-parallel-size", "2", "--distributed-executor-backend", "mp", "--load-format",
                              "auto", "/nonexistent"], "/nonexistent")):
            done = subprocess.run([INVAR, "generate", "-p", "x", *made(flags), *flags], capture_output=True, text=True, timeout=60)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(said, done.stderr)

    def test_a_job_of_mpi_needs_a_launcher_and_a_library(self):
        ranks = ["--tensor-parallel-size", "2"]
        done = subprocess.run([INVAR, "generate", "-p", "x", *made(), *ranks, "--distributed-executor-backend", "mpi"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("expected a launcher for the executor mpi, as in mpirun -n 2 invar", done.stderr)
        with tempfile.TemporaryDirectory() as folder:  # as where there is no Open MPI
            open(f"{folder}/libmpi.so.40", "w").close()
            done = subprocess.run([INVAR, "generate", "-p", "x", *made(), *ranks], capture_output=True, text=True, timeout=60,
                                  env={**os.environ, "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0",
                                       "LD_LIBRARY_PATH": folder})
        self.assertEqual(done.returncode, 1)
        self.assertIn("Open MPI cannot be opened", done.stderr)

    def test_a_killed_rank_costs_nobody_an_answer(self):
        self.expect_answers_of_others()
        self.expect_answers_of_others("--engine-process")

    def expect_answers_of_others(self, *flags):
        server = Served(INVAR, "--tensor-parallel-size", "2", "--distributed-executor-backend", "mp", *flags)
        ask = dict(prompt=PROMPT, max_tokens=300, temperature=0.7, seed=5, ignore_eos=True)
        before = server.post("/v1/completions", **ask)["choices"]
        request = server.connect()
        request.request("POST", "/v1/completions", json.dumps(ask), {"Content-Type": "application/json"})
        time.sleep(0.1)
        first = processes_of_ranks(server.process.pid)
        self.assertEqual(len(first), 1)
        os.kill(first[0], signal.SIGKILL)
        self.assertEqual(json.loads(request.getresponse().read())["choices"], before)
        self.assertEqual(server.post("/v1/completions", **ask)["choices"], before)
        last = processes_of_ranks(server.process.pid)
        self.assertEqual(len(last), 1)
        self.assertNotEqual(first, last)
        self.assertEqual(server.stop(), 0)
        deadline = time.monotonic() + 5  # the system ends it with its parent
        while os.path.exists(f"/proc/{last[0]}"):
            self.assertLess(time.monotonic(), deadline, "a rank's process outlives its server")
            time.sleep(0.01)


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main()
