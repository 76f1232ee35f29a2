"""A server of a made model, for tests: starts it, talks to it, ends it. Standard library only."""
import http.client
import json
import os
import pathlib
import random
import re
import select
import signal
import socket
import subprocess
import tempfile
import time

os.environ["INVAR_HOME"] = "/nonexistent"  # no test has the bundled model unless it names it
FAST = ["--threads", "1", "--max-model-len", "512", "--kv-cache-memory", "0.1", "--max-num-seqs", "32"]


def fast_and(flags):
    """`flags`, and of FAST what they do not say."""
    return [word for pair in zip(FAST[::2], FAST[1::2]) if pair[0] not in flags for word in pair] + list(flags)


def made(flags=()):
    """What asks for the small model of random weights, where `flags` do not say which weights."""
    return [] if "--load-format" in flags else ["--load-format", "dummy:1"]


def ask_once(port, method, path, body=None, headers=None, seconds=60):
    """(status, data), or None where the connection broke."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
        connection.request(method, path, json.dumps(body) if body else None, headers or {})
        reply = connection.getresponse()
        data = reply.read()
        connection.close()
        return reply.status, data
    except (OSError, http.client.HTTPException):
        return None


def free_port():
    """A port of this machine that nobody listens at, and that the system gives nobody who names none: tests beside this one, whose
    servers and connections have such ports, do not take it before it is listened at, nor while a server is started again."""
    first_given = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(first_given // 2, first_given)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass  # somebody listens there


class Served:
    """One server process. `invar` is the program; `command` replaces the usual one."""
    patience = 90  # seconds for what takes none on an idle machine

    def __init__(self, invar, *flags, name="m", command=None):
        self.program = invar
        self.log = tempfile.TemporaryFile("w+b")  # what it says on the error stream
        command = command or [invar, "serve", "--host", "127.0.0.1", "--port", "0", "--served-model-name", name,
                              *made(flags), *fast_and(flags)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log)
        ready, _, _ = select.select([self.process.stdout], [], [], self.patience)
        assert ready, "the server did not start"
        line = self.process.stdout.readline().decode()
        match = re.match(r"https?://127\.0\.0\.1:(\d+)$", line.strip())
        assert match, line or self.said()
        self.port = int(match[1])

    def stop(self, by=signal.SIGTERM):
        """Ends it and returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(by)
        status = self.process.wait(self.patience)
        self.process.stdout.close()
        self.last_words = self.said()
        self.log.close()
        return status

    def said(self):
        """What it wrote to the error stream so far."""
        return os.pread(self.log.fileno(), 1 << 20, 0).decode(errors="replace")

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.patience)

    def raw(self, data=b""):
        """A connection that sent `data`."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=self.patience)
        connection.sendall(data)
        return connection

    def ask(self, method, path, body=None, headers=None):
        """(status, headers, body): JSON as a value, anything else as bytes."""
        connection = self.connect()
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        data = reply.read()
        connection.close()
        if data and reply.headers.get("Content-Type", "").startswith("application/json"):
            data = json.loads(data)
        return reply.status, reply.headers, data

    def post(self, path, **body):
        """The body of an answer that must be 200."""
        status, _, answer = self.ask("POST", path, body)
        assert status == 200, (status, answer)
        return answer

    def stream(self, path, headers=None, **body):
        """The bytes of a stream's answer."""
        status, reply_headers, data = self.ask("POST", path, {**body, "stream": True}, headers)
        assert status == 200, (status, data)
        assert reply_headers["Content-Type"].startswith("text/event-stream")
        return data

    def metric(self, name):
        """The sum of a metric's values."""
        _, _, text = self.ask("GET", "/metrics")
        values = re.findall(rf"^{re.escape(name)}{{[^}}]*}} (\S+)$", text.decode(), re.M)
        assert values, name
        return sum(map(float, values))

    def wait_until(self, condition, seconds=10):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.01)

    def resident_bytes(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024


class Endless(Served):
    """A server of a made model with so many positions that an answer goes on until its client leaves: however slow a test is, it finds
    there what it began."""

    def __init__(self, invar, *flags):
        self.folder = tempfile.TemporaryDirectory(prefix="invar-endless-")
        subprocess.run([invar, "make-model", self.folder.name], check=True, capture_output=True)
        config = pathlib.Path(self.folder.name, "config.json")
        config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 65536}))
        super().__init__(invar, command=[invar, "serve", self.folder.name, "--host", "127.0.0.1", "--port", "0", "--served-model-name", "m",
                                         *fast_and([*flags, "--max-model-len", "50000"])])

    def begin(self, headers=None, **more):
        """A connection with an answer that has begun and has no end."""
        connection = self.connect()
        body = {"prompt": "x", "max_tokens": 49000, "ignore_eos": True, "stream": True, **more}
        connection.request("POST", "/v1/completions", json.dumps(body), headers or {})
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
        reply.read(1)
        return connection

    def stop(self, by=signal.SIGTERM):
        status = super().stop(by)
        self.folder.cleanup()
        return status


def children(pid):
    """The processes that a process has begun."""
    return [int(child) for task in pathlib.Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def events(data):
    """The JSON of each event of a stream; the stream must end with [DONE]."""
    blocks = data.decode().split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""], blocks[-2:]
    assert all(block.startswith("data: ") for block in blocks[:-1])
    return [json.loads(block[len("data: "):]) for block in blocks[:-2]]


def read_all(connection):
    data = b""
    while piece := connection.recv(65536):
        data += piece
    connection.close()
    return data
