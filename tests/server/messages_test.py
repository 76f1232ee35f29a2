#!/usr/bin/env python3
"""Anthropic's Messages, as its clients ask. Usage: messages_test.py INVAR [unittest arguments]"""
import json
import pathlib
import sys
import tempfile
import unittest

from served import Served

INVAR = None  # the program; set by main
MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"days": {"enum": [1, 2, 3]}}, "required": ["days"]}
TOOL = {"name": "weather", "description": "What comes", "input_schema": SCHEMA}


def events_of(data):
    """(name, JSON) of each event."""
    blocks = data.decode().split("\n\n")
    assert blocks[-1] == ""
    pairs = [block.split("\ndata: ") for block in blocks[:-1]]
    said = [(name.removeprefix("event: "), json.loads(body)) for name, body in pairs]
    assert all(name == body["type"] for name, body in said)
    return said


def put_together(said):
    """The message that a client makes of a stream's events, and how many deltas of text it had."""
    message, deltas, open_block = None, 0, None
    for name, body in said:
        if name == "message_start":
            message = body["message"]
            assert message["content"] == [] and message["stop_reason"] is None
        elif name == "content_block_start":
            assert open_block is None and body["index"] == len(message["content"])
            open_block, arguments = body["content_block"], ""
            message["content"].append(open_block)
        elif name == "content_block_delta":
            delta = body["delta"]
            if delta["type"] == "text_delta":
                open_block["text"] += delta["text"]
                deltas += 1
            else:
                arguments += delta["partial_json"]
        elif name == "content_block_stop":
            if open_block["type"] == "tool_use":
                open_block["input"] = json.loads(arguments if arguments.endswith("}") else "{}")  # cut in its first value
            open_block = None
        elif name == "message_delta":
            message |= body["delta"]
            message["usage"] |= body["usage"]
    assert said[-1][0] == "message_stop" and open_block is None
    return message, deltas


def without_ids(message):
    blocks = [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]
    usage = dict(message["usage"])  # the second finds the first's blocks
    usage["input_tokens"] += usage.pop("cache_read_input_tokens")
    return {k: v for k, v in message.items() if k != "id"} | {"content": blocks, "usage": usage}


