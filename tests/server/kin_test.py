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

    def told(self, path, **body):
        """The status, the warning and the answer."""
        status, headers, answer = self.served.ask("POST", path, body)
        return status, headers["X-Invar-Warning"] or "", answer

    def test_a_choice_of_tools_of_which_none_is_left(self):
        search, own = {"type": "web_search_20250305", "name": "web_search"}, {"name": "f", "input_schema": {"type": "object"}}
        ask = lambda tools, choice: self.told("/v1/messages", max_tokens=2, messages=[HI], tools=tools, tool_choice=choice)
        for tools, choice in (([search], {"type": "any"}), ([search], {"type": "tool", "name": "web_search"}),
                              ([search, own], {"type": "tool", "name": "web_search"}), ([search], {"type": "auto", "disable_parallel_tool_use": True})):
            status, warning, answer = ask(tools, choice)
            self.assertEqual((status, "left out" in warning), (200, True), answer)
        for tools, choice in (([own], {"type": "tool", "name": "g"}), ([], {"type": "any"})):
            self.assertEqual(ask(tools, choice)[0], 400, "the control: a tool that nobody sent")
        self.assertEqual(ask([own], {"type": "any"})[:2], (200, ""))
        own = {"type": "function", "name": "f", "parameters": SCHEMA}
        ask = lambda tools, choice: self.told("/v1/responses", max_output_tokens=40, input="Hi", tools=tools, tool_choice=choice, seed=2)
        for tools, choice in (([{"type": "web_search"}], "required"), ([{"type": "web_search"}], {"type": "web_search"}),
                              ([own, {"type": "web_search"}], {"type": "web_search"})):
            status, warning, answer = ask(tools, choice)
            self.assertEqual((status, "tool_choice is ignored" in warning), (200, True), answer)
        allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}
        status, warning, answer = ask([own, {**own, "name": "g"}], allowed)
        self.assertEqual((status, warning, answer["output"][-1]["name"]), (200, "", "f"))
        for tools, choice in (([own], {"type": "function", "name": "g"}), ([], "required"), ([own], {"type": "nonsense"}), ([own], {**allowed, "mode": "x"}),
                              ([own], {**allowed, "tools": [{"type": "function", "name": "g"}]})):
            self.assertEqual(ask(tools, choice)[0], 400, choice)

    def test_what_is_left_of_a_conversation(self):
        run = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
        begun = {"role": "assistant", "content": "Once"}
        ask = lambda *messages: self.told("/v1/messages/render", max_tokens=8, messages=[HI, *messages])
        status, _, answer = ask(begun, {"role": "user", "content": [run]})
        self.assertEqual((status, "left out alone" in answer["error"]["message"]), (400, True), "else the answer went on with the assistant's words")
        plain = ask()[2]["prompt"]
        for nothing in ("", [], None, [{"type": "redacted_thinking", "data": "x"}]):
            self.assertEqual(ask({"role": "assistant", "content": nothing})[2]["prompt"], plain, "an answer that begins with nothing")
        self.assertNotEqual(ask(begun)[2]["prompt"], plain, "the control")
        for role, status in (("assistant", 200), ("user", 400)):
            for message in ({"role": role}, {"role": role, "content": None}):
                self.assertEqual(ask(message, HI)[0], status, message)
        call = {"type": "function_call", "call_id": "c", "name": "f"}
        result = {"type": "function_call_output", "call_id": "c", "output": "ok"}
        shown = [self.ask("/v1/responses/render", input=[HI, {**call, **arguments}, result, {"role": "assistant"}, HI])["prompt"]
                 for arguments in ({}, {"arguments": None}, {"arguments": ""}, {"arguments": "{}"})]
        self.assertEqual(len(set(shown)), 1)
        self.ask("/v1/responses/render", 400, input=[HI, {"type": "function_call", "call_id": "c"}])

    def test_a_schema_is_held_to_wherever_it_stands(self):
        named = {"name": "x", "schema": SCHEMA}
        for form in ({"type": "json_schema", "schema": SCHEMA}, {"type": "json_object", "schema": SCHEMA}, {"type": "json_object", "json_schema": named},
                     {"type": "json_schema", "json_schema": named}):
            answer = json.loads(self.chat(response_format=form)["choices"][0]["message"]["content"])
            self.assertEqual([*answer], ["a"], form)
        self.chat(400, response_format={"type": "json_schema"})
        self.chat(400, response_format={"type": "json_object", "schema": 3})

    def test_two_forms_of_an_answer_are_not_chosen_from(self):
        form = lambda kind: {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": kind}}}
        must_call = {"tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}], "tool_choice": "required"}
        for body, param in (({"guided_regex": "a", "structured_outputs": {"regex": "b"}}, "guided_regex"),
                            ({"guided_json": {"type": "integer"}, "response_format": form("boolean")}, "response_format"),
                            ({"guided_choice": ["a"], "response_format": form("boolean")}, "response_format"),
                            ({"guided_json": {"const": "a"}, "response_format": {"type": "json_object", "schema": SCHEMA}}, "response_format"),
                            ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ", "disable_any_whitespace": False}}, "structured_outputs"),
                            ({"structured_outputs": {"json": {"type": "integer"}}, **must_call}, "structured_outputs"),
                            ({"guided_json": {"type": "integer"}, **must_call}, "guided_json")):
            error = self.chat(400, **body)["error"]
            self.assertIn("one form of the answer", error["message"])
            self.assertEqual(error["param"], param, error)
        # The controls: the same form twice, and the form of a text beside a call, which is none.
        said = self.chat(guided_json={"type": "boolean"}, response_format=form("boolean"))["choices"][0]["message"]["content"]
        self.assertIn(json.loads(said), (True, False))
        call = self.chat(**must_call, response_format=form("boolean"), max_tokens=60, seed=1)["choices"][0]["message"]
        self.assertEqual(call["tool_calls"], [{**one, "id": call["tool_calls"][0]["id"]} for one in
                                              self.chat(**must_call, max_tokens=60, seed=1)["choices"][0]["message"]["tool_calls"]])
        self.chat(400, **must_call, response_format={"type": "json_schema"})

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

    def test_a_form_that_is_complete_ends_before_min_tokens(self):
        boolean = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "boolean"}}}
        tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
        for form in ({"structured_outputs": {"choice": ["yes", "no"]}}, {"structured_outputs": {"regex": "a{3}"}}, {"response_format": boolean},
                     {"structured_outputs": {"grammar": 'root ::= "ab" | "c"'}}, {"tools": tools, "tool_choice": "required"}):
            for more in ({}, {"ignore_eos": True}, {"stop": ["zzz"]}):
                told = self.chat(min_tokens=35, **form, **more)
                self.assertIn(told["choices"][0]["finish_reason"], ("stop", "tool_calls"))
                self.assertLess(told["usage"]["completion_tokens"], 35, form)
                plain = self.chat(**form, **more)["choices"][0]["message"]
                for call in plain.get("tool_calls", []) + told["choices"][0]["message"].get("tool_calls", []):
                    call.pop("id")
                self.assertEqual(told["choices"][0]["message"], plain, "it says what it would say")
        for open_form in ({"structured_outputs": {"regex": "a*"}}, {}):
            told = self.chat(min_tokens=35, **open_form)
            self.assertGreaterEqual(told["usage"]["completion_tokens"], 35, "the control: a form that may go on")

    def test_no_stop_string_counts_before_min_tokens(self):
        ask = lambda **more: self.ask("/v1/completions", prompt="Once", max_tokens=40, seed=1, stop=["e"], **more)["choices"][0]
        short, long = ask(), ask(min_tokens=30)
        self.assertEqual([short["finish_reason"], short["stop_reason"]], ["stop", "e"])
        self.assertNotIn("e", short["text"])
        self.assertTrue(long["text"].startswith(short["text"] + "e"))
        whole = self.ask("/v1/completions", prompt="Once", max_tokens=40, seed=1)["choices"][0]["text"]
        self.assertTrue(whole.startswith(long["text"]) and len(long["text"]) > 30)

    def test_what_trainers_ask_for_is_known_or_refused(self):
        ask = lambda status=200, **kwargs: self.ask("/generate/", status, prompts=["Once"], n=1, max_tokens=4, generation_kwargs=kwargs)
        self.assertEqual(ask(seed=3, temperature=0.5)["completion_ids"], ask(seed=3, temperature=0.5)["completion_ids"])
        self.assertIn("odd", ask(400, odd=1)["error"]["message"])


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main(verbosity=2)
