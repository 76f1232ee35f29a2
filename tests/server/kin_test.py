#!/usr/bin/env python3
"""Kin of requests that people reported of other engines, each with what must not happen to its neighbour.
Usage: kin_test.py INVAR [unittest arguments]"""
import json
import pathlib
import sys
import unittest

from served import FAST, Served

INVAR = None  # the program; set by main
STORY = pathlib.Path(__file__).resolve().parents[2] / "models/story"
HI = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}


class Kin(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = Served(INVAR, command=[INVAR, "serve", STORY, "--host", "127.0.0.1", "--port", "0", *FAST])

    @classmethod
    def tearDownClass(cls):
        assert cls.served.stop() == 0

    def ask(self, path, status=200, **body):
        found, _, answer = self.served.ask("POST", path, body)
        self.assertEqual(found, status, answer)
        return answer

    def chat(self, status=200, **body):
        return self.ask("/v1/chat/completions", status, messages=[HI], **{"max_tokens": 40, "seed": 2, **body})

    def held(self, schema, **body):
        return json.loads(self.chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, **body)
                          ["choices"][0]["message"]["content"])

    def test_a_users_message_has_words(self):
        for empty in ("", [{"type": "text", "text": ""}], [{"type": "text", "text": "", "cache_control": {"type": "ephemeral"}}]):
            for path in ("/v1/messages", "/v1/messages/count_tokens"):
                answer = self.ask(path, 400, max_tokens=2, messages=[{"role": "user", "content": empty}])
                self.assertIn("expected words", answer["error"]["message"])
        for said in ("x", [{"type": "text", "text": ""}, {"type": "text", "text": "x"}]):
            self.ask("/v1/messages", max_tokens=2, messages=[{"role": "user", "content": said}])

    def test_words_that_are_no_text_are_shown(self):
        found = {"type": "search_result", "source": "https://a", "title": "Foxes", "content": [{"type": "text", "text": "They run."}]}
        result = {"type": "tool_result", "tool_use_id": "t", "content": [found]}
        for user in ([found, {"type": "text", "text": "Why?"}], [result]):
            calls = [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}] if user == [result] else []
            prompt = self.ask("/v1/messages/render", max_tokens=1, messages=[HI, *calls, {"role": "user", "content": user}])["prompt"]
            self.assertIn("Foxes\nhttps://a\nThey run.", prompt)
        self.ask("/v1/messages", 400, max_tokens=1, messages=[{"role": "user", "content": [{**found, "content": 3}]}])
        refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I would rather not."}]}
        prompt = self.ask("/v1/chat/completions/render", messages=[HI, refusal, HI])["prompt"]
        self.assertIn("I would rather not.", prompt)
        self.ask("/v1/chat/completions", 400, messages=[HI, {"role": "assistant", "content": [{"type": "audio", "audio": {"id": "a"}}]}, HI])

    def test_a_schema_is_held_to_wherever_it_stands(self):
        named = {"name": "x", "schema": SCHEMA}
        for form in ({"type": "json_schema", "schema": SCHEMA}, {"type": "json_object", "schema": SCHEMA}, {"type": "json_object", "json_schema": named},
                     {"type": "json_schema", "json_schema": named}):
            answer = json.loads(self.chat(response_format=form)["choices"][0]["message"]["content"])
            self.assertEqual([*answer], ["a"], form)
        self.chat(400, response_format={"type": "json_schema"})
        self.chat(400, response_format={"type": "json_object", "schema": 3})

    def test_const_and_enum_are_both_held_to(self):
        for schema in ({"const": 1, "enum": [2]}, {"enum": [2], "const": 1}, {"enum": ["a"], "minLength": 2}):
            self.chat(400, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
        self.assertEqual(self.held({"const": 1, "enum": [1, 2]}), 1)
        self.assertEqual(self.held({"enum": [2, 1], "const": 2}), 2)
        # A word of texts says nothing of numbers.
        self.assertEqual({self.held({"enum": [7, "a"], "minLength": 2}, seed=seed) for seed in range(4)}, {7})

    def test_arguments_are_an_object(self):
        for parameters in ({"title": "x"}, {"description": "none", "type": None}, {"additionalProperties": False}, {"required": []}):
            tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
            for seed in range(3):
                call = self.chat(tools=tools, tool_choice="required", max_tokens=60, seed=seed)["choices"][0]["message"]["tool_calls"][0]["function"]
                self.assertTrue(call["arguments"].startswith("{"), call)

    def test_what_trainers_ask_for_is_known_or_refused(self):
        ask = lambda status=200, **kwargs: self.ask("/generate/", status, prompts=["Once"], n=1, max_tokens=4, generation_kwargs=kwargs)
        self.assertEqual(ask(seed=3, temperature=0.5)["completion_ids"], ask(seed=3, temperature=0.5)["completion_ids"])
        self.assertIn("odd", ask(400, odd=1)["error"]["message"])


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main(verbosity=2)
