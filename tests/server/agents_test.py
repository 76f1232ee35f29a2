#!/usr/bin/env python3
"""What agents and other clients send, unmodified, and the server's own answers sent back to it. Usage: agents_test.py INVAR
[unittest arguments]"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from served import Served, events

INVAR = None  # the program; set by main
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
HI = [{"role": "user", "content": "Hi"}]
TEMPLATES = pathlib.Path(__file__).resolve().parents[1] / "frontend/templates"
SHOWING = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
PRINTING = """{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>
<function={{ c.function.name }}>
{% for name, value in c.function.arguments | items %}<parameter={{ name }}>
{{ value }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TEXTS = SHOWING.replace("c.function | tojson", "c.function.name + c.function.arguments")
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
NAMES = ("list", "read", "edit", "done")
# The grammar of Codex's tool apply_patch, and the same as a regular expression.
PATCH = (pathlib.Path(__file__).resolve().parents[1] / "data/apply_patch.lark").read_text()
PATCHED = (r"\A\*\*\* Begin Patch\n(\*\*\* Add File: .+\n(\+.*\n)+|\*\*\* Delete File: .+\n|\*\*\* Update File: .+\n(\*\*\* Move to: .+\n)?"
           r"((@@( .+)?\n|[-+ ].*\n)+(\*\*\* End of File\n)?)?)+\*\*\* End Patch\n?\Z")


def call(name, path):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"path": "{path}"}}}}\n</tool_call>'


def held(text):
    """The fields that make any model write the text."""
    return {"structured_outputs": {"regex": re.escape(text).replace("/", r"\/")}}


# How newer templates show the calls of a message, and what their models write. Each value is a text as it is, or JSON.
SHOWING_CALLS = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% if m.tool_calls %}CALLS{% endif %}<|im_end|>
{% endfor %}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
EACH, ITEMS, OVER = "{% for c in m.tool_calls %}", "{% for k, v in c.function.arguments | items %}", "{% endfor %}"
NAME, VALUE, OBJECT = "{{ c.function.name }}", "{{ v if v is string else v | tojson }}", "{{ c.function.arguments | tojson }}"
COMMA = "{{ ', ' if not loop.last }}"
JSON_CALLS = EACH + '{"name": "' + NAME + '", "arguments": ' + OBJECT + "}" + COMMA + OVER


def json_calls(names, path):
    return ", ".join(f'{{"name": "{n}", "arguments": {{"path": "{path}"}}}}' for n in names)


def tags(before, call, key, value, end, after):
    """A template's calls and a function that writes them; the words around names, keys and values."""
    call, key = call.split("NAME"), key.split("KEY")
    shown = before + EACH + call[0] + NAME + call[1] + ITEMS + key[0] + "{{ k }}" + key[1] + VALUE + value + OVER + end + OVER + after
    said = re.sub("{#.*?#}", "", before)  # what is only there to be recognised by
    return shown, lambda names, path: said + "".join(call[0] + n + call[1] + key[0] + "path" + key[1] + path + value + end for n in names) + after


