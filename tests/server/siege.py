#!/usr/bin/env python3
"""A hostile client beside well-behaved streams, with kill -9. Usage: siege.py INVAR [--minutes M] [--streams N] [--kill-seconds S] [--patience P]

A server of models/story on two threads, with a journal and keys, is attacked by the attacks of attack.py in random order
and killed again and again. Beside that, streams of another key ask with an Idempotency-Key until each answer is whole.
Prints answers, kills, attacks; ends with 0 if none was lost, had other bytes than those of an undisturbed server, or was
shown to another key. All of it is on this machine's loopback address.
"""
import argparse
import pathlib
import random
import re
import signal
import sys
import tempfile
import threading
import time

import attack
from served import Served, ask_once

COMPLETIONS = "/v1/completions"
KINDS = [attack.chunks, attack.bodies, attack.answers, attack.logprobs, attack.embeddings, attack.marks, attack.prompts, attack.grammars, attack.fields, attack.journal,
         attack.dripping, attack.tokens, attack.keys]


def body_of(i):
    return {"prompt": f"Once upon a time, number {i},", "max_tokens": 60 + i, "seed": i, "temperature": 0.8, "stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}


def same(data):
    """The bytes of a stream but for its id and time."""
    return re.sub(rb'"id": ?"[^"]*"|"created": ?\d+', b"", data)


class Siege:
    def __init__(self, asked, directory):
        self.asked, self.directory, self.over = asked, directory, threading.Event()
        self.up, self.faults, self.whole, self.kills, self.attacks = threading.Event(), [], 0, 0, 0
        self.lock, self.draws = threading.Lock(), random.Random(asked.seed)

    def start(self, *flags):
        command = [self.asked.invar, "serve", str(attack.ROOT / "models/story"), "--host", "127.0.0.1", "--port", "0", "--threads", "2", "--kv-cache-memory", "0.0625",
                   *(word for key in ("k", "other", "good") for word in ("--api-key", key)), *flags]
        self.served = Served(self.asked.invar, command=command)
        self.up.set()

    def ask(self, method, path, body=None, key="good", headers=None):
        """(status, data), or None where the connection broke."""
        return ask_once(self.served.port, method, path, body, {"Authorization": f"Bearer {key}", **(headers or {})})

    def stream(self, i, name):
        """The whole stream of an Idempotency-Key, however often the server dies meanwhile."""
        end = time.monotonic() + self.asked.patience
        while time.monotonic() < end:
            self.up.wait(10)
            found = self.ask("POST", COMPLETIONS, body_of(i), headers={"Idempotency-Key": name})
            if found and found[0] == 200 and found[1].endswith(b"data: [DONE]\n\n"):
                return found[1]
            if found and found[0] not in (200, 429, 503):
                return f"status {found[0]}: {found[1][:200]}".encode()
            time.sleep(0.2)
        return b""

    def behave(self, i, expected):
        count = 0
        while not self.over.is_set():
            count += 1
            data = self.stream(i, f"{i}-{count}")
            fault = "lost" if not data else "other bytes" if same(data) != expected else ""
            found = re.search(rb'"id": ?"(cmpl-[0-9a-f]+)"', data)
            if found:
                stolen = self.ask("GET", f"{COMPLETIONS}/{found[1].decode()}", key="k")
                fault = fault or ("shown to another key" if stolen and stolen[0] == 200 else "")
            with self.lock:
                self.whole += not fault
                if fault:
                    self.faults.append(f"stream {i}, answer {count}: {fault}: {data[:300]!r}")

    def attack(self):
        while not self.over.is_set():
            self.up.wait(10)
            kind = self.draws.choice(KINDS)
            attacker = attack.Attacker(self.served.port, quick=True)
            try:
                kind(attacker)
            except (OSError, ValueError):  # the server was killed
                pass
            except Exception as error:  # an attacker that ends attacks no more
                self.faults.append(f"the attack {kind.__name__}: {error!r}")
            self.attacks += 1

    def kill(self):
        self.up.clear()
        self.served.process.send_signal(signal.SIGKILL)
        self.served.process.wait()
        said = self.served.said()
        if any(word in said for word in ("bad_alloc", "Sanitizer", "runtime error")):
            self.faults.append(said[-500:])
        self.kills += 1
        self.start("--journal", f"{self.directory}/journal")

    def run(self):
        self.start()
        alone = [same(self.ask("POST", COMPLETIONS, body_of(i))[1]) for i in range(self.asked.streams)]
        if len(set(alone)) != len(alone):  # the control
            self.faults.append("streams of different requests are equal")
        self.served.stop()
        self.start("--journal", f"{self.directory}/journal")
        threads = [threading.Thread(target=self.behave, args=(i, alone[i])) for i in range(self.asked.streams)]
        threads += [threading.Thread(target=self.attack) for _ in range(2)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 60 * self.asked.minutes
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(self.asked.kill_seconds, left))
            if self.served.process.poll() is not None:
                self.faults.append(f"the server ended by itself: {self.served.said()[-500:]}")
            self.kill()
        self.over.set()
        for thread in threads:
            thread.join()
        status = self.served.stop()
        self.faults += [f"it ended with {status}"] * (status != 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("invar")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--kill-seconds", type=float, default=60)
    parser.add_argument("--patience", type=float, default=180, help="seconds in which an answer must be whole, kills included; a sanitizer's build needs more")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    asked.invar = str(pathlib.Path(asked.invar).resolve())
    with tempfile.TemporaryDirectory(prefix="invar-siege-") as directory:
        siege = Siege(asked, directory)
        siege.run()
    print(f"{siege.whole} whole answers of {asked.streams} streams, {siege.attacks} attacks, {siege.kills} kills; {len(siege.faults)} faults")
    print("\n".join(siege.faults[:20]))
    return 1 if siege.faults else 0


if __name__ == "__main__":
    sys.exit(main())
