#!/usr/bin/env python3
"""What usage says of the prefix cache. Usage: usage_test.py INVAR [unittest arguments]

The number is a fact of the moment and not of the answer: it is shown on every protocol, whole and streamed, it tells no key
of another one's prompts, and every life of an answer (again by its Idempotency-Key, by its id, after a kill) says the same.
"""
import concurrent.futures
import json
import re
import signal
import sys
import tempfile
import unittest

from served import Served, events

INVAR = None  # the program; set by main
BLOCK = 64
COMPLETIONS, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
KEY = {"Authorization": "Bearer a"}
OTHER = {"Authorization": "Bearer b"}


def blocks_of(tokens):
    """Tokens of a prompt that was computed before which the cache can have: whole blocks, and never the last token."""
    return (tokens - 1) // BLOCK * BLOCK


def typed_events(data):
    return [json.loads(block.split("data: ", 1)[1]) for block in data.decode().split("\n\n") if block.startswith("event: ")]


def counts_of(path, answer):
    """(tokens of the prompt, of them cached) as an answer of this protocol says it."""
    usage = answer["usage"]
    if path == MESSAGES:
        assert usage["cache_creation_input_tokens"] == 0
        return usage["input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"]
    if path == RESPONSES:
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def streamed_counts(path, data):
    """The same of a stream, whose parts must agree."""
    if path in (COMPLETIONS, CHAT):
        *others, last = events(data)
        assert not any(event["usage"] for event in others)
        return counts_of(path, last)
    all = typed_events(data)
    if path == RESPONSES:
        return counts_of(path, all[-1]["response"])
    begin, end = (next(event for event in all if event["type"] == kind) for kind in ("message_start", "message_delta"))
    assert counts_of(path, begin["message"]) == counts_of(path, end)
    return counts_of(path, end)


def body_of(path, text):
    if path in (CHAT, MESSAGES):
        return {"messages": [{"role": "user", "content": text}], "max_tokens": 3, "seed": 1}
    return {"prompt": text, "max_tokens": 3, "seed": 1} if path == COMPLETIONS else {"input": text, "max_output_tokens": 3, "seed": 1}


class Counts(unittest.TestCase):
    def test_every_protocol_says_what_was_cached(self):
        served = Served(INVAR)
        self.addCleanup(served.stop)
        for i, path in enumerate((COMPLETIONS, CHAT, RESPONSES, MESSAGES)):
            for streams in (False, True):
                with self.subTest(path=path, streams=streams):
                    body = body_of(path, f"{i}{streams} and so on " * 25)
                    if streams:
                        more = {"stream_options": {"include_usage": True}} if path in (COMPLETIONS, CHAT) else {}
                        ask = lambda: streamed_counts(path, served.stream(path, **body, **more))
                    else:
                        ask = lambda: counts_of(path, served.post(path, **body))
                    size, cached = ask()
                    self.assertEqual(cached, 0)
                    self.assertGreater(blocks_of(size), 0)
                    self.assertEqual(ask(), (size, blocks_of(size)))

    def test_a_prompt_of_several_answers_counts_once(self):
        served = Served(INVAR)
        self.addCleanup(served.stop)
        known, new = [7] * 200, [9] * 150
        served.post(COMPLETIONS, prompt=known, max_tokens=1)
        body = dict(prompt=[known, new], n=2, max_tokens=2, temperature=1, seed=1)
        self.assertEqual(counts_of(COMPLETIONS, served.post(COMPLETIONS, **body)), (350, 192))
        data = served.stream(COMPLETIONS, **body, stream_options={"include_usage": True, "continuous_usage_stats": True})
        *others, last = events(data)
        self.assertEqual(counts_of(COMPLETIONS, last), (350, 192 + 128))
        for event in others:  # when these are written some prompts may not have begun
            self.assertNotIn("prompt_tokens_details", event["usage"])

    def test_without_a_cache_it_is_none(self):
        served = Served(INVAR, "--no-enable-prefix-caching")
        self.addCleanup(served.stop)
        for _ in range(2):
            self.assertEqual(counts_of(COMPLETIONS, served.post(COMPLETIONS, prompt=[7] * 200, max_tokens=1)), (200, 0))

    def test_sglang_s_form_says_it(self):
        served = Served(INVAR)
        self.addCleanup(served.stop)
        for cached in (0, 192):
            answer = served.post("/generate", input_ids=[7] * 200, sampling_params={"max_new_tokens": 1})
            self.assertEqual(answer["meta_info"]["cached_tokens"], cached)

    def test_it_tells_no_key_of_another_one_s_prompts(self):
        for flags, seen in (((), 0), (("--share-prefixes",), 192)):  # the second is the control
            served = Served(INVAR, "--api-key", "a", "--api-key", "b", *flags)
            self.addCleanup(served.stop)
            body = dict(prompt=[7] * 200, max_tokens=1)
            for key, cached in ((KEY, 0), (KEY, 192), (OTHER, seen), (OTHER, 192)):
                status, _, answer = served.ask("POST", COMPLETIONS, body, key)
                self.assertEqual((status, counts_of(COMPLETIONS, answer)), (200, (200, cached)))