DSML, HY, NS = "｜DSML｜", ":opensource", "]<]minimax[>["
FORMATS = {
    "glm45": tags("", "<tool_call>NAME\n", "<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>\n", "</tool_call>", ""),
    "glm47": tags("", "<tool_call>NAME", "<arg_key>KEY</arg_key><arg_value>", "</arg_value>", "</tool_call>", ""),
    "minimax_m2": tags("<minimax:tool_call>\n", '<invoke name="NAME">\n', '<parameter name="KEY">', "</parameter>\n", "</invoke>\n", "</minimax:tool_call>"),
    "deepseek_v32": tags("{# 'function_calls>' #}" + f"<{DSML}function_calls>\n", f'<{DSML}invoke name="NAME">\n', f'<{DSML}parameter name="KEY" string="true">',
                         f"</{DSML}parameter>\n", f"</{DSML}invoke>\n", f"</{DSML}function_calls>"),
    "seed_oss": tags("", "<seed:tool_call>\n<function=NAME>\n", "<parameter=KEY>", "</parameter>\n", "</function>\n</seed:tool_call>", ""),
    "hy_v3": tags(f"{{# <｜hy_ #}}<tool_calls{HY}>\n", f"<tool_call{HY}>NAME<tool_sep{HY}>\n", f"<arg_key{HY}>KEY</arg_key{HY}>\n<arg_value{HY}>", f"</arg_value{HY}>\n",
                  f"</tool_call{HY}>\n", f"</tool_calls{HY}>"),
    "gemma4": (EACH + "<|tool_call>call:" + NAME + "{{ '{' }}" + ITEMS + "{{ k }}:<|\"|>{{ v }}<|\"|>" + OVER + "}<tool_call|>" + OVER,
               lambda names, path: "".join(f'<|tool_call>call:{n}{{path:<|"|>{path}<|"|>}}<tool_call|>' for n in names)),
    "kimi_k2": ("<|tool_calls_section_begin|>" + EACH + "<|tool_call_begin|>functions." + NAME + ":{{ loop.index0 }}<|tool_call_argument_begin|>" + OBJECT + "<|tool_call_end|>" + OVER
                + "<|tool_calls_section_end|>",
                lambda names, path: "<|tool_calls_section_begin|>" + "".join(f'<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{{"path": "{path}"}}<|tool_call_end|>'
                                                                             for i, n in enumerate(names)) + "<|tool_calls_section_end|>"),
    "lfm2": ("<|tool_call_start|>[" + EACH + NAME + "(" + ITEMS + "{{ k }}={{ v | tojson }}" + OVER + ")" + COMMA + OVER + "]<|tool_call_end|>",
             lambda names, path: "<|tool_call_start|>[" + ", ".join(f'{n}(path="{path}")' for n in names) + "]<|tool_call_end|>"),
    "hunyuan_a13b": ("<tool_calls>[" + JSON_CALLS + "]</tool_calls>", lambda names, path: "<tool_calls>[" + json_calls(names, path) + "]</tool_calls>"),
    "nemotron_json": ("<TOOLCALL>[" + JSON_CALLS + "]</TOOLCALL>", lambda names, path: "<TOOLCALL>[" + json_calls(names, path) + "]</TOOLCALL>"),
    "functionary": (EACH + "<function=" + NAME + ">" + OBJECT + "</function>" + OVER,
                    lambda names, path: "".join(f'<function={n}>{{"path": "{path}"}}</function>' for n in names)),
    "minimax_m3": (f"{NS}<tool_call>\n" + EACH + f'{NS}<invoke name="' + NAME + '">' + ITEMS + NS + "<{{ k }}>" + VALUE + NS + "</{{ k }}>" + OVER + f"{NS}</invoke>\n" + OVER + f"{NS}</tool_call>",
                   lambda names, path: f"{NS}<tool_call>\n" + "".join(f'{NS}<invoke name="{n}">{NS}<path>{path}{NS}</path>{NS}</invoke>\n' for n in names) + f"{NS}</tool_call>"),
    "cohere": ("<|START_ACTION|>[" + EACH + '{"tool_call_id": "{{ loop.index0 }}", "tool_name": "' + NAME + '", "parameters": ' + OBJECT + "}" + COMMA + OVER + "]<|END_ACTION|>",
               lambda names, path: "<|START_ACTION|>[" + ", ".join(f'{{"tool_call_id": "{i}", "tool_name": "{n}", "parameters": {{"path": "{path}"}}}}' for i, n in enumerate(names))
               + "]<|END_ACTION|>"),
    "apertus": ("<|tools_prefix|>[" + EACH + '{"' + NAME + '": ' + OBJECT + "}" + COMMA + OVER + "]<|tools_suffix|>",
                lambda names, path: "<|tools_prefix|>[" + ", ".join(f'{{"{n}": {{"path": "{path}"}}}}' for n in names) + "]<|tools_suffix|>"),
    "granite": ("<|tool_call|>[" + JSON_CALLS + "]", lambda names, path: "<|tool_call|>[" + json_calls(names, path) + "]"),
}


