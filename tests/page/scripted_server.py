"""A server of the page's files whose answers are written by a test: what no small model says, as fast or as slow as is wanted.
Standard library only."""
import contextlib
import http.server
import json
import pathlib
import socket
import threading
import time

HERE = pathlib.Path(__file__).parent
PAGE = pathlib.Path(__file__).parents[2] / "src/server/page"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".mjs": "text/javascript; charset=utf-8", ".svg": "image/svg+xml", ".json": "application/json"}
# As page.cc has it where no style stands in the document; `page_test.py` compares it with the program's.
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
          "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
ENGINE = {"models": ["scripted"], "identity": "invar-1/portable/bf16/row8.8", "weights": "0" * 64, "system_fingerprint": "invar-1/portable/bf16/row8.8-0123456789abcdef",
          "device": "none", "context": 4096, "vocabulary": 512, "max_logprobs": 20, "chat": True, "journal": False, "receipts": None, "lab": None}
PROPS = {"default_generation_settings": {"n_ctx": 4096, "params": {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0}}}


def words_of(text):
    """The text in pieces of about four letters, as tokens are."""
    return [text[i:i + 4] for i in range(0, len(text), 4)]


class Answer:
    """Sets the answer to the next request. `pieces`: deltas in their order; `pause`: seconds between two of them."""

    def __init__(self, text="", thought="", calls=(), pause=0.0, finish="stop", usage=(10, 10), error=None, logprobs=False, pieces=None):
        self.pieces = [{"reasoning_content": piece} for piece in words_of(thought)]
        self.pieces += [{"content": piece} for piece in (pieces if pieces is not None else words_of(text))]
        for i, (name, arguments) in enumerate(calls):
            self.pieces.append({"tool_calls": [{"index": i, "id": f"call-{i}", "type": "function", "function": {"name": name, "arguments": ""}}]})
            self.pieces += [{"tool_calls": [{"index": i, "function": {"arguments": piece}}]} for piece in words_of(arguments)]
        self.pause, self.finish, self.usage, self.error, self.logprobs = pause, finish, usage, error, logprobs

    def events(self):
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "scripted", "system_fingerprint": ENGINE["system_fingerprint"], "seed": 7}
        for piece in self.pieces:
            words = piece.get("content", "")
            top = [{"token": words, "logprob": -0.1}, {"token": "other", "logprob": -2.5}] * 2 + [{"token": "more", "logprob": -4.0}]
            logprobs = {"content": [{"token": words, "logprob": -0.1, "top_logprobs": top}]} if self.logprobs else None
            yield {**head, "choices": [{"index": 0, "delta": piece, "logprobs": logprobs, "finish_reason": None}]}
        yield {**head, "choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": self.finish, "logits_hash": "ab" * 32}]}
        yield {**head, "choices": [], "usage": {"prompt_tokens": self.usage[0], "completion_tokens": self.usage[1], "total_tokens": sum(self.usage)}}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), "Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        path = self.path.split("?")[0]
        self.server.asked.append(("GET", self.path, None))
        known = {"/v1/engine": self.server.engine, "/props": PROPS, "/health": b""}
        if path in known:
            return self.reply(200, known[path])
        name = "index.html" if path == "/" else path.removeprefix("/page/")
        file = HERE / "hostile.mjs" if name == "/hostile.mjs" else PAGE / name
        if "/" in name.removeprefix("/hostile.mjs") or not file.is_file():
            return self.reply(404, {"error": {"message": f"there is nothing at {path}"}})
        self.reply(200, file.read_bytes(), TYPES[file.suffix])

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(("POST", self.path, body))
        answers = self.server.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer.error:
            return self.reply(answer.error[0], {"error": answer.error[1]})
        self.send_response(200)
        for name, value in {"Content-Type": "text/event-stream", "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        try:
            begun = time.monotonic()
            for i, event in enumerate(answer.events()):
                if (wait := begun + i * answer.pause - time.monotonic()) > 0:
                    time.sleep(wait)
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            pass  # the page left


class ScriptedServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *answers, port=0, **engine):
        super().__init__(("127.0.0.1", port), Handler)
        self.connections = []
        self.answers, self.engine, self.asked = list(answers) or [Answer("Hello.")], {**ENGINE, **engine}, []
        self.port = self.server_address[1]
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def get_request(self):
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def requests(self):
        """Bodies of what was asked of the model."""
        return [body for method, path, body in self.asked if method == "POST"]

    def stop(self):
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