class Lives(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="invar-usage-")
        self.addCleanup(directory.cleanup)
        self.journal = f"{directory.name}/journal"
        self.serve()

    def serve(self):
        self.served = Served(INVAR, "--journal", self.journal, "--max-model-len", "4096")
        self.addCleanup(lambda served=self.served: served.process.poll() is None and served.stop())

    def kill_and_serve(self):
        self.served.process.send_signal(signal.SIGKILL)
        self.served.process.wait()
        self.serve()

    def raw(self, method, path, body=None, key=None):
        """The bytes of an answer."""
        connection = self.served.connect()
        connection.request(method, path, body and json.dumps(body), {"Idempotency-Key": key} if key else {})
        reply = connection.getresponse()
        data = reply.read()
        connection.close()
        self.assertEqual(reply.status, 200, data)
        return data

    def test_an_answer_says_always_what_it_said_first(self):
        for i, path in enumerate((COMPLETIONS, CHAT, RESPONSES, MESSAGES)):
            body = body_of(path, f"{i} and so on " * 25)
            cold, warm = self.raw("POST", path, body, f"cold {i}"), self.raw("POST", path, body, f"warm {i}")
            self.assertEqual(counts_of(path, json.loads(cold))[1], 0)
            self.assertGreater(counts_of(path, json.loads(warm))[1], 0)
            for _ in range(2):  # the cache has the prompt; then, behind a kill, it has nothing
                for name, first in (("cold", cold), ("warm", warm)):
                    self.assertEqual(self.raw("POST", path, body, f"{name} {i}"), first)
                    self.assertEqual(self.raw("GET", f"{path}/{json.loads(first)['id']}"), first)
                    streamed = self.raw("GET", f"{path}/{json.loads(first)['id']}?stream=true")
                    if path in (RESPONSES, MESSAGES):
                        self.assertEqual(streamed_counts(path, streamed), counts_of(path, json.loads(first)))
                self.kill_and_serve()

    def test_a_stream_that_a_kill_cut_off_ends_with_its_first_number(self):
        self.served.post(COMPLETIONS, prompt=[7] * 200, max_tokens=1)
        body = dict(prompt=[7] * 200, max_tokens=3000, ignore_eos=True, seed=1, stream=True, stream_options={"include_usage": True})
        connection = self.served.connect()
        connection.request("POST", COMPLETIONS, json.dumps(body), {"Idempotency-Key": "cut off"})
        begin = connection.getresponse().read(1000)
        self.kill_and_serve()
        connection.close()
        data = self.raw("POST", COMPLETIONS, body, "cut off")
        self.assertTrue(data.startswith(begin))
        self.assertEqual(streamed_counts(COMPLETIONS, data), (200, 192))
        answer = re.search(rb'"id": ?"(cmpl-[0-9a-f]+)"', data)[1].decode()
        self.assertEqual(self.raw("GET", f"{COMPLETIONS}/{answer}?stream=true"), data)

    def test_the_journal_has_each_prompt_once(self):
        self.served.post(COMPLETIONS, prompt=[7] * 200, max_tokens=1)
        body = dict(prompt=[[7] * 200, [9] * 150], n=2, max_tokens=2, temperature=1, seed=1)
        first = self.raw("POST", COMPLETIONS, body, "several")
        self.assertEqual(counts_of(COMPLETIONS, json.loads(first)), (350, 192))
        self.assertEqual(self.raw("POST", COMPLETIONS, body, "several"), first)

    def test_twins_say_the_same(self):
        self.served.post(COMPLETIONS, prompt=[7] * 200, max_tokens=1)
        body = dict(prompt=[7] * 200, max_tokens=40, ignore_eos=True, seed=1)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for i in range(8):
                answers = list(pool.map(lambda _: self.raw("POST", COMPLETIONS, body, f"twin {i}"), range(8)))
                self.assertEqual(len(set(answers)), 1)


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main()