class Chat:
    """A client of chat completions, which keeps what it was answered."""
    path = CHAT

    def __init__(self, system):
        self.said = [{"role": "system", "content": system}]
        self.tools = [{"type": "function", "function": {"name": n, "parameters": PARAMETERS}} for n in NAMES]

    def body(self, tokens):
        return {"messages": self.said, "tools": self.tools, "max_tokens": tokens}

    def ask(self, words):
        self.said.append({"role": "user", "content": words})

    def take(self, answer):
        message = answer["choices"][0]["message"]
        self.said.append(message)
        calls = [(c["id"], c["function"]["name"]) for c in message.get("tool_calls") or []]
        self.said += [{"role": "tool", "tool_call_id": i, "content": f"result of {name}"} for i, name in calls]
        return [name for _, name in calls]


class Messages:
    """One of Anthropic's messages, as Claude Code sends them."""
    path = MESSAGES

    def __init__(self, system):
        self.said, self.system = [], [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}]
        self.tools = [{"name": n, "description": n, "input_schema": PARAMETERS | {"$schema": "http://json-schema.org/draft-07/schema#"}}
                      for n in NAMES] + [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]

    def body(self, tokens):
        return {"model": "claude-sonnet-4-5", "messages": self.said, "system": self.system, "tools": self.tools, "max_tokens": tokens,
                "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}, "metadata": {"user_id": "u"},
                "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}

    def ask(self, words):
        block = {"type": "text", "text": words}
        if self.said and self.said[-1]["role"] == "user":
            self.said[-1]["content"].append(block)
        else:
            self.said.append({"role": "user", "content": [block]})

    def take(self, answer):
        self.said.append({"role": "assistant", "content": answer["content"]})
        calls = [b for b in answer["content"] if b["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": b["id"], "content": [{"type": "text", "text": f"result of {b['name']}"}]} for b in calls]
        if results:
            self.said.append({"role": "user", "content": results})
        return [b["name"] for b in calls]


class Responses:
    """One of OpenAI's responses, as Codex sends them."""
    path = RESPONSES

    def __init__(self, system):
        self.system = system
        self.said = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Rules."}]}]
        self.tools = [{"type": "function", "name": n, "strict": False, "parameters": PARAMETERS} for n in NAMES[:2]]
        self.tools += [{"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "edit", "parameters": PARAMETERS}]},
                       {"type": "function", "name": "done", "parameters": PARAMETERS}, {"type": "web_search"}, {"type": "image_generation"},
                       {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": PATCH}}]

    def body(self, tokens):
        return {"model": "gpt-5", "instructions": self.system, "input": self.said, "tools": self.tools, "tool_choice": "auto",
                "parallel_tool_calls": True, "reasoning": {"effort": "medium", "summary": "auto"}, "store": False,
                "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "text": {"verbosity": "low"}, "max_output_tokens": tokens}

    def ask(self, words):
        self.said.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": words}]})

    def take(self, answer):
        self.said += answer["output"]
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        self.said += [{"type": "function_call_output", "call_id": c["call_id"], "output": f"result of {c['name']}"} for c in calls]
        return [c["name"] for c in calls]


CLIENTS = (Chat, Messages, Responses)
# What the model is made to write: how, and how many tokens of it at most.
ANSWERS = {"text": ("Well.", 400), "one call": (call("list", "a"), 400), "two calls": (call("list", "a") + "\n" + call("read", "b"), 400),
           "text and a call": ("Let me see.\n" + call("list", "a"), 400), "a call that is cut": (call("list", "a" * 40), 60)}


class Agents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = Served(INVAR, "--max-model-len", "2048", "--tool-call-parser", "hermes", "--served-model-name", "m", "claude-*", "gpt-5*")

    @classmethod
    def tearDownClass(cls):
        assert cls.served.stop() == 0

    def said(self, served, client, **more):
        """The answer, and that its stream says the same."""
        body = client.body(400) | more
        status, headers, answer = served.ask("POST", client.path, body)
        self.assertEqual(status, 200, (answer, body))
        return headers, answer

    def test_a_loop_of_each_client(self):
        for kind in CLIENTS:
            client = kind("You are an agent.")
            client.ask("Mend it.")
            for step, name in enumerate(NAMES):
                _, answer = self.said(self.served, client, **held(call(name, f"file{step}")))
                self.assertEqual(client.take(answer), [name])
            _, answer = self.said(self.served, client, **held("It is done."))
            self.assertEqual(client.take(answer), [])
            shown = self.served.ask("POST", client.path + "/render", client.body(400))[2]
            for word in [f"file{step}" for step in range(4)] + [f"result of {name}" for name in NAMES] + ["It is done.", "You are an agent."]:
                self.assertIn(word, shown["prompt"])

    def test_own_answers_come_back_for_five_turns(self):
        with tempfile.TemporaryDirectory() as directory:
            own = [pathlib.Path(directory, f"{name}.jinja") for name in ("showing", "texts")]
            for path, source in zip(own, (SHOWING, TEXTS)):
                path.write_text(source)
            shipped = sorted(TEMPLATES.glob("*.jinja"))
            for template in own + (shipped if os.environ.get("INVAR_FULL_TESTS") else shipped[::8]):
                if template.stem == "macros":  # it shows the first message alone
                    continue
                served = Served(INVAR, "--max-model-len", "4096", "--chat-template", str(template), "--tool-call-parser", "hermes",
                                "--served-model-name", "m", "claude-*", "gpt-5*")
                for kind in CLIENTS:
                    for name, (text, tokens) in ANSWERS.items():
                        with self.subTest(template=template.stem, client=kind.__name__, answer=name):
                            self.converse(served, kind("A system."), text, tokens)
                self.assertEqual(served.stop(), 0)

    def test_own_answers_of_every_format_come_back_for_five_turns(self):
        """The template alone says how calls are written; what the model wrote stands in the next prompt as it wrote it."""
        full = bool(os.environ.get("INVAR_FULL_TESTS"))
        with tempfile.TemporaryDirectory() as directory:
            for name, (shown, write) in FORMATS.items():
                template = pathlib.Path(directory, f"{name}.jinja")
                template.write_text(SHOWING_CALLS.replace("CALLS", shown))
                served = Served(INVAR, "--max-model-len", "4096", "--chat-template", str(template), "--served-model-name", "m", "claude-*", "gpt-5*")
                two = write(["list", "read"], "a b")
                answers = {"two calls": (two, 400, ["list", "read"]), "text and a call": ("Let me see." + write(["list"], "a"), 400, ["list"]),
                           "a call that is cut": (write(["list"], "a" * 60), 60, None)}
                for kind in CLIENTS if full else CLIENTS[:1]:
                    for answer, (text, tokens, calls) in answers.items():
                        with self.subTest(format=name, client=kind.__name__, answer=answer):
                            client = kind("A system.")
                            found = self.converse(served, client, text, tokens)
                            self.assertIn(calls, (None, found), text)
                            if calls and answer == "two calls":
                                client.ask("And now?")
                                prompt = served.post(client.path + "/render", **client.body(tokens))["prompt"]
                                self.assertEqual(prompt.count(two), 5, prompt)
                self.assertEqual(served.stop(), 0)

    def test_values_of_own_calls_come_back_as_they_were_written(self):
        """Qwen3-Coder's and Qwen3.5's templates print arguments, whose null Python spells None."""
        values = {"deep": {"type": "boolean"}, "limit": {"type": ["integer", "null"], "enum": [None]}, "tags": {"type": "array", "items": {"enum": ["x"]}, "minItems": 1, "maxItems": 1}}
        parameters = {"type": "object", "properties": values, "required": [*values], "additionalProperties": False}
        with tempfile.TemporaryDirectory() as directory:
            template = pathlib.Path(directory, "printing.jinja")
            template.write_text(PRINTING)
            served = Served(INVAR, "--max-model-len", "4096", "--chat-template", str(template), "--served-model-name", "m", "claude-*", "gpt-5*")
            must = {Chat: {"tool_choice": "required"}, Messages: {"tool_choice": {"type": "any"}}, Responses: {"tool_choice": "required"}}
            for kind in CLIENTS:
                client = kind("A system.")
                client.tools = [tool for tool in client.tools if tool.get("type") != "custom"]  # its calls are no functions'
                for tool in client.tools:
                    for place in (tool, tool.get("function", {}), *tool.get("tools", [])):  # those of a namespace, too
                        place |= {name: parameters for name in ("parameters", "input_schema") if name in place}
                for turn in range(5):
                    client.ask(f"Turn {turn}.")
                    answer = served.post(client.path, **client.body(400) | must[kind])
                    self.assertEqual(len(client.take(answer)), 1, answer)
                prompt = served.post(client.path + "/render", **client.body(400))["prompt"]
                self.assertEqual(prompt.count('<parameter=limit>\nnull\n</parameter>'), 5, prompt)
                self.assertEqual(prompt.count('<parameter=tags>\n["x"]\n</parameter>'), 5)
                self.assertNotIn("None", prompt)
            self.assertEqual(served.stop(), 0)

    def converse(self, served, client, text, tokens):
        for turn in range(5):
            client.ask(f"Turn {turn}.")
            body = client.body(tokens) | held(text)
            status, _, shown = served.ask("POST", client.path + "/render", body)
            self.assertEqual(status, 200, shown)
            for word in ("None", "{'", "True"):
                self.assertNotIn(word, shown["prompt"])
            self.assertIn(f"Turn {turn}.", shown["prompt"])
            status, _, answer = served.ask("POST", client.path, body)
            self.assertEqual(status, 200, (answer, shown["prompt"]))
            calls = client.take(answer)
        return calls

    def test_what_a_message_of_claude_code_has(self):
        ask = dict(max_tokens=1, messages=HI)
        tool = {"name": "f", "input_schema": {"type": "object"}}
        called = [*HI, {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]}]
        searched = [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                    {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "Found"}]
        for more, warning in (
                (dict(thinking={"type": "adaptive", "budget_tokens": 0}), "no thoughts"),
                (dict(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000), "no thoughts"),
                (dict(output_config={"effort": "high"}), "no thoughts"),
                (dict(context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}), None),
                (dict(context_management={"edits": [{"type": "clear_tool_uses_20250919"}]}), "clear_tool_uses_20250919"),
                (dict(messages=[*HI, {"role": "assistant", "content": "Yes"}, {"role": "system", "content": "Note"}, {"role": "user", "content": "Go on"}]), None),
                (dict(tools=[tool], messages=[*called, {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "tool_reference", "tool_name": "f"}]}]}]), None),
                (dict(messages=[*HI, {"role": "assistant", "content": searched}, {"role": "user", "content": "Go on"}]), "server_tool_use"),
                (dict(tools=[tool, {"type": "bash_20250124", "name": "bash"}]), "bash"),
                (dict(betas=["x"]), None), (dict(model="claude-opus-4"), None)):
            status, headers, answer = self.served.ask("POST", MESSAGES, ask | more, {"anthropic-beta": "context-management-2025-06-27"})
            self.assertEqual(status, 200, answer)
            if warning:
                self.assertIn(warning, headers["X-Invar-Warning"])
            else:
                self.assertIsNone(headers["X-Invar-Warning"])
        self.assertEqual(self.served.ask("POST", MESSAGES, ask | dict(model="clau"))[0], 404)
        # More tokens than the context has are as many as it has; a chat completion says so.
        status, headers, _ = self.served.ask("POST", MESSAGES, ask | dict(max_tokens=10**6, stop_sequences=["e"]))
        self.assertEqual((status, "context ends there" in headers["X-Invar-Warning"]), (200, True))
        self.assertEqual(self.served.ask("POST", CHAT, dict(messages=HI, max_tokens=10**6))[0], 400)

    def test_what_a_response_of_codex_has(self):
        custom = {"type": "custom", "name": "apply_patch"}
        history = [HI[0], {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "x"},
                   {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
                   {"type": "local_shell_call", "call_id": "c2", "action": {"type": "exec", "command": ["ls"]}},
                   {"type": "local_shell_call_output", "call_id": "c2", "output": "a"}, {"type": "web_search_call", "status": "completed"},
                   {"role": "user", "content": "Go on"}]
        shown = self.served.post(RESPONSES + "/render", input=history, tools=[custom])
        self.assertEqual([m["role"] for m in shown["messages"] if m["role"] != "system"], ["user", "assistant", "tool", "assistant", "tool", "user"])
        for word in ("apply_patch", "local_shell", '"input": "x"', "exec"):
            self.assertIn(word, shown["prompt"])
        self.assertEqual(shown["warnings"], ["items of type web_search_call are left out"])
        self.assertEqual(self.served.post(CHAT + "/render", messages=HI)["warnings"], [])
        text = '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** Begin"}}\n</tool_call>'
        body = dict(input="Hi", tools=[custom], max_output_tokens=200, **held(text))
        (item,) = self.served.post(RESPONSES, **body)["output"]
        self.assertEqual((item["type"], item["name"], item["input"]), ("custom_tool_call", "apply_patch", "*** Begin"))
        said = [json.loads(block.split("\ndata: ")[1]) for block in self.served.stream(RESPONSES, **body).decode().split("\n\n")[:-1]]
        self.assertEqual("".join(s["delta"] for s in said if s["type"] == "response.custom_tool_call_input.delta"), "*** Begin")
        tools = self.served.post(RESPONSES, input="Hi", max_output_tokens=2, tools=[
            {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}}, {"type": "web_search"}, custom])["tools"]
        self.assertEqual(len(tools), 3)
        for more in (dict(text={"verbosity": "high"}), dict(reasoning={"effort": "high"})):
            status, headers, _ = self.served.ask("POST", RESPONSES, dict(input="Hi", max_output_tokens=2, **more))
            self.assertEqual((status, headers["X-Invar-Warning"] is not None), (200, True))
        status, headers, _ = self.served.ask("POST", RESPONSES, dict(input="Hi", max_output_tokens=2, context_management=[{"type": "compaction"}]))
        self.assertEqual((status, headers["X-Invar-Warning"]), (200, 'the edit "compaction" of context_management is not made'))
        self.served.post(RESPONSES, input="Hi", max_output_tokens=2, max_tool_calls=3)
        for wrong in ("x", 0, -3, 1.5):
            status, _, answer = self.served.ask("POST", RESPONSES, {"input": "Hi", "max_tool_calls": wrong})
            self.assertEqual((status, "max_tool_calls" in answer["error"]["message"]), (400, True), answer)
        self.assertEqual(self.served.ask("POST", RESPONSES, dict(input="Hi", background=True))[0], 400)

    def test_strict_calls_of_every_format_of_text_beside_the_form_of_an_answer(self):
        parameters = {"type": "object", "properties": {"mode": {"enum": ["a", "b"]}, "days": {"enum": [3, 14]}, "deep": {"$ref": "#/$defs/D"}},
                      "required": ["mode", "days"], "additionalProperties": False, "$defs": {"D": {"type": "object", "properties": {"x": {"type": "boolean"}},
                                                                                                   "required": ["x"], "additionalProperties": False}}}
        tool = lambda **more: {"type": "function", "function": {"name": "plan", "strict": True, "parameters": {**parameters, **more}}}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}}}
        with tempfile.TemporaryDirectory(prefix="invar-agents-") as folder:
            model, template = pathlib.Path(folder, "model"), pathlib.Path(folder, "chat.jinja")
            template.write_text(SHOWING)
            subprocess.run([INVAR, "make-model", model], check=True, capture_output=True)
            for file in model.glob("*token*.json"):  # a special token is the mark of calls
                file.write_text(file.read_text().replace("<|im_start|>", "<tool_call>"))
            command = [INVAR, "serve", model, "--host", "127.0.0.1", "--port", "0", "--max-model-len", "2048", "--threads", "1",
                       "--kv-cache-memory", "0.1", "--tool-call-parser", "hermes", "--chat-template", str(template)]
            special = Served(INVAR, command=command)
            mark = special.post("/tokenize", prompt="<tool_call>", add_special_tokens=False)["tokens"]
            self.assertEqual(len(mark), 1)
        newer = ("glm45", "gemma4", "kimi_k2", "minimax_m2", "deepseek_v32", "seed_oss", "hy_v3", "lfm2", "olmo3", "hunyuan_a13b", "nemotron_json", "granite", "functionary", "cohere", "apertus", "minimax_m3")
        for name in ("hermes", "llama3_json", "qwen3_coder", "pythonic", "mistral", "deepseek_v3", "gpt_oss", "a special token",
                     *(newer if os.environ.get("INVAR_FULL_TESTS") else newer[:2])):
            thoughts = ("--reasoning-parser", "gpt_oss") if name == "gpt_oss" else ()
            budget = {"thinking_token_budget": 4} if thoughts else {}
            served = special if name == "a special token" else Served(INVAR, "--tool-call-parser", name, *thoughts, "--max-model-len", "2048")
            kinds, heat = set(), 6 if name == "minimax_m3" else 2  # the made model begins with its mark's ] far too often
            for seed in range(40):
                told = served.post(CHAT, messages=HI, tools=[tool()], response_format=form, seed=seed, max_tokens=600, temperature=heat,
                                   parallel_tool_calls=False, **budget)["choices"][0]
                calls = told["message"].get("tool_calls")
                kinds.add(bool(calls))
                if calls:
                    self.assertEqual(told["finish_reason"], "tool_calls", (name, told))
                    arguments = json.loads(calls[0]["function"]["arguments"])
                    self.assertIn(arguments["mode"], ("a", "b"), (name, arguments))
                    self.assertIn(arguments["days"], (3, 14))
                    self.assertIn(arguments.get("deep", {"x": True})["x"], (True, False))
                else:
                    self.assertIn(told["message"]["content"], ('"yes"', '"no"'), name)
                if len(kinds) == 2 and seed > 5:
                    break
            self.assertEqual(kinds, {True, False}, name)
            kinds = set()
            for seed in range(40):
                told = served.post(CHAT, messages=HI, tools=[tool()], response_format={"type": "json_object"}, seed=seed, max_tokens=250,
                                   temperature=heat, **budget)["choices"][0]["message"]
                kinds.add(bool(told.get("tool_calls")))
                self.assertTrue(told.get("tool_calls") or told["content"].startswith("{"), (name, told))
                if len(kinds) == 2:
                    break
            self.assertIn(False, kinds, name)
            if name == "qwen3_coder":
                status, _, answer = served.ask("POST", CHAT, dict(messages=HI, tools=[tool(properties={"mode": {"type": ["string", "null"], "pattern": "a"}})]))
                self.assertEqual((status, answer["error"]["param"]), (400, "tools"))
                self.assertIn("pattern", answer["error"]["message"])
            if name == "gpt_oss":  # words that are gone on with have no header
                held = dict(messages=[*HI, {"role": "assistant", "content": "So"}], tools=[tool()], continue_final_message=True, max_tokens=4)
                status, _, answer = served.ask("POST", CHAT, held)
                self.assertEqual((status, answer["error"]["param"]), (400, "tools"))
                self.assertIn("continue_final_message", answer["error"]["message"])
            self.assertEqual(served.stop(), 0)

    def test_a_custom_tool_of_a_chat_takes_a_text(self):
        grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[ab]{2,4}\n\"x\""}}
        custom = {"type": "custom", "custom": {"name": "patch", "description": "P", "format": grammar}}
        text = '<tool_call>\n{"name": "patch", "arguments": {"input": "*** \\"q\\" \\u00e9\\n"}}\n</tool_call>'
        body = dict(messages=HI, tools=[custom], max_tokens=200)
        (called,) = self.served.post(CHAT, **body, **held(text))["choices"][0]["message"]["tool_calls"]
        self.assertEqual((called["type"], called["custom"]), ("custom", {"name": "patch", "input": '*** "q" é\n'}))
        named = {"type": "custom", "custom": {"name": "patch"}}
        for choice in ("required", named, {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}):
            (called,) = self.served.post(CHAT, **body, tool_choice=choice, seed=3)["choices"][0]["message"]["tool_calls"]
            self.assertRegex(called["custom"]["input"], r'\A[ab]{2,4}\n"x"\Z')
            said, names, parts = "", set(), 0
            for event in self.served.stream(CHAT, **body, tool_choice=choice, seed=3).decode().split("\n\n"):
                for told in json.loads(event[6:])["choices"] if event.startswith("data: {") else []:
                    for part in told["delta"].get("tool_calls", []):
                        said += part["custom"]["input"]
                        parts += bool(part["custom"]["input"])
                        names.add((part.get("type"), part["custom"].get("name")))
            self.assertEqual(said, called["custom"]["input"])
            self.assertIn(("custom", "patch"), names)
            self.assertGreater(parts, 1, said)
        history = [*HI, {"role": "assistant", "content": None, "tool_calls": [called]}, {"role": "tool", "tool_call_id": called["id"], "content": "ok"}]
        shown = self.served.post(CHAT + "/render", messages=history, tools=[custom])
        self.assertIn('{"name": "patch", "arguments": ' + json.dumps({"input": called["custom"]["input"]}) + "}", shown["prompt"])
        for syntax, definition, part in (("lark", "start: a", '"a"'), ("lark", 'start: /a(?=b)/', "look-ahead"), ("ebnf", 'start: "a"', "lark or regex")):
            tool = {"type": "custom", "custom": {"name": "patch", "format": {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}}}
            status, _, answer = self.served.ask("POST", CHAT, dict(messages=HI, tools=[tool], max_tokens=2))
            self.assertEqual((status, answer["error"]["param"]), (400, "tools"), answer)
            self.assertIn(part, answer["error"]["message"])

    def test_a_patch_follows_the_grammar_that_codex_sends(self):
        """Whatever a random model writes, in JSON, between tags and as a text of marks."""
        tool = {"type": "custom", "custom": {"name": "apply_patch", "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": PATCH}}}}
        for name in ("hermes", "qwen3_coder", "gemma4", "kimi_k2"):
            served = self.served if name == "hermes" else Served(INVAR, "--tool-call-parser", name, "--max-model-len", "2048")
            ends = {token: 9 for text in ("\n*** End Patch", "\\n") for token in served.post("/tokenize", prompt=text, add_special_tokens=False)["tokens"]}
            inputs = set()
            for seed in range(8):
                told = served.post(CHAT, messages=HI, tools=[tool], tool_choice="required", seed=seed, max_tokens=400, temperature=1.5,
                                   parallel_tool_calls=False, logit_bias=ends)["choices"][0]
                if told["finish_reason"] == "tool_calls":
                    (called,) = told["message"]["tool_calls"]
                    inputs.add(called["custom"]["input"])
                    self.assertRegex(called["custom"]["input"], PATCHED, name)
            self.assertGreater(len(inputs), 3, name)
            if name != "hermes":
                self.assertEqual(served.stop(), 0)

    def test_an_item_of_a_response_ends_before_the_next_begins(self):
        tools = [{"type": "function", "name": "list", "parameters": PARAMETERS}]
        text = "Let me see.\n" + call("list", "a") + "\n" + call("list", "b") + "\nDone."
        body = dict(input="Go", tools=tools, max_output_tokens=400, **held(text))
        whole = self.served.post(RESPONSES, **body)
        self.assertEqual([item["type"] for item in whole["output"]], ["message", "function_call", "function_call", "message"])
        said = [json.loads(block.split("\ndata: ")[1]) for block in self.served.stream(RESPONSES, **body).decode().split("\n\n")[:-1]]
        order = [(s["type"].rsplit(".", 1)[1], s["output_index"]) for s in said if "output_item" in s["type"]]
        self.assertEqual(order, [(what, i) for i in range(4) for what in ("added", "done")])
        done = [s["item"] for s in said if s["type"] == "response.output_item.done"]
        self.assertEqual(done, said[-1]["response"]["output"])
        strip = lambda items: [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]
        self.assertEqual(strip(done), strip(whole["output"]))


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main()