class Messages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = Served(INVAR, "--max-model-len", "2048", "--tool-call-parser", "hermes")

    @classmethod
    def tearDownClass(cls):
        assert cls.served.stop() == 0

    def both(self, **body):
        """The whole message, which the stream must say too."""
        whole = self.served.post(MESSAGES, **body)
        streamed, _ = put_together(events_of(self.served.stream(MESSAGES, **body)))
        self.assertEqual(without_ids(streamed), without_ids(whole))
        return whole

    def chat(self, **body):
        return self.served.post(CHAT, **body)["choices"][0]

    def refused(self, status, text, path=MESSAGES, kind="invalid_request_error", **body):
        found, _, answer = self.served.ask("POST", path, body)
        self.assertEqual(found, status, answer)
        self.assertEqual((set(answer), answer["type"], answer["error"]["type"]), ({"type", "error"}, "error", kind))
        self.assertIn(text, answer["error"]["message"])

    def test_text(self):
        message = self.both(model="m", messages=HI, max_tokens=20, seed=3, system="Be brief.")
        chat = self.served.post(CHAT, messages=[{"role": "system", "content": "Be brief."}, *HI], max_tokens=20, seed=3)
        self.assertEqual(message["content"], [{"type": "text", "text": chat["choices"][0]["message"]["content"]}])
        self.assertEqual((message["type"], message["role"], message["model"]), ("message", "assistant", "m"))
        self.assertEqual((message["stop_reason"], message["stop_sequence"]), ("max_tokens", None))
        self.assertEqual(message["usage"], {"input_tokens": chat["usage"]["prompt_tokens"], "output_tokens": chat["usage"]["completion_tokens"],
                                            "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0})
        self.assertNotEqual(message["content"], self.both(messages=HI, max_tokens=20, seed=4)["content"])
        _, deltas = put_together(events_of(self.served.stream(MESSAGES, messages=HI, max_tokens=20, seed=3)))
        self.assertGreater(deltas, 5)  # a delta for each token that shows text
        # Blocks say what texts say.
        blocks = [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]}]
        same = self.both(messages=blocks, max_tokens=20, seed=3, system=[{"type": "text", "text": "Be brief."}], metadata={"user_id": "x"})
        self.assertEqual(same["content"], message["content"])

    def test_a_stop_sequence(self):
        text = self.both(messages=HI, max_tokens=30, seed=2)["content"][0]["text"]
        stop = text[8:10]
        cut = self.both(messages=HI, max_tokens=30, seed=2, stop_sequences=[stop])
        self.assertEqual(cut["content"][0]["text"], text[:text.index(stop)])
        self.assertEqual((cut["stop_reason"], cut["stop_sequence"]), ("stop_sequence", stop))
        end = self.both(messages=HI, max_tokens=9, seed=2, guided_regex="ab?")
        self.assertEqual((end["stop_reason"], end["stop_sequence"]), ("end_turn", None))

    def test_the_last_message_goes_on(self):
        asked = [*HI, {"role": "assistant", "content": "Sure, the"}]
        self.assertEqual(self.both(messages=asked, max_tokens=8, seed=1)["content"][0]["text"],
                         self.chat(messages=asked, continue_final_message=True, max_tokens=8, seed=1)["message"]["content"])

    def test_tools(self):
        chat_tool = {"type": "function", "function": {"name": "weather", "description": "What comes", "parameters": SCHEMA}}
        for choice, chat_choice in (({"type": "any"}, "required"), ({"type": "tool", "name": "weather"},
                                                                    {"type": "function", "function": {"name": "weather"}})):
            message = self.both(messages=HI, tools=[TOOL], tool_choice=choice, max_tokens=100, seed=4)
            (call,) = message["content"]
            self.assertEqual((call["type"], call["name"], message["stop_reason"]), ("tool_use", "weather", "tool_use"))
            self.assertRegex(call["id"], r"^toolu_\w+$")
            chat = self.chat(messages=HI, tools=[chat_tool], tool_choice=chat_choice, max_tokens=100, seed=4)
            self.assertEqual(call["input"], json.loads(chat["message"]["tool_calls"][0]["function"]["arguments"]))
        # What the tool said goes back; the prompt is a chat's.
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "rain"}]}
        asked = [*HI, {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, call]},
                 {"role": "user", "content": [result, {"type": "text", "text": "And then?"}]}]
        again = self.both(messages=asked, tools=[TOOL], max_tokens=8, seed=1)
        chat = self.served.post(CHAT, tools=[chat_tool], max_tokens=8, seed=1, messages=[*HI, {
            "role": "assistant", "content": "Let me see.", "tool_calls": [{"id": call["id"], "type": "function", "function": {
                "name": "weather", "arguments": json.dumps(call["input"])}}]},
            {"role": "tool", "tool_call_id": call["id"], "content": "rain"}, {"role": "user", "content": "And then?"}])
        usage = again["usage"]
        self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"], chat["usage"]["prompt_tokens"])
        self.assertEqual(again["content"][0]["text"], chat["choices"][0]["message"]["content"])
        none = self.both(messages=HI, tools=[TOOL], tool_choice={"type": "none"}, max_tokens=4, seed=1)
        self.assertEqual([b["type"] for b in none["content"]], ["text"])

    def test_text_and_calls_keep_their_order(self):
        call = r'<tool_call>\{"name": "weather", "arguments": \{"days": %d\}\}</tool_call>'
        form = "first" + call % 1 + "then" + call % 2 + call % 3
        message = self.both(messages=HI, tools=[TOOL], max_tokens=300, seed=1, guided_regex=form)
        kinds = [block.get("text") or block["input"]["days"] for block in message["content"]]
        self.assertEqual(kinds, ["first", 1, "then", 2, 3])
        self.assertEqual(len({block["id"] for block in message["content"] if block["type"] == "tool_use"}), 3)
        cut = self.both(messages=HI, tools=[TOOL], tool_choice={"type": "tool", "name": "weather"}, max_tokens=3, seed=1)
        self.assertEqual(([b["type"] for b in cut["content"]], cut["stop_reason"]), (["tool_use"], "max_tokens"))
        self.assertEqual(cut["content"][0]["input"], {})  # no member is whole

    def test_a_schema(self):
        for more in ({"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
                     {"output_format": {"type": "json_schema", "schema": SCHEMA}}):
            (block,) = self.both(messages=HI, max_tokens=60, seed=1, **more)["content"]
            self.assertIn(json.loads(block["text"])["days"], (1, 2, 3))

    def test_counting_tokens(self):
        body = dict(messages=HI, system="Be brief.", tools=[TOOL])
        counted = self.served.post(MESSAGES + "/count_tokens", model="m", **body)
        self.assertEqual(counted, {"input_tokens": self.served.post(MESSAGES, max_tokens=1, **body)["usage"]["input_tokens"]})
        self.refused(400, "at least one message", path=MESSAGES + "/count_tokens", messages=[])
        self.refused(400, "at least one block", path=MESSAGES + "/count_tokens", messages=[{"role": "user", "content": []}])

    def test_what_is_refused(self):
        ask = dict(messages=HI, max_tokens=1)
        self.refused(400, "max_tokens", messages=HI)
        self.refused(404, "does not exist", kind="not_found_error", model="other", **ask)
        for more, text in (
                (dict(messages=[]), "at least one message"), (dict(messages="x"), "messages"), (dict(messages=[{}]), "role"),
                (dict(messages=[{"role": "user", "content": []}]), "at least one block"),
                (dict(messages=[*HI, {"role": "assistant", "content": "x"}, {"role": "user", "content": []}]), "at least one block"),
                (dict(messages=[{"role": "wizard", "content": "x"}]), "user, assistant or system"), (dict(messages=[{"role": "user", "content": 1}]), "content"),
                (dict(messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}]), "text or tool_result"),
                (dict(messages=[{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]), "tool_use_id"),
                (dict(messages=[*HI, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]), "results"),
                (dict(system=1), "system"), (dict(tools=[{"name": "x"}]), "input_schema"),
                (dict(tool_choice={"type": "all"}), "tool_choice"),
                (dict(tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": 1}), "disable_parallel_tool_use"),
                (dict(n=2), "one answer"), (dict(logprobs=True), "logprobs"), (dict(mcp_servers=[{}]), "mcp_servers"), (dict(temperature=-1), "temperature"),
                (dict(typical_p=0.5), "typical_p"), (dict(stop_sequences=[1]), "stop"), (dict(max_tokens="x"), "max_tokens")):
            self.refused(400, text, **{**ask, **more})
        self.assertEqual(self.served.ask("GET", MESSAGES)[2]["error"]["type"], "invalid_request_error")  # 405
        # What the parser of HTTP refuses too, as far as it has read the path.
        for request in (b"POST %s HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", b"POST %s?beta=true HTTP/1.1\r\nHost: x\r\nbad\r\n\r\n",
                        b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", b"POST %s HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 70000):
            for path, shape in ((MESSAGES, ("error", None)), ("/v1/completions", (None, None))):
                connection = self.served.raw(request % path.encode())
                reply = b"".join(iter(lambda: connection.recv(1 << 16), b""))
                connection.close()
                answer = json.loads(reply.split(b"\r\n\r\n", 1)[1])
                self.assertEqual((answer.get("type"), answer["error"].get("code")), shape, reply)
        for neutral in (dict(thinking={"type": "disabled"}), dict(n=1), dict(mcp_servers=[]), dict(tools=[]), dict(service_tier="auto")):
            self.served.post(MESSAGES, **ask, **neutral)

    def test_keys_and_deadlines(self):
        served = Served(INVAR, "--api-key", "k", "--max-model-len", "4096")
        ask = dict(messages=HI, max_tokens=2)
        for headers, status in (({"x-api-key": "k"}, 200), ({"Authorization": "Bearer k"}, 200), ({"x-api-key": "l"}, 401), ({}, 401)):
            found, _, answer = served.ask("POST", MESSAGES, ask, {**headers, "anthropic-version": "2023-06-01"})
            self.assertEqual(found, status, answer)
        self.assertEqual(answer["error"]["type"], "authentication_error")
        long = dict(messages=HI, max_tokens=4000, ignore_eos=True)
        headers = {"x-api-key": "k", "X-Request-Timeout": "0.1"}
        self.assertEqual(served.ask("POST", MESSAGES, long, headers)[2]["error"]["type"], "timeout_error")
        said = events_of(served.stream(MESSAGES, headers, **long))
        self.assertEqual((said[-1][0], said[-1][1]["error"]["type"]), ("error", "timeout_error"))
        served.stop()

    def test_the_journal_says_it_again(self):
        with tempfile.TemporaryDirectory(prefix="invar-server-") as directory:
            flags = ("--journal", str(pathlib.Path(directory) / "journal"))
            body, key = dict(messages=HI, tools=[TOOL], tool_choice={"type": "any"}, max_tokens=60), {"Idempotency-Key": "k"}
            served = Served(INVAR, *flags)
            first = served.stream(MESSAGES, key, **body)
            self.assertEqual(served.stream(MESSAGES, key, **body), first)
            self.assertNotEqual(served.stream(MESSAGES, **body), first)
            self.assertEqual(served.stop(), 0)
            served = Served(INVAR, *flags)
            message, _ = put_together(events_of(first))
            path = f"{MESSAGES}/{message['id']}"
            self.assertEqual(served.ask("GET", path + "?stream=true")[2], first)
            rest = served.ask("GET", path + "?stream=true&starting_after=1")[2]
            self.assertEqual(rest, b"\n\n".join(first.split(b"\n\n")[2:]))
            self.assertEqual(without_ids(served.ask("GET", path)[2]), without_ids(message))
            missing = served.ask("GET", MESSAGES + "/msg_0")
            self.assertEqual((missing[0], missing[2]["error"]["type"]), (404, "not_found_error"))
            self.assertEqual(served.stop(), 0)


if __name__ == "__main__":
    INVAR = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
