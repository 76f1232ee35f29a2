"""A job of processes that meet over sockets, as torchrun or --nnodes start them: the bits are those of one process, strangers and those
who do not know the secret change nothing, and a rank that dies ends the job with a sentence.

host_ranks_test.py INVAR [--hosts]: with --hosts instead over two "hosts", network namespaces with loopbacks of their own and one cable
between them, which needs the rights to make them (root), and ip."""
import json
import os
import signal
import socket
import subprocess
import sys
import time
import unittest

from mpi_hosts import HOSTS, make_hosts
from served import FAST, Served, free_port, made

INVAR = None
PROMPT = "It was a dark and stormy night"
SECRET = "0123456789abcdef0123456789abcdef"


def command(*flags):
    return [INVAR, "generate", "-p", PROMPT, "--max-tokens", "12", "--temperature", "0", "--json", "--threads", "1", *made(flags),
            *flags]


def layout(ranks, stages):
    return ["--tensor-parallel-size", str(ranks), "--pipeline-parallel-size", str(stages)]


def environment(rank, size, port, address="127.0.0.1", secret=SECRET, local_rank=None, local_size=None):
    """What torchrun says."""
    return {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank if local_rank is None else local_rank),
            "LOCAL_WORLD_SIZE": str(local_size or size), "MASTER_ADDR": address, "MASTER_PORT": str(port), "INVAR_SECRET": secret}


