#!/usr/bin/env python3
"""/v1/responses in the background, cut to what fits, and counted. Usage: responses_test.py INVAR [unittest arguments]"""
import json
import pathlib
import re
import signal
import sys
import tempfile
import time
import unittest

from served import Endless, Served

INVAR = None  # the program; set by main
PATH = "/v1/responses"
ANSWER = dict(input="Tell me", max_output_tokens=12, seed=5, temperature=1.0)


def turns(count):
    """Items of a conversation with a developer's words in its middle."""
    items = [{"role": "system", "content": "Be kind."}]
    for i in range(count):
        items += [{"role": "user", "content": f"word {i} " * 4}, {"role": "assistant", "content": f"answer {i} " * 4}]
        items += [{"role": "developer", "content": "Be brief."}] if i == 2 else []
    return items + [{"role": "user", "content": "and now?"}]


def text(response):
    return response["output"][0]["content"][0]["text"]


class Background(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="invar-background-")
        self.addCleanup(folder.cleanup)
        self.journal = ("--journal", str(pathlib.Path(folder.name, "journal")))

    def poll(self, served, name):
        """The response when it is over."""
        end = time.monotonic() + 60
        while True:
            status, _, told = served.ask("GET", f"{PATH}/{name}")
            self.assertEqual(status, 200, told)
            if told["status"] not in ("queued", "in_progress"):
                return told
            self.assertTrue(told["background"])
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def test_it_is_the_answer_that_a_client_would_have_waited_for(self):
        served = Served(INVAR, *self.journal)
        waited = served.post(PATH, **ANSWER)
        queued = served.post(PATH, **ANSWER, background=True)
        self.assertEqual((queued["status"], queued["output"]), ("queued", []))
        told = self.poll(served, queued["id"])
        self.assertEqual((told["status"], told["background"]), (waited["status"], True))
        self.assertEqual(text(told), text(waited))
        self.assertNotEqual(text(told), text(served.post(PATH, **{**ANSWER, "seed": 6})), "the control: another seed")
        goes_on = served.post(PATH, input="go on", previous_response_id=queued["id"], max_output_tokens=2)
        self.assertGreater(goes_on["usage"]["input_tokens"], waited["usage"]["input_tokens"])
        status, _, whole = served.ask("POST", f"{PATH}/{queued['id']}/cancel")
        self.assertEqual((status, whole["status"], text(whole)), (200, waited["status"], text(waited)))
        for name, code in ((waited["id"], 400), ("resp_0", 404)):
            self.assertEqual(served.ask("POST", f"{PATH}/{name}/cancel")[0], code)
        for more, word in ((dict(store=False), "store"), ({"background": 1}, "background")):
            status, _, answer = served.ask("POST", PATH, {**ANSWER, "background": True, **more})
            self.assertEqual(status, 400)
            self.assertIn(word, answer["error"]["message"])
        self.assertEqual(served.stop(), 0)
        alone = Served(INVAR)
        status, _, answer = alone.ask("POST", PATH, {**ANSWER, "background": True})
        self.assertEqual((status, answer["error"]["param"]), (400, "background"))
        self.assertIn("--journal", answer["error"]["message"])
        self.assertEqual(alone.stop(), 0)

    def test_items_are_named_by_their_ids(self):
        """As Vercel's AI SDK sends what it was answered."""
        call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
        tools = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}]
        served = Served(INVAR, *self.journal, "--tool-call-parser", "hermes", "--max-model-len", "2048")
        first = served.post(PATH, input="Hi", tools=tools, max_output_tokens=200, structured_outputs={"choice": ["Well.\n" + call]})
        self.assertEqual([item["type"] for item in first["output"]], ["message", "function_call"])
        hi, result = {"role": "user", "content": "Hi"}, {"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "ok"}
        names = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        asked = dict(tools=tools, max_output_tokens=8, seed=3)
        named = served.post(PATH, input=[hi, *names, result], **asked)
        sent = served.post(PATH, input=[hi, *first["output"], result], **asked)
        self.assertEqual((named["output"][0]["content"], named["usage"]["input_tokens"]), (sent["output"][0]["content"], sent["usage"]["input_tokens"]))
        counted = served.post(f"{PATH}/input_tokens", input=[hi, *names, result], tools=tools)
        self.assertEqual(counted["input_tokens"], named["usage"]["input_tokens"])
        shown = [served.post(f"{PATH}/render", input=[hi, *items, result], **asked) for items in (names, first["output"])]
        self.assertEqual(*(one["prompt"] for one in shown))
        self.assertEqual(shown[0]["count"], named["usage"]["input_tokens"])
        shown = served.post(f"{PATH}/render", previous_response_id=first["id"], input=[result], **asked)
        self.assertEqual(shown["count"], named["usage"]["input_tokens"])
        without = served.post(PATH, input=[hi, result], **asked)
        self.assertNotEqual(without["usage"]["input_tokens"], sent["usage"]["input_tokens"], "the control: without them")
        _, _, kept = served.ask("GET", f"{PATH}/{named['id']}/input_items")
        self.assertEqual([item.get("type") for item in kept["data"]], [None, "message", "function_call", "function_call_output"])
        for name in ({"id": "msg_0"}, {"id": names[0]["id"] + "_7"}, {}, {"id": 3}):
            status, _, answer = served.ask("POST", PATH, dict(input=[hi, {"type": "item_reference", **name}]))
            self.assertEqual((status, answer["error"]["param"]), (400, "input"), answer)
        # Copies are counted as they are made.
        many = 1 + (4 << 20) // len(json.dumps(first["output"][0], separators=(",", ":")))
        status, _, answer = served.ask("POST", PATH, dict(input=[hi, *[names[0]] * many], store=False))
        self.assertEqual((status, "of at most 4194304 bytes" in answer["error"]["message"]), (400, True), answer)
        self.assertEqual(served.stop(), 0)
        alone = Served(INVAR)
        status, _, answer = alone.ask("POST", PATH, dict(input=[hi, *names, result]))
        self.assertEqual((status, "--journal" in answer["error"]["message"]), (400, True), answer)
        self.assertEqual(alone.stop(), 0)

    def test_one_that_is_cancelled_ends(self):
        served = Endless(INVAR, *self.journal)
        self.addCleanup(served.stop)
        queued = served.post(PATH, input="x", max_output_tokens=49000, ignore_eos=True, background=True)
        served.wait_until(lambda: served.metric("vllm:num_requests_running") == 1)
        self.assertEqual(served.ask("GET", f"{PATH}/{queued['id']}")[2]["status"], "in_progress")
        status, _, told = served.ask("POST", f"{PATH}/{queued['id']}/cancel")
        self.assertEqual((status, told["status"]), (200, "cancelled"))
        self.assertEqual(served.ask("GET", f"{PATH}/{queued['id']}")[2]["status"], "cancelled")
        served.wait_until(lambda: served.metric("vllm:num_requests_running") == 0)

    def begin_stream(self, served, **body):
        """The connection and what has come, once there is an event with the response's name."""
        connection = served.connect()
        connection.request("POST", PATH, json.dumps({**body, "background": True, "stream": True}), {"Content-Type": "application/json"})
        answer, came = connection.getresponse(), b""
        self.assertEqual(answer.status, 200)
        while b"output_text.delta" not in came:
            came += answer.read1(4096)
        return connection, came, re.search(rb'"id": ?"(resp[^"]*)"', came)[1].decode()

    def rest(self, served, name, events):
        status, _, data = served.ask("GET", f"{PATH}/{name}?stream=true&starting_after={events - 1}")
        self.assertEqual(status, 200, data)
        return data

    def test_its_stream_goes_on_without_its_client(self):
        served, asked = Served(INVAR, *self.journal), {**ANSWER, "max_output_tokens": 300, "ignore_eos": True}
        waited = served.post(PATH, **asked)
        connection, came, name = self.begin_stream(served, **asked)
        connection.close()
        self.assertEqual(text(self.poll(served, name)), text(waited))
        whole = self.rest(served, name, 0)
        self.assertTrue(whole.startswith(came[:came.rindex(b"\n\n") + 2]), "what the client had is how the stream begins")
        had = came.count(b"\n\n")
        self.assertEqual(whole.split(b"\n\n", had)[had], self.rest(served, name, had))
        gone = served.connect()  # the control: a stream that is not in the background ends with its client
        gone.request("POST", PATH, json.dumps({**asked, "max_output_tokens": 400, "stream": True}), {"Content-Type": "application/json"})
        gone.getresponse().read1(200)
        gone.close()
        served.wait_until(lambda: served.metric("vllm:num_requests_running") == 0)
        self.assertEqual(served.stop(), 0)

    def test_its_stream_is_read_by_several_and_cancelled(self):
        served = Endless(INVAR, *self.journal)
        self.addCleanup(served.stop)
        connection, came, name = self.begin_stream(served, input="x", max_output_tokens=49000, ignore_eos=True)
        other = served.connect()
        other.request("GET", f"{PATH}/{name}?stream=true&starting_after=0")
        answer, also = other.getresponse(), b""
        while len(also) < len(came):
            also += answer.read1(4096)
        begin = came.split(b"\n\n", 1)[1]
        self.assertTrue(also.startswith(begin[:begin.rindex(b"\n\n")]))
        self.assertEqual(served.ask("GET", f"{PATH}/{name}")[2]["status"], "in_progress")
        self.assertEqual(served.ask("POST", f"{PATH}/{name}/cancel")[2]["status"], "cancelled")
        while answer.read1(65536):  # ends
            pass
        other.close()
        served.wait_until(lambda: served.metric("vllm:num_requests_running") == 0)
        connection.close()

    def test_a_crash_loses_none(self):
        served = Served(INVAR, *self.journal)
        waited = served.post(PATH, **{**ANSWER, "max_output_tokens": 300}, ignore_eos=True)
        queued = served.post(PATH, **{**ANSWER, "max_output_tokens": 300}, ignore_eos=True, background=True)
        connection, came, name = self.begin_stream(served, **{**ANSWER, "max_output_tokens": 300}, ignore_eos=True)
        served.stop(signal.SIGKILL)
        connection.close()
        served = Served(INVAR, *self.journal)
        self.assertEqual(text(self.poll(served, queued["id"])), text(waited))
        self.assertTrue(self.rest(served, name, 0).startswith(came[:came.rindex(b"\n\n")]))
        self.assertEqual(text(self.poll(served, name)), text(waited))
        self.assertEqual(served.stop(), 0)


class Truncation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = Served(INVAR)

    @classmethod
    def tearDownClass(cls):
        assert cls.served.stop() == 0

    def test_the_oldest_turns_are_left_out(self):
        items, more = turns(30), dict(max_output_tokens=20, seed=3)
        status, _, answer = self.served.ask("POST", PATH, dict(input=items, **more))
        self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"), "the control: they do not fit")
        status, headers, told = self.served.ask("POST", PATH, dict(input=items, truncation="auto", **more))
        self.assertEqual(status, 200, told)
        left_out = int(re.search(r"the (\d+) oldest turns are left out", headers["X-Invar-Warning"])[1])
        users = [i for i, item in enumerate(items) if item["role"] == "user"]

        def without(count):
            return [item for i, item in enumerate(items) if i >= users[count] or item["role"] in ("system", "developer")]

        rest = self.served.post(PATH, input=without(left_out), **more)
        self.assertEqual((text(told), told["usage"]["input_tokens"]), (text(rest), rest["usage"]["input_tokens"]))
        self.assertLessEqual(told["usage"]["input_tokens"], 512 - 20)
        counted = self.served.post(f"{PATH}/input_tokens", input=without(left_out - 1))["input_tokens"]
        self.assertGreater(counted, 512 - 20, "one turn more does not fit")

    def test_what_fits_stays_whole(self):
        asked = dict(input=turns(3), max_output_tokens=8, seed=3)
        status, headers, told = self.served.ask("POST", PATH, {**asked, "truncation": "auto"})
        self.assertEqual((status, headers["X-Invar-Warning"]), (200, None))
        self.assertEqual(told["usage"]["input_tokens"], self.served.post(PATH, **asked)["usage"]["input_tokens"])

    def test_a_last_turn_that_does_not_fit_is_an_error(self):
        for value, code in (("auto", "context_length_exceeded"), ("some", "invalid_value")):
            status, _, answer = self.served.ask("POST", PATH, dict(input=[{"role": "user", "content": "word " * 600}], truncation=value))
            self.assertEqual((status, answer["error"]["code"]), (400, code), answer)

    def test_tokens_of_an_input(self):
        for body in (dict(input="Hi"), dict(input=turns(2), instructions="Be kind."), dict(input="Hi", tools=[
                {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}])):
            told = self.served.post(f"{PATH}/input_tokens", **body)
            self.assertEqual(told, {"object": "response.input_tokens", "input_tokens": self.served.post(PATH, max_output_tokens=1, **body)["usage"]["input_tokens"]})
        for body in ({}, {"input": 3}, []):
            self.assertEqual(self.served.ask("POST", f"{PATH}/input_tokens", body)[0], 400)


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main(verbosity=2)
