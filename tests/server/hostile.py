#!/usr/bin/env python3
"""Hostile requests, one sentence back for each. Usage: hostile.py INVAR [--say] [--long] [-- FLAGS]

Each must be answered with its status and one sentence, or ended as it says; a stream that is asked for again and again
beside them must have the same bytes all the time; nothing may be left. --say prints what was answered; --long waits for slow bodies, which have 30 seconds.
"""
import argparse
import json
import pathlib
import re
import select
import socket
import sys
import threading
import time

from served import Served, read_all

COMPLETIONS, CHAT, RESPONSES, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings"
DECISIONS, QUESTION = "/v1/decisions", {"type": "predicate", "question": "Is it?"}
HI = [{"role": "user", "content": "hi"}]
FLAGS = ("--api-key", "k", "--header-timeout", "2", "--timeout-keep-alive", "60", "--max-body-mib", "1")
KEY = "Authorization: Bearer k\r\n"


def completion(**fields):
    return COMPLETIONS, {"prompt": "x", "max_tokens": 1, **fields}


def chat(**fields):
    return CHAT, {"messages": HI, "max_tokens": 1, **fields}


def schema(value):
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": value}})


def nested(depth):
    value = {"type": "boolean"}
    for _ in range(depth):
        value = {"type": "object", "properties": {"a": value}, "required": ["a"]}
    return value


