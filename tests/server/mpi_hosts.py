"""A job of MPI over two "hosts": network namespaces with loopbacks of their own and one cable between them. Needs the rights to make
them (root), and ip. mpi_hosts.py INVAR"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from mpi_test import PROMPT
from served import made

HOSTS = {"invar-host-0": "10.77.0.1", "invar-host-1": "10.77.0.2"}
# What mpirun has instead of ssh: agent ADDRESS COMMAND...
AGENT = """#!/bin/sh
address=$1; shift
for host in HOSTS; do
  [ "$address" = "${host#*=}" ] && exec ip netns exec "${host%=*}" sh -c "$*"
done
exit 1
"""


def run(*words, **options):
    return subprocess.run(words, check=True, timeout=120, capture_output=True, text=True, **options).stdout


def make_hosts():
    for host in HOSTS:
        subprocess.run(["ip", "netns", "del", host], capture_output=True)  # of a run that was ended
        run("ip", "netns", "add", host)
    first, second = HOSTS
    run("ip", "link", "add", "cable", "netns", first, "type", "veth", "peer", "name", "cable", "netns", second)
    for host, address in HOSTS.items():
        run("ip", "-n", host, "addr", "add", f"{address}/24", "dev", "cable")
        for device in ("cable", "lo"):
            run("ip", "-n", host, "link", "set", device, "up")


def hash_of(invar, *flags, launch=()):
    out = run(*launch, invar, "generate", "-p", PROMPT, "--max-tokens", "12", "--temperature", "0", "--json", "--threads", "1",
              *made(flags), *flags)
    return json.loads(out)["logits_hash"]


def main(invar):
    make_hosts()
    with tempfile.TemporaryDirectory() as folder:
        agent = pathlib.Path(folder, "agent")
        agent.write_text(AGENT.replace("HOSTS", " ".join(f"{h}={a}" for h, a in HOSTS.items())))
        agent.chmod(0o755)
        alone = hash_of(invar)
        for ranks, stages in ((2, 1), (1, 2), (2, 2)):
            processes = ranks * stages
            hosts = ",".join(f"{address}:{processes // 2}" for address in HOSTS.values())
            launch = ["ip", "netns", "exec", next(iter(HOSTS)), "mpirun", "--allow-run-as-root", "--mca", "plm_rsh_agent",
                      str(agent), "--mca", "btl", "self,tcp", "--host", hosts, "--bind-to", "none", "-n", str(processes)]
            found = hash_of(invar, "--tensor-parallel-size", str(ranks), "--pipeline-parallel-size", str(stages), launch=launch)
            print(f"{ranks} ranks x {stages} stages on 2 hosts: {found}")
            assert found == alone, (ranks, stages, found, alone)
        # The control: other weights.
        assert hash_of(invar, "--load-format", "dummy:2", "--pipeline-parallel-size", "2", launch=launch[:-1] + ["2"]) != alone
    for host in HOSTS:
        run("ip", "netns", "del", host)


if __name__ == "__main__":
    main(sys.argv[1])
