#!/usr/bin/env python3
"""Requests in the shapes that editors and web interfaces send, and what each reads of the answer. The shapes are those of the sources that
the tests name, read in November 2026. Usage: shapes_test.py INVAR [unittest arguments]"""
import json
import pathlib
import sys
import tempfile
import unittest

from middle import make_middle
from served import Served, fast_and

INVAR = None  # the program; set by main
SYSTEM, USER = {"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "hello"}
READ_FILE = {"type": "function", "function": {"name": "read_file", "description": "Reads a file", "parameters": {
    "type": "object", "required": ["filepath"], "properties": {"filepath": {"type": "string", "description": "Its path"}}}}}
CALL = '<tool_call>\n{"name": "read_file", "arguments": {"filepath": "a.py"}}\n</tool_call>'
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SEED = 2


class Shapes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="invar-shapes-")
        make_middle(INVAR, cls.folder.name)
        cls.served = Served(INVAR, command=[INVAR, "serve", cls.folder.name, "--host", "127.0.0.1", "--port", "0", "--served-model-name", "m",
                                            *fast_and(["--max-model-len", "2048", "--tool-call-parser", "hermes"])])

    @classmethod
    def tearDownClass(cls):
        assert cls.served.stop() == 0
        cls.folder.cleanup()

    def asked(self, path, body, method="POST"):
        """The answer, and what the server says that it did not do. A seed that no client sends: a drawn one could end an answer early."""
        if path in ("/api/chat", "/api/generate"):
            body = {**body, "options": {**body.get("options", {}), "seed": SEED}}
        elif path in (CHAT, COMPLETIONS, "/completion", "/infill"):
            body = {"seed": SEED, **body}
        status, headers, answer = self.served.ask(method, path, body)
        self.assertEqual(status, 200, answer)
        return answer, headers.get("X-Invar-Warning", "")

    def events(self, path, body):
        data, warning = self.asked(path, {**body, "stream": True})
        sent = [event.removeprefix("data: ") for event in data.decode().split("\n\n") if event]
        return [json.loads(event) for event in sent if event != "[DONE]"], warning

    def lines(self, path, body):
        data, warning = self.asked(path, {**body, "stream": True})
        return [json.loads(line) for line in data.decode().splitlines()], warning

    def refused(self, path, body, field):
        status, _, answer = self.served.ask("POST", path, body)
        self.assertEqual(status, 400, answer)
        self.assertIn(field, json.dumps(answer))

    # ---- Continue (core/llm/llms/OpenAI.ts, Ollama.ts, LlamaCpp.ts, Vllm.ts) ----

    def test_continue_as_openai_and_vllm(self):
        models, _ = self.asked("/v1/models", None, "GET")
        self.assertEqual([(one["id"], int(one["max_model_len"])) for one in models["data"]], [("m", 2048)])
        # An empty text of an assistant is sent as a space, and what a tool gave under its call's id.
        history = [SYSTEM, {"role": "user", "content": [{"type": "text", "text": "hello"}]},
                   {"role": "assistant", "content": " ", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": '{"filepath":"a"}'}}]},
                   {"role": "tool", "content": "text", "tool_call_id": "c1"}]
        body = {"model": "m", "messages": history, "max_tokens": 6, "tools": [READ_FILE], "parallel_tool_calls": False}
        events, warning = self.events(CHAT, body)
        self.assertEqual((events[-1]["choices"][0]["finish_reason"], warning), ("length", ""))
        self.assertTrue(all("delta" in event["choices"][0] for event in events))
        # The text before and behind the cursor, by Continue's own template, with more stop texts than OpenAI takes.
        stops = ["<fim_prefix>", "<fim_suffix>", "\n\n", "/src/", "#- coding: utf-8", *(f"stop {i}" for i in range(8))]
        events, warning = self.events(COMPLETIONS, {"model": "m", "prompt": "<fim_prefix>def f(<fim_suffix>)<fim_middle>", "max_tokens": 6, "temperature": 0.01, "stop": stops})
        self.assertTrue(events and all("text" in event["choices"][0] for event in events))
        vectors, _ = self.asked("/v1/embeddings", {"model": "m", "input": ["a", "b"]})
        self.assertEqual(len([one["embedding"] for one in vectors["data"]]), 2)
        ranked, _ = self.asked("/v1/rerank", {"model": "m", "query": "a", "documents": ["b", "c"]})
        self.assertEqual(sorted(one["index"] for one in ranked["results"] if "relevance_score" in one), [0, 1])

    def test_a_call_is_streamed_in_the_parts_that_clients_join(self):
        body = {"model": "m", "messages": [USER], "tools": [READ_FILE], "max_tokens": 200, "seed": 1, "guided_choice": [CALL]}
        events, _ = self.events(CHAT, body)
        parts = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls") or []]
        self.assertEqual({part["index"] for part in parts}, {0})
        self.assertTrue(parts[0]["id"] and parts[0]["function"]["name"] == "read_file")
        self.assertEqual(json.loads("".join(part["function"].get("arguments") or "" for part in parts)), {"filepath": "a.py"})
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "tool_calls")

    def test_continue_as_ollama(self):
        shown, _ = self.asked("/api/show", {"name": "m"})
        self.assertIn("num_ctx 2048", shown["parameters"].splitlines())
        self.assertIn(".Suffix", shown["template"], "what Continue looks for before it asks for the text between two others")
        options = {"temperature": 0.01, "top_p": 1, "num_predict": 6, "stop": ["\n\n"], "num_ctx": 8192, "num_gpu": 1, "use_mmap": True}
        asked = {"model": "m", "options": options, "keep_alive": 1800}
        lines, warning = self.lines("/api/generate", {**asked, "prompt": "def f(", "suffix": "): pass"})
        self.assertTrue(lines[-1]["done"] and all("response" in line for line in lines))
        for name in ("num_ctx", "keep_alive", "num_gpu", "use_mmap"):
            self.assertIn(name, warning)
        lines, _ = self.lines("/api/generate", {**asked, "prompt": "def f(", "raw": True})
        self.assertTrue(lines[-1]["done"])
        calls = [{"function": {"name": "read_file", "arguments": {"filepath": "a"}}}]
        messages = [SYSTEM, USER, {"role": "assistant", "content": "", "tool_calls": calls}, {"role": "tool", "content": "text"}, USER]
        tools = [{"type": "function", "function": READ_FILE["function"]}]
        lines, _ = self.lines("/api/chat", {**asked, "messages": messages, "tools": tools})
        self.assertTrue(lines[-1]["done"] and all("role" in line["message"] for line in lines))
        tags, _ = self.asked("/api/tags", None, "GET")
        self.assertEqual([one["name"] for one in tags["models"]], ["m:latest"])
        vectors, _ = self.asked("/api/embed", {"model": "m", "input": ["a", "b"]})
        self.assertEqual(len(vectors["embeddings"]), 2)

    def test_continue_as_llama_cpp(self):
        events, warning = self.events("/completion", {"model": "m", "prompt": "hello", "n_predict": 6, "stop": ["\n\n"], "top_k": 40, "top_p": 0.9, "temperature": 0.5,
                                                      "frequency_penalty": 0, "presence_penalty": 0, "min_p": 0.05, "mirostat": 0})
        self.assertTrue("".join(event["content"] for event in events) and warning == "")

    # ---- Open WebUI 0.12.4 (routers/ollama.py, routers/openai.py), as the package sent it ----

    def test_open_webui(self):
        for path, key in (("/v1/models", "data"), ("/api/tags", "models"), ("/api/ps", "models")):
            self.assertEqual(len(self.asked(path, None, "GET")[0][key]), 1, path)
        self.assertIn("version", self.asked("/api/version", None, "GET")[0])
        shown, _ = self.asked("/api/show", {"name": "m:latest", "model": "m:latest"})
        self.assertIn("tools", shown["capabilities"])
        messages = [{"role": "user", "content": "Tell me a story."}]
        clock = {"type": "function", "function": {"name": "get_current_timestamp", "description": "Get the current Unix timestamp in seconds.",
                                                  "parameters": {"properties": {}, "type": "object"}}}
        days = {"type": "function", "function": {"name": "calculate_timestamp", "description": "Get a timestamp.", "parameters": {
            "properties": {"days_ago": {"default": 0, "description": "Number of days", "type": "integer"}}, "type": "object"}}}
        body = {"model": "m", "stream": True, "messages": messages, "tools": [clock, days], "max_tokens": 6}
        events, warning = self.events(CHAT, body)
        self.assertEqual((events[-1]["choices"][0]["finish_reason"], warning), ("length", ""))
        lines, warning = self.lines("/api/chat", {"model": "m:latest", "messages": messages, "tools": [clock, days], "options": {"num_predict": 6}})
        self.assertEqual((lines[-1]["done_reason"], warning), ("length", ""))
        # By its door of OpenAI's form to an Ollama server the name has Ollama's tag.
        answer, _ = self.asked(CHAT, {"model": "m:latest", "messages": messages, "max_tokens": 4, "stream": False})
        self.assertEqual(answer["usage"]["completion_tokens"], 4)
        status, _, _ = self.served.ask("POST", CHAT, {"model": "m:other", "messages": messages})
        self.assertEqual(status, 404, "the control: another tag is another model")
        generated, _ = self.asked("/api/generate", {"model": "m:latest", "prompt": "Once", "options": {"num_predict": 5}, "stream": False})
        self.assertEqual(generated["eval_count"], 5)
        self.assertEqual(len(self.asked("/api/embed", {"model": "m:latest", "input": ["Once"]})[0]["embeddings"]), 1)

    # ---- llama.vim (autoload/llama.vim) ----

    def test_llama_vim(self):
        body = {"id_slot": 0, "input_prefix": "def f(", "input_suffix": "): pass", "input_extra": [{"text": "x = 1", "filename": "a.py"}], "prompt": "    a", "n_predict": 8,
                "stop": [], "n_indent": 4, "top_k": 40, "top_p": 0.90, "samplers": ["top_k", "top_p", "infill"], "stream": False, "cache_prompt": True, "t_max_prompt_ms": 500,
                "t_max_predict_ms": 1000, "response_fields": ["content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms", "timings/prompt_per_second",
                                                              "timings/predicted_n", "timings/predicted_ms", "timings/predicted_per_token_ms", "timings/predicted_per_second",
                                                              "truncated", "tokens_cached"]}
        answer, warning = self.asked("/infill", body)
        self.assertEqual(set(answer), {name.rpartition("/")[2] for name in body["response_fields"]})
        self.assertTrue("samplers" in warning and "t_max_predict_ms" in warning, warning)
        # Ahead of what is typed: the prompt alone.
        ahead = {**body, "prompt": "", "n_predict": 0, "temperature": 0.0, "samplers": [], "t_max_prompt_ms": 1, "t_max_predict_ms": 1, "response_fields": [""]}
        self.assertEqual(self.asked("/infill", ahead)[0], {})
        # An instruction.
        told = {"id_slot": 1, "messages": [SYSTEM, USER], "min_p": 0.1, "temperature": 0.1, "samplers": ["min_p", "temperature"], "cache_prompt": True, "max_tokens": 6}
        events, warning = self.events(CHAT, told)
        self.assertTrue("samplers" in warning and "".join(event["choices"][0]["delta"].get("content") or "" for event in events))
        self.assertEqual(self.events(CHAT, {**told, "samplers": []})[1], "", "the control: no order was asked for")
        self.refused(CHAT, {**told, "samplers": 3, "n_predict": 9}, "n_predict")

    # ---- LibreChat (packages/api/src/endpoints; @langchain/openai) ----

    def test_librechat(self):
        for path in ("/v1/models", "/v1/models?user=65f0c1"):
            self.assertEqual([one["id"] for one in self.asked(path, None, "GET")[0]["data"]], ["m"])
        body = {"model": "m", "user": "65f0c1", "temperature": 1, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "n": 1, "stream_options": {"include_usage": True},
                "messages": [SYSTEM, {"role": "user", "content": [{"type": "text", "text": "hello"}]}], "max_tokens": 6}
        events, warning = self.events(CHAT, body)
        self.assertEqual((events[-1]["choices"], events[-1]["usage"]["completion_tokens"], warning), ([], 6, ""))
        events, _ = self.events(CHAT, {**body, "reasoning": {"effort": "low", "summary": "auto"}, "include_reasoning": True})
        self.assertEqual(events[-1]["usage"]["completion_tokens"], 6)
        # A conversation's title: by a form, or by a tool that must be called.
        title = {"type": "object", "properties": {"title": {"type": "string", "maxLength": 12}}, "required": ["title"]}
        asked = {"model": "m", "messages": [USER], "max_tokens": 100, "seed": 1}
        answer, _ = self.asked(CHAT, {**asked, "response_format": {"type": "json_schema", "json_schema": {"name": "extract", "description": "", "schema": title}}})
        self.assertIn("title", json.loads(answer["choices"][0]["message"]["content"]))
        tool = {"type": "function", "function": {"name": "extract", "description": "", "parameters": title}}
        answer, _ = self.asked(CHAT, {**asked, "tools": [tool], "tool_choice": {"type": "function", "function": {"name": "extract"}}, "parallel_tool_calls": False})
        [call] = answer["choices"][0]["message"]["tool_calls"]
        self.assertIn("title", json.loads(call["function"]["arguments"]))
        # What it can be told to send and cannot be had is refused by its name, not dropped.
        for field, value in {"verbosity": "low", "web_search_options": {}, "reasoning_effort": "low"}.items():
            self.refused(CHAT, {**body, field: value}, field)

    # ---- aider (aider/models.py, by litellm) ----

    def test_aider(self):
        turns = [SYSTEM, USER, {"role": "assistant", "content": "Ok."}, USER]
        body = {"model": "m", "messages": turns, "temperature": 0, "max_tokens": 6}
        events, warning = self.events(CHAT, body)
        streamed = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
        whole, _ = self.asked(CHAT, {**body, "stream": False})
        self.assertEqual((whole["choices"][0]["message"]["content"], warning), (streamed, ""))
        self.assertGreater(whole["usage"]["prompt_tokens"], 4)
        lines, warning = self.lines("/api/chat", {"model": "m", "messages": turns, "options": {"temperature": 0, "num_ctx": 8300, "num_predict": 6}})
        self.assertEqual("".join(line["message"]["content"] for line in lines), streamed)
        self.assertIn("num_ctx", warning)
        function = {"name": "replace_lines", "description": "x", "parameters": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}}
        answer, _ = self.asked(CHAT, {**body, "max_tokens": 100, "tools": [{"type": "function", "function": function}], "tool_choice": {"type": "function", "function": {"name": "replace_lines"}}})
        self.assertEqual(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "replace_lines")


if __name__ == "__main__":
    INVAR = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