def start(*words, env=None, launch=()):
    return subprocess.Popen([*launch, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def finish(processes, seconds=60):
    """Exit status, output and errors of each."""
    found = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            err += "\n(it did not end)"
        found.append((process.returncode, out, err))
    return found


def hash_of(found):
    status, out, err = found[0]
    assert status == 0, found
    return json.loads(out)["logits_hash"]


def alone(*flags):
    return hash_of(finish([start(*command(*flags))]))


def as_torchrun(size, *flags):
    port = free_port()
    return finish([start(*command(*flags), env=environment(rank, size, port)) for rank in range(size)])


class HostRanks(unittest.TestCase):
    def test_the_bits_are_those_of_one_process(self):
        expected = alone()
        for ranks, stages in ((2, 1), (1, 2), (2, 2)):
            found = as_torchrun(ranks * stages, *layout(ranks, stages))
            self.assertEqual(hash_of(found), expected, (ranks, stages))
            self.assertEqual([status for status, _, _ in found], [0] * len(found))
        # The control: other weights.
        self.assertNotEqual(hash_of(as_torchrun(2, *layout(2, 1), "--load-format", "dummy:2")), expected)

    def test_flags_of_nodes_start_each_hosts_processes(self):
        expected = alone()
        for ranks, stages in ((2, 1), (2, 2)):
            nodes = [start(*command(*layout(ranks, stages), "--nnodes", "2", "--node-rank", str(node), f"--master-port={port}"),
                           env={**os.environ, "INVAR_SECRET": SECRET}) for port in [free_port()] for node in (0, 1)]
            found = finish(nodes)
            self.assertEqual(hash_of(found), expected)
            self.assertEqual(found[1][:2], (0, ""))

    def test_several_models_one_after_the_other(self):
        found = finish([start(INVAR, "bench", "divergence", "--over-ranks", "2,2", "--over-batches", "2", "--over-arithmetics", "portable",
                              "--requests", "2", "--tokens", "4", "--prompt-tokens", "4", "--threads", "1", env=environment(rank, 2, port))
                        for port in [free_port()] for rank in (0, 1)])
        self.assertEqual([status for status, _, _ in found], [0, 0], found)

    def test_who_knows_another_secret_is_no_rank(self):
        port = free_port()
        first = start(*command(*layout(2, 1)), env=environment(0, 2, port))
        stranger = start(*command(), env=environment(1, 2, port, secret=SECRET[::-1]))
        [(status, _, said)] = finish([stranger])
        self.assertEqual(status, 1)
        self.assertIn("INVAR_SECRET is not the same everywhere", said)
        with socket.create_connection(("127.0.0.1", port), timeout=5) as rude:
            rude.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
        second = start(*command(), env=environment(1, 2, port))
        self.assertEqual(hash_of(finish([first, second])), alone())

    def test_silent_strangers_keep_no_rank_out(self):
        port = free_port()
        first = start(*command(*layout(2, 1)), env=environment(0, 2, port))
        strangers, until = [], time.monotonic() + 30
        while len(strangers) < 12:
            try:
                strangers.append(socket.create_connection(("127.0.0.1", port), timeout=5))
            except ConnectionRefusedError:  # the first rank does not listen yet
                self.assertLess(time.monotonic(), until)
                time.sleep(0.05)
        before = time.monotonic()
        second = start(*command(), env=environment(1, 2, port))
        self.assertEqual(hash_of(finish([first, second])), alone())
        self.assertLess(time.monotonic() - before, 30)
        for stranger in strangers:
            stranger.close()

    def test_a_secret_that_can_be_guessed_is_refused(self):
        for secret in ("another", SECRET[:31]):
            for flags, env in ((["--nnodes", "2"], {**os.environ, "INVAR_SECRET": secret}), ([], environment(0, 2, free_port(), secret=secret))):
                [(status, _, said)] = finish([start(*command(*layout(2, 1), *flags), env=env)])
                self.assertEqual(status, 2)
                self.assertIn(f"expected INVAR_SECRET of at least 32 bytes, which nobody guesses (openssl rand -hex 32), found {len(secret)}", said)

    def test_what_cannot_be_is_refused(self):
        self.assertIn("found 2 processes and 4 ranks x 1 stages", as_torchrun(2, *layout(4, 1))[0][2])
        self.assertIn("expected the executor hosts in a job of 2 processes",
                      as_torchrun(2, *layout(2, 1), "--distributed-executor-backend", "mp")[0][2])
        without = {name: value for name, value in os.environ.items() if name != "INVAR_SECRET"}
        for flags, said in ((["--nnodes", "2", *layout(2, 1)], "--nnodes needs INVAR_SECRET"),
                            (["--nnodes", "2", *layout(1, 1)], "as many workers on each host"),
                            (["--nnodes", "two"], "expected a number of 1 or more for --nnodes")):
            [(status, _, err)] = finish([start(*command(*flags), env=without)])
            self.assertEqual(status, 2)
            self.assertIn(said, err)

    def served_by_two(self):
        """(a server, the process of its other rank)"""
        port = free_port()
        for name, value in environment(0, 2, port).items():
            os.environ[name] = value
        try:
            other = start(*command(), env=environment(1, 2, port))
            server = Served(INVAR, command=[INVAR, "serve", "--host", "127.0.0.1", "--port", "0", *made(), *FAST, *layout(2, 1)])
        finally:
            for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
                os.environ.pop(name)
        return server, other

    def expect_end(self, server):
        try:
            server.post("/v1/completions", **self.ASK)
        except (OSError, AssertionError, ValueError):
            pass
        self.assertEqual(server.process.wait(20), 1)
        self.assertIn("a job over several hosts that loses a rank ends", server.said())

    ASK = dict(prompt=PROMPT, max_tokens=8, temperature=0, logits_hash=True)

    def test_a_rank_that_dies_ends_the_job(self):
        server, other = self.served_by_two()
        server.post("/v1/completions", **self.ASK)
        other.send_signal(signal.SIGKILL)
        other.wait()
        self.expect_end(server)
        server.stop()
        finish([other])

    def test_a_rank_that_stands_still_ends_the_job(self):
        server, other = self.served_by_two()
        first = server.post("/v1/completions", **self.ASK)["choices"]
        other.send_signal(signal.SIGSTOP)
        time.sleep(4)  # the control: it may be still for a while
        other.send_signal(signal.SIGCONT)
        time.sleep(8)
        self.assertEqual(server.post("/v1/completions", **self.ASK)["choices"], first)
        other.send_signal(signal.SIGSTOP)
        before = time.monotonic()
        self.expect_end(server)
        self.assertLess(time.monotonic() - before, 15)
        self.assertIn("process 1 of the job, at 127.0.0.1, gives no sign of life", server.said())
        server.stop()
        other.send_signal(signal.SIGCONT)  # it ends by itself
        finish([other])


def over_hosts():
    make_hosts()
    expected = alone()
    for ranks, stages in ((2, 1), (1, 2), (2, 2), (4, 1)):
        nodes = [start(*command(*layout(ranks, stages), "--nnodes", "2", "--node-rank", str(node), "--master-addr", HOSTS["invar-host-0"]),
                       launch=["ip", "netns", "exec", host], env={**os.environ, "INVAR_SECRET": SECRET})
                 for node, host in enumerate(HOSTS)]
        found = hash_of(finish(nodes))
        print(f"{ranks} ranks x {stages} stages on 2 hosts: {found}")
        assert found == expected, (ranks, stages, found, expected)
    assert alone("--load-format", "dummy:2") != expected  # the control
    for host in HOSTS:
        subprocess.run(["ip", "netns", "del", host], check=True)


if __name__ == "__main__":
    INVAR = os.path.abspath(sys.argv.pop(1))
    if "--hosts" in sys.argv:
        over_hosts()
    else:
        unittest.main()