# Bodies that are refused with 400: (what, path, body, a word of the sentence).
def bodies():
    raw = lambda what, text, word="body": (what, COMPLETIONS, text, word)
    made = lambda what, asked, word: (what, asked[0], asked[1], word)
    yield from (raw("empty", b""), raw("blanks", b" \r\n\t"), raw("an open brace", b"{"), raw("a list", b"[]", "object"),
                raw("a number", b"1", "object"), raw("null", b"null", "object"), raw("a text", b'"x"', "object"),
                raw("NaN", b'{"prompt":"x","temperature":NaN}'), raw("Infinity", b'{"prompt":"x","temperature":Infinity}'),
                raw("1e999", b'{"prompt":"x","temperature":1e999}'), raw("a leading zero", b'{"prompt":"x","n":01}'),
                raw("a trailing comma", b'{"prompt":"x",}'), raw("single quotes", b"{'prompt':'x'}"),
                raw("a comment", b'{"prompt":"x"} // y'), raw("two values", b'{"prompt":"x"}{"prompt":"y"}'),
                raw("a byte order mark", b'\xef\xbb\xbf{"prompt":"x"'), raw("UTF-16", '{"prompt":"x"}'.encode("utf-16")),
                raw("zeros", b"\0" * 1000), raw("a raw control character", b'{"prompt":"a\nb"}'),
                raw("a lone high surrogate", b'{"prompt":"\\ud800"}'), raw("a lone low surrogate", b'{"prompt":"\\udc00x"}'),
                raw("surrogates the wrong way round", b'{"prompt":"\\udc00\\ud800"}'), raw("a lone surrogate in a key", b'{"\\ud800":1,"prompt":"x"}'),
                raw("invalid UTF-8", b'{"prompt":"\xff"}'), raw("an overlong slash", b'{"prompt":"\xc0\xaf"}'),
                raw("a surrogate in UTF-8", b'{"prompt":"\xed\xa0\x80"}'), raw("beyond Unicode", b'{"prompt":"\xf4\x90\x80\x80"}'),
                raw("half a character", b'{"prompt":"\xe2\x82"}'), raw("a bad escape", b'{"prompt":"\\x41"}'),
                raw("100000 brackets", b"[" * 100000), raw("100000 braces", b'{"a":' * 100000),
                raw("66 deep", b'{"prompt":"x","a":' + b"[" * 65 + b"]" * 65 + b"}"),
                raw("a key twice", b'{"prompt":"x","prompt":"y"}', "prompt"),
                raw("an integer of 400 digits", b'{"prompt":"x","seed":' + b"9" * 400 + b"}"))
    yield from (made("no prompt", (COMPLETIONS, {}), "prompt"), made("a prompt that is a number", completion(prompt=1), "prompt"),
                made("a prompt that is an object", completion(prompt={}), "prompt"), made("a mixed prompt", completion(prompt=["a", 1]), "prompt"),
                made("an empty list", completion(prompt=[]), "token"), made("a negative id", completion(prompt=[-1]), "token ids"),
                made("an id beyond the vocabulary", completion(prompt=[10 ** 9]), "token ids"), made("a fraction", completion(prompt=[1.5]), "token ids"),
                made("max_tokens that is a text", completion(max_tokens="3"), "max_tokens"), made("negative max_tokens", completion(max_tokens=-1), "max_tokens"),
                made("max_tokens 2**63", completion(max_tokens=2 ** 63), "max_tokens"), made("a fraction of tokens", completion(max_tokens=1.5), "max_tokens"), made("n 0", completion(n=0), "n"), made("n 10**6", completion(n=10 ** 6), "n"),
                made("n that is true", completion(n=True), "n"), made("temperature below 0", completion(temperature=-0.1), "temperature"),
                made("a hot temperature", completion(temperature=1e30), "temperature"), made("top_p 0", completion(top_p=0), "top_p"), made("top_p 1.1", completion(top_p=1.1), "top_p"),
                made("top_k -2", completion(top_k=-2), "top_k"), made("min_p 2", completion(min_p=2), "min_p"), made("a negative seed", completion(seed=-2.5), "seed"),
                made("a seed that is a text", completion(seed="1"), "seed"), made("a penalty of 5", completion(presence_penalty=5), "presence_penalty"),
                made("a repetition penalty of 0", completion(repetition_penalty=0), "repetition_penalty"), made("logprobs -1", completion(logprobs=-1), "logprobs"),
                made("logprobs 10**6", completion(logprobs=10 ** 6), "logprobs"), made("a stream that is a text", completion(stream="yes"), "stream"),
                made("stream options without a stream", completion(stream_options={}), "stream"), made("stream options that are a list", completion(stream=True, stream_options=[]), "stream_options"),
                made("a bias of no token", completion(logit_bias={"a": 1}), "logit_bias"), made("a bias beyond the vocabulary", completion(logit_bias={"999999": 1}), "logit_bias"), made("an empty stop", completion(stop=[""]), "stop"),
                made("a stop that is a number", completion(stop=3), "stop"), made("stop_token_ids that are texts", completion(stop_token_ids=["a"]), "stop_token_ids"),
                made("min_tokens above max_tokens", completion(min_tokens=9), "min_tokens"), made("tokens as ids", completion(return_tokens_as_token_ids=3), "return_tokens_as_token_ids"), made("a suffix", completion(suffix="x"), "suffix"),
                made("best_of", completion(best_of=3), "best_of"), made("a model that is a number", completion(model=1), "model"),
                made("a prompt that does not fit", completion(prompt="many words " * 2000), "tokens"), made("ids that do not fit", completion(prompt=[1] * 5000), "tokens"),
                made("a salt that is a number", completion(cache_salt=1), "cache_salt"), made("a priority that is a text", completion(priority="1"), "priority"))
    yield from (made("a bomb of repetitions", completion(guided_regex="(((a{1,99}){1,99}){1,99}){1,99}"), ""), made("a regex of 10**9", completion(guided_regex="a{1000000000}"), ""),
                made("an open group", completion(guided_regex="(" * 5000), ""), made("deep groups", completion(guided_regex="(" * 5000 + "a" + ")" * 5000), ""),
                made("a back reference", completion(guided_regex="(a)\\1"), ""), made("a look-ahead", completion(guided_regex="(?=a)b"), ""),
                made("a regex that is a list", completion(guided_regex=["a"]), "regex"),
                made("an empty choice", completion(guided_choice=[]), "choose"), made("choices that are numbers", completion(guided_choice=[1]), "choose"),
                made("two forms", completion(guided_regex="a", guided_choice=["a"]), ""))
    yield from (made("a schema of no type", schema({"type": "nonsense"}), ""), made("a schema that is a list", schema([]), "schema"), made("a schema that calls itself", schema({"$ref": "#"}), ""),
                made("a schema of a far address", schema({"$ref": "https://example.com/a.json"}), ""), made("a schema of a file", schema({"$ref": "file:///etc/passwd"}), ""),
                made("100 definitions that double", schema({"$ref": "#/$defs/a0", "$defs": {f"a{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/a{i + 1}"}] * 2,
                     "minItems": 2, "maxItems": 2, "items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(100)}}), ""),
                made("a list of 10**9", schema({"type": "array", "items": {"type": "boolean"}, "minItems": 10 ** 9}), ""), made("a text of 10**9", schema({"type": "string", "minLength": 10 ** 9}), ""),
                made("an impossible list", schema({"type": "array", "minItems": 3, "maxItems": 1, "items": {"type": "null"}}), ""), made("an empty enum", schema({"enum": []}), "enum"),
                made("a schema that is too deep", schema(nested(40)), ""), made("a pattern bomb", schema({"type": "string", "pattern": "^(((a{1,99}){1,99}){1,99})$"}), ""),
                made("a required that is a text", schema({"type": "object", "properties": {}, "required": "a"}), "required"), made("no schema", chat(response_format={"type": "json_schema"}), "json_schema"),
                made("an unknown form", chat(response_format={"type": "xml"}), "response_format"))
    yield from (made("no messages", (CHAT, {}), "messages"), made("no message", chat(messages=[]), "message"), made("messages that are a text", chat(messages="x"), "messages"),
                made("a message without a role", chat(messages=[{}]), "role"), made("a role that is a number", chat(messages=[{"role": 1}]), "role"),
                made("content that is a number", chat(messages=[{"role": "user", "content": 1}]), "content"), made("an image", chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), ""),
                made("a tool without a name", chat(tools=[{}]), "tool"), made("tools that are a text", chat(tools="x"), "tools"), made("a tool that is not there", chat(
                    tools=[{"type": "function", "function": {"name": "f"}}], tool_choice={"type": "function", "function": {"name": "g"}}), "no tool"),
                made("a choice without tools", chat(tool_choice="required"), "tools"), made("top_logprobs without logprobs", chat(top_logprobs=3), "logprobs"),
                ("no input", RESPONSES, {}, "input"), ("an input that is a number", RESPONSES, {"input": 3}, "input"), ("one that goes on behind", RESPONSES, {"input": "x", "background": True}, "background"), ("an earlier response", RESPONSES, {"input": "x", "previous_response_id": "y"}, "previous_response_id"),
                ("no text", EMBEDDINGS, {"input": []}, "input"), ("an empty text", EMBEDDINGS, {"input": ""}, ""), ("a text that does not fit", EMBEDDINGS, {"input": "word " * 3000}, "tokens"),
                ("a form of numbers", EMBEDDINGS, {"input": "x", "encoding_format": "hex"}, "encoding_format"), ("texts that are objects", EMBEDDINGS, {"input": [{}]}, "prompt"),
                ("no questions", DECISIONS, {"input": "x"}, "questions"), ("questions that are texts", DECISIONS, {"input": "x", "questions": ["y"]}, "objects"),
                ("an input that is an object", DECISIONS, {"input": {}, "questions": [QUESTION]}, "input"), ("a question without words", DECISIONS, {"input": "x", "questions": [{"type": "predicate"}]}, "question"),
                ("choices that are numbers", DECISIONS, {"input": "x", "questions": [{**QUESTION, "type": "choice", "choices": [1, 2]}]}, "choices"),
                ("levels that are negative", DECISIONS, {"input": "x", "questions": [{**QUESTION, "type": "score", "levels": -1}]}, "levels"),
                ("more levels than a number has", DECISIONS, {"input": "x", "questions": [{**QUESTION, "type": "score", "levels": 10 ** 30}]}, "levels"),
                ("messages that are numbers", DECISIONS, {"input": [1], "questions": [QUESTION]}, ""), ("an input that does not fit", DECISIONS, {"input": "word " * 3000, "questions": [QUESTION]}, ""),
                ("no documents", "/v1/rerank", {"query": "x"}, "documents"), ("documents that are lists", "/v1/rerank", {"query": "x", "documents": [[]]}, "documents"),
                ("documents without a text", "/v1/rerank", {"query": "x", "documents": [{}]}, "text"), ("a query of an object", "/v1/rerank", {"query": {}, "documents": ["x"]}, "text"),
                ("a document that does not fit", "/v1/rerank", {"query": "x", "documents": ["word " * 3000]}, ""), ("no texts", "/v1/score", {}, "text_1"),
                ("lists of two lengths", "/v1/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1"),
                ("nothing to count", RESPONSES + "/input_tokens", {}, "input"), ("calls without a name", COMPLETIONS, {"prompt": "x", "structured_outputs": {"calls": {
                    "open": "<a>", "close": "b", "once": True, "call": {}, "forms": [{}]}}}, ""),
                ("calls between nothing", COMPLETIONS, {"prompt": "x", "structured_outputs": {"calls": {"open": "", "close": "", "once": False, "call": {}, "forms": [{}]}}}, "name"),
                ("calls by numbers", COMPLETIONS, {"prompt": "x", "structured_outputs": {"calls": {"open": "<a>", "close": "b", "once": True, "call": {}, "named": [{"name": 1, "arguments": 2}], "words": [3]}}}, ""),
                ("negative ids", "/detokenize", {"tokens": [-1]}, "token"), ("ids that are texts", "/detokenize", {"tokens": ["a"]}, "token"), ("nothing to tokenize", "/tokenize", {}, "prompt"))


def head(more="", line=f"POST {COMPLETIONS} HTTP/1.1", host="Host: x\r\n"):
    return f"{line}\r\n{host}{KEY}Connection: close\r\n{more}".encode()


# Bytes of a connection: (what, bytes, status). What is behind them must not be taken for another request.
def connections():
    body = '{"prompt":"x","max_tokens":1}'
    size, chunked = len(body), f"{len(body):x}\r\n{body}\r\n0\r\n\r\n"
    behind = "GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    for what, more, status in (
            ("length and chunks", f"Content-Length: {size}\r\nTransfer-Encoding: chunked\r\n\r\n{chunked}{behind}", 400),
            ("chunks and length", f"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n{chunked}{behind}", 400),
            ("two lengths", f"Content-Length: {size}\r\nContent-Length: 0\r\n\r\n{body}{behind}", 400),
            ("the same length twice", f"Content-Length: {size}\r\nContent-Length: {size}\r\n\r\n{body}", 400),
            ("a list of lengths", f"Content-Length: {size}, {size}\r\n\r\n{body}", 400),
            ("a signed length", f"Content-Length: +{size}\r\n\r\n{body}", 400), ("a negative length", "Content-Length: -1\r\n\r\n", 400),
            ("a hexadecimal length", "Content-Length: 0x1d\r\n\r\n" + body, 400), ("an empty length", f"Content-Length: \r\n\r\n{body}", 400),
            ("a length of 26 digits", "Content-Length: 99999999999999999999999999\r\n\r\n", (400, 413)),
            ("a length beyond the limit", "Content-Length: 99999999999\r\n\r\n", 413),
            ("a blank before the colon", f"Content-Length : {size}\r\n\r\n{body}", 400),
            ("encoded twice", f"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n{chunked}", 400),
            ("identity", f"Transfer-Encoding: identity\r\n\r\n{body}", (400, 501)), ("gzip and chunks", f"Transfer-Encoding: gzip, chunked\r\n\r\n{chunked}", (400, 501)),
            ("chunks that are not last", f"Transfer-Encoding: chunked, identity\r\n\r\n{chunked}", (400, 501)), ("xchunked", f"Transfer-Encoding: xchunked\r\n\r\n{chunked}", (400, 501)),
            ("chunks by a tab", f"Transfer-Encoding:\x0bchunked\r\n\r\n{chunked}", (400, 501)), ("a chunk of no size", "Transfer-Encoding: chunked\r\n\r\n\r\n", 400),
            ("a chunk of letters", "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400), ("a chunk beyond 64 bits", "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nx\r\n", (400, 413)),
            ("a chunk beyond the limit", "Transfer-Encoding: chunked\r\n\r\nfffffff\r\nx", 413), ("a negative chunk", "Transfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n", 400),
            ("fields behind the chunks", f"Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n{body}\r\n0\r\nHost: b\r\n\r\n", 400),
            ("a chunk longer than it says", f"Transfer-Encoding: chunked\r\n\r\n1\r\n{body}\r\n0\r\n\r\n", 400),
            ("a folded line", "A: b\r\n c: d\r\n\r\n", 400), ("a folded length", f"Content-Length:\r\n {size}\r\n\r\n{body}", 400),
            ("a folded first line", " A: b\r\n\r\n", 400), ("a line without a colon", "A\r\n\r\n", 400), ("a zero in a name", "A\0: b\r\n\r\n", 400),
            ("a zero in a value", "A: b\0c\r\n\r\n", 400), ("a bare carriage return", "A: b\rc: d\r\n\r\n", 400), ("a name with blanks", "A b: c\r\n\r\n", 400),
            ("no name", ": b\r\n\r\n", 400), ("another host", f"Host: y\r\nContent-Length: {size}\r\n\r\n{body}", 400),
            ("300 lines", "A: b\r\n" * 300 + "\r\n", 431), ("a line of 70000", "A: " + "b" * 70000 + "\r\n\r\n", 431)):
        yield what, head(more), status
    yield "lines that end with a newline alone", f"POST {COMPLETIONS} HTTP/1.1\nHost: x\n{KEY.strip()}\nContent-Length: {size}\n\n{body}".encode(), 400
    yield "one line that ends with a newline alone", head(f"A: b\nContent-Length: {size}\r\n\r\n{body}"), 400
    for what, line, status in (
            ("HTTP/0.9", "GET /health", 400), ("HTTP/2.0", "GET /health HTTP/2.0", (400, 505)), ("HTTP/1.1x", "GET /health HTTP/1.1x", (400, 505)), ("two blanks", "GET  /health HTTP/1.1", 400),
            ("a tab", "GET\t/health\tHTTP/1.1", 400), ("a whole address", "GET http://other/health HTTP/1.1", 400), ("a star", "GET * HTTP/1.1", 400), ("no slash", "GET health HTTP/1.1", 400),
            ("CONNECT", "CONNECT example.com:443 HTTP/1.1", (400, 404, 405)), ("TRACE", "TRACE /health HTTP/1.1", 405), ("a made-up method", "FROB /health HTTP/1.1", (400, 405)),
            ("a small method", "get /health HTTP/1.1", (400, 405)), ("an address of 70000", "GET /" + "a" * 70000 + " HTTP/1.1", (414, 431)),
            ("a raw control character", "GET /\x01 HTTP/1.1", 400), ("dots", "GET /../../etc/passwd HTTP/1.1", 404), ("encoded dots", "GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1", 404),
            ("dots of an answer", "GET /v1/completions/../../etc/passwd HTTP/1.1", 404), ("a zero in an address", "GET /health%00 HTTP/1.1", 404),
            ("two slashes", "GET //health HTTP/1.1", 404), ("an id of a path", "GET /v1/responses/..%2f..%2fetc%2fpasswd HTTP/1.1", 404), ("backslashes", "GET /..\\..\\x HTTP/1.1", (400, 404))):
        yield what, head("\r\n", line), status
    yield "no host", head("\r\n", "GET /health HTTP/1.1", ""), 400
    yield "TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * 500 + b"\r\n\r\n", 400
    yield "HTTP/2's preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 505)
    for what, key in (("no key", ""), ("another key", "Authorization: Bearer l\r\n"), ("a longer key", "Authorization: Bearer kk\r\n"), ("an empty key", "Authorization: Bearer \r\n"),
                      ("a basic key", "Authorization: Basic aw==\r\n")):
        yield what, f"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{key}\r\n".encode(), 401


class Hostile:
    def __init__(self, served, say, long):
        self.served, self.say, self.long, self.count, self.faults = served, say, long, 0, []
        self.over, self.streams = threading.Event(), []

    def stream(self, seed=1):
        """What a well-behaved client gets beside all that; all but its id and time must stay."""
        data = self.served.stream(COMPLETIONS, {"Authorization": "Bearer k"}, prompt="well behaved", max_tokens=120, seed=seed, temperature=0.8, n=2, logprobs=1)
        return re.sub(rb'"id": "[^"]*"|"created": \d+', b"", data)

    def behave(self):
        while not self.over.is_set():
            try:
                self.streams.append(self.stream())
            except Exception as error:
                self.faults.append(f"the stream beside: {error!r}")

    def judge(self, what, data, statuses, word=""):
        """One whole answer with one of the statuses and one sentence with `word`; nothing behind it."""
        self.count += 1
        top, _, body = data.partition(b"\r\n\r\n")
        found = re.match(rb"HTTP/1\.1 (\d+) ", top)
        sentence = ""
        try:
            sentence = json.loads(body)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            pass
        if self.say:
            print(f"{what}: {found and int(found[1])} {sentence[:230]}")
        statuses = statuses if isinstance(statuses, tuple) else (statuses,)
        if not found or int(found[1]) not in statuses or not sentence or "\n" in sentence or len(sentence) > 600 or word not in sentence:
            self.faults.append(f"{what}: wanted {statuses} and \"{word}\", found {data[:20]!r} \"{sentence[:300]}\"")

    def judge_field(self, what, data, body):
        """The error says in which field of the body it is, or which one the body lacks."""
        try:
            error = json.loads(data.partition(b"\r\n\r\n")[2])["error"]
        except (ValueError, KeyError, TypeError):
            error = {}
        if error.get("message", "").startswith("the body of the request:"):  # it is no JSON
            return
        is_missing = error.get("code") == "missing_required_parameter"
        if not error.get("param") or not error.get("code") or (error["param"].split("[")[0] in body) == is_missing:
            self.faults.append(f"{what}: param {error.get('param')}, code {error.get('code')}: {error.get('message')}")

    def send(self, data):
        connection = self.served.raw()
        try:
            connection.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has been answered already
        return read_all(connection)

    def run(self):
        for what, path, body, word in bodies():
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            answer = self.send(head(f"Content-Length: {len(data)}\r\n\r\n", f"POST {path} HTTP/1.1") + data)
            self.judge(what, answer, 400, word)
            if isinstance(body, dict):
                self.judge_field(what, answer, body)
        for what, data, status in connections():
            self.judge(what, self.send(data), status)
        for what, model in (("an unknown model", "gpt-4"), ("a path for a model", "../../etc/passwd"), ("a model of 100000", "m" * 100000)):
            body = json.dumps({"model": model, "prompt": "x"}).encode()
            self.judge(what, self.send(head(f"Content-Length: {len(body)}\r\n\r\n") + body), 404, "does not exist")
        self.large()
        self.answered()
        self.slow()

    def large(self):
        for what, more in (("a body beyond the limit", "Content-Length: 2000000\r\n\r\n"), ("chunks beyond the limit", "Transfer-Encoding: chunked\r\n\r\n1e8480\r\n")):
            self.judge(what, self.send(head(more) + b"x" * 2000000), 413)
        keys = json.dumps({f"key{i}": i for i in range(50000)} | {"prompt": "x", "max_tokens": 1}).encode()
        answered = self.send(head(f"Content-Length: {len(keys)}\r\n\r\n") + keys)
        self.count += 1
        if not answered.startswith(b"HTTP/1.1 400 ") or b"1024 fields" not in answered:
            self.faults.append(f"many keys: {answered[:300]}")

    def answered(self):
        """What looks like a bomb and is none, or goes off alone: an answer or one sentence."""
        for what, body in (("exponential alternatives", {"guided_regex": "(a|b)*a" + "(a|b)" * 60}), ("a long way to nothing", {"guided_regex": "(a?){900}a{900}"}),
                           ("many stops", {"stop": [f"{i}" for i in range(5000)]}), ("biases for all", {"logit_bias": {f"{i}": -100 for i in range(512)}})):
            body = json.dumps({"prompt": "x", "max_tokens": 100, "seed": 1, **body}).encode()
            data = self.send(head(f"Content-Length: {len(body)}\r\n\r\n") + body)
            self.count += 1
            if self.say:
                print(f"{what}: {data[:12]!r} {data[-300:]!r}")
            if not re.match(rb"HTTP/1\.1 (200|4\d\d|500) ", data):
                self.faults.append(f"{what}: {data[:300]!r}")

    def slow(self):
        """Slow, half closed and silent connections: many at a time."""
        self.served.patience = 90
        body = b'{"prompt":"x","max_tokens":400,"ignore_eos":true}'
        slow = [self.served.raw(head()[:40 + i]) for i in range(40)]
        bodies = [self.served.raw(head(f"Content-Length: {len(body)}\r\n\r\n") + body[:i]) for i in range(20 if self.long else 0)]
        dripping, end = self.served.raw(), time.monotonic() + 20
        for byte in head("A: b\r\n" * 100):  # a byte at a time does not give more time
            try:
                dripping.sendall(bytes([byte]))
            except OSError:
                break
            if time.monotonic() > end or select.select([dripping], [], [], 0)[0]:
                break
            time.sleep(0.05)
        half = [self.served.raw(head(f"Content-Length: {len(body)}\r\n\r\n") + body[:i % len(body)]) for i in range(40)]
        for connection in half:
            connection.shutdown(socket.SHUT_WR)
        for what, all_ in (("slow headers", slow), ("slow bodies", bodies), ("a dripping header", [dripping])):
            for connection in all_:
                self.judge(what, read_all(connection), 408)
        for connection in half:
            self.count += 1
            data = read_all(connection)
            if data and not re.match(rb"HTTP/1\.1 4\d\d ", data):
                self.faults.append(f"half closed: {data[:200]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("invar")
    parser.add_argument("--say", action="store_true")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("flags", nargs="*", help="of the server, behind --")
    asked = parser.parse_args()
    served = Served(str(pathlib.Path(asked.invar).resolve()), *FLAGS, *asked.flags)
    hostile = Hostile(served, asked.say, asked.long)
    alone = hostile.stream()
    beside = threading.Thread(target=hostile.behave)
    beside.start()
    try:
        hostile.run()
    finally:
        hostile.over.set()
        beside.join()
    faults = hostile.faults + ["a stream beside was another one"] * (set(hostile.streams) != {alone})
    faults += ["another seed gave the same stream"] * (re.sub(rb'"seed": 2', b'"seed": 1', hostile.stream(2)) == alone)  # the control
    served.wait_until(lambda: served.metric("vllm:num_requests_running") == 0)
    blocks, free = served.metric("invar:kv_blocks"), served.metric("invar:kv_blocks_free")
    faults += [f"{free:.0f} of {blocks:.0f} blocks came back"] * (blocks != free)
    ended = served.stop()
    faults += [f"it ended with {ended}"] * (ended != 0)
    print(f"{hostile.count} hostile requests, {len(hostile.streams)} streams beside them, {len(set(hostile.streams) | {alone})} unique; {len(faults)} faults")
    print("\n".join(faults[:60]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
