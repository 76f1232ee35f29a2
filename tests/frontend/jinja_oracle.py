#!/usr/bin/env python3
"""Renders templates here, with Python's jinja2 set up as Hugging Face's transformers does, and there: equal bytes.

Usage: jinja_oracle.py PROBE [SEED [CONVERSATIONS [FOLDER]]]; FOLDER holds templates, else those beside this file are taken.
"""
import datetime
import json
import pathlib
import random
import subprocess
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).resolve().parent
NOW = datetime.datetime(2024, 6, 30, 7, 8, 9)  # as in jinja_probe.cc


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: NOW.strftime(form)
    return env


ENV = environment()


def render(template, variables):
    try:
        return ENV.from_string(template).render(**variables)
    except Exception:  # whatever it is: the other side has to fail too
        return None


# Text that breaks naive renderers: other scripts, quotes, braces, tags, control characters, edges of white space.
PIECES = ["Hello", " world", "\n", "\n\n", "  ", "\t", "caf\u00e9", "\u4f60\u597d", "\U0001f600\U0001f468\u200d\U0001f469",
          "'", '"', "\\", "{{ x }}", "{% if %}", "{#", "#}", "<|im_end|>", "<s>", "[INST]", "</think>", "<think>", "\u00a0",
          "\u2028", "\u0301", "0", "1e5", "<b>&amp;</b>", "\x7f", "\x1b", "\r\n", "\ufeff", "\u00df", "\u0130", "stra\u00dfe",
          "<tool_response>", "</tool_response>", "%s", "%", "}}", "\u0000", "\ud7ff", "\U0010ffff", "a" * 70]
WORDS = ["x", "name", "value", "items", "type", "caf\u00e9", "a b", "keys", "\"q\"", "list"]


def text(rng):
    return "".join(rng.choice(PIECES) for _ in range(rng.choice([0, 1, 2, 3, 5, 9])))


def number(rng):
    return rng.choice([0, 1, -1, 7, 2**53, -2**63, 0.5, 1.0, -0.0, 1e16, 1e15, 123456789.125, 1e-4, 1e-5, 1e300, 0.1,
                       3.141592653589793, 5e-324, rng.uniform(-1e6, 1e6), rng.randrange(-10**9, 10**9)])


def anything(rng, depth=3):
    kind = rng.randrange(8 if depth else 5)
    if kind == 0:
        return text(rng)
    if kind == 1:
        return number(rng)
    if kind in (2, 3):
        return rng.choice([True, False, None])
    if kind in (4, 5):
        return text(rng)
    if kind == 6:
        return [anything(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice(WORDS): anything(rng, depth - 1) for _ in range(rng.randrange(4))}


def schema(rng, depth=2):
    kind = rng.choice(["string", "integer", "number", "boolean", "object", "array"] if depth else ["string", "null"])
    spec = {"type": kind, "description": text(rng)}
    if kind == "object":
        spec["properties"] = {rng.choice(WORDS): schema(rng, depth - 1) for _ in range(rng.randrange(4))}
        spec["required"] = list(spec["properties"])[:1]
    if kind == "array":
        spec["items"] = schema(rng, depth - 1)
    if rng.random() < 0.2:
        spec["enum"] = [anything(rng, 1) for _ in range(2)]
    return spec


def tool(rng):
    return {"type": "function",
            "function": {"name": rng.choice(["look_up", "add", "weather"]), "description": text(rng),
                         "parameters": {"type": "object", "properties": {w: schema(rng) for w in rng.sample(WORDS, 2)},
                                        "required": []}}}


def content(rng):
    kind = rng.random()
    if kind < 0.9:
        return text(rng)
    if kind < 0.95:
        return [{"type": rng.choice(["text", "text", "image"]), "text": text(rng)} for _ in range(rng.randrange(3))]
    return rng.choice([None, anything(rng)])


def conversation(rng):
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": text(rng)})
    for _ in range(rng.choice([0, 1, 1, 2, 3, 6])):
        messages.append({"role": "user", "content": content(rng)})
        if rng.random() < 0.15:
            calls = [{"id": "abcdefghi"[:rng.choice([9, 9, 9, 8])], "type": "function",
                      "function": {"name": "add", "arguments": {w: anything(rng) for w in rng.sample(WORDS, 2)}}}
                     for _ in range(rng.choice([1, 1, 2]))]
            messages.append({"role": "assistant", "content": rng.choice(["", None, text(rng)]), "tool_calls": calls})
            for call in calls:
                messages.append({"role": "tool", "content": content(rng), "tool_call_id": call["id"]})
        if rng.random() < 0.9:
            reply = {"role": "assistant", "content": text(rng)}
            if rng.random() < 0.3:
                reply["content"] = "<think>" + text(rng) + "</think>" + text(rng)
            if rng.random() < 0.1:
                reply["reasoning_content"] = text(rng)
            messages.append(reply)
    if rng.random() < 0.3 and messages:
        messages.append({"role": "user", "content": text(rng)})
    variables = {"messages": messages, "bos_token": "<s>", "eos_token": "</s>",
                 "add_generation_prompt": rng.random() < 0.5}
    if rng.random() < 0.4:
        variables["tools"] = [tool(rng) for _ in range(rng.choice([0, 1, 2]))]
    if rng.random() < 0.2:
        variables["enable_thinking"] = rng.random() < 0.5
    if rng.random() < 0.2:
        variables["tools_in_user_message"] = False
    if rng.random() < 0.1:
        variables["builtin_tools"] = ["code_interpreter", "add", "search"]
    if rng.random() < 0.1:
        variables["date_string"] = "1 Jan 2025"
    return variables


def feature_cases():
    """One small template per construct, from jinja_features.txt: blocks between lines of dashes."""
    blocks = (HERE / "jinja_features.txt").read_text().split("\n--------\n")
    variables = {
        "s": "  Hello, W\u00f6rld \U0001f600 stra\u00dfe\n\n", "empty": "", "words": "the quick  brown fox",
        "n": 7, "m": -3, "f": 2.5, "big": 1e16, "small": 1e-5, "t": True, "none_value": None,
        "xs": [3, 1, 2, 1], "names": ["b", "A", "c", "a"], "mixed": [1, "two", 3.0, None, True, [4], {"five": 5}],
        "d": {"b": 1, "A": 2, "c": [1, 2], "items": "shadow", "_x": 9}, "nested": {"a": {"b": [{"c": "deep"}]}},
        "people": [{"name": "Ann", "age": 30, "tags": ["x"]}, {"name": "bob", "age": 4}, {"name": "Cy", "age": 30}],
        "html": "<a href='x'>&</a>", "lines": "one\ntwo\n\nthree\r\nfour", "quotes": "it's \"so\"",
        "control": "a\x00\x1f\x7f\u0085\u200b\u2028\U000e0001z", "number_text": " 42 ", "float_text": "4.9",
    }
    return [(block, variables) for block in blocks]


def conversation_cases(seed, count, folder):
    rng = random.Random(seed)
    for path in sorted(folder.glob("*.jinja")):
        template = path.read_text()
        for _ in range(count):
            yield template, conversation(rng)


def compare(probe, cases):
    """(rendered, failed in both, differences) of the cases."""
    records = "".join(json.dumps({"template": t, "variables": v}, ensure_ascii=False) + "\n" for t, v in cases)
    done = subprocess.run([probe], input=records.encode(), capture_output=True, timeout=100, check=True)
    answers = [json.loads(line) for line in done.stdout.split(b"\n")[:-1]]
    assert len(answers) == len(cases), (len(answers), len(cases))
    rendered = failed = 0
    differences = []
    for (template, variables), answer in zip(cases, answers):
        expected = render(template, variables)
        if expected is None and "error" in answer:
            failed += 1
        elif expected is not None and answer.get("text") == expected:
            rendered += 1
        else:
            differences.append((template, variables, expected, answer))
    return rendered, failed, differences


def main():
    probe = sys.argv[1]
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 120
    folder = pathlib.Path(sys.argv[4]) if len(sys.argv) > 4 else HERE / "templates"
    cases = feature_cases() + list(conversation_cases(seed, count, folder))
    rendered, failed, differences = compare(probe, cases)
    for template, variables, expected, answer in differences[:5]:
        print("template:", template[:600], "\nvariables:", json.dumps(variables)[:600] if len(template) > 300 else "",
              "\nexpected:", repr(expected), "\nfound:   ", repr(answer), "\n")
    print(f"{rendered} equal, {failed} refused by both, {len(differences)} different")
    # The comparison must be able to fail: without trim_blocks texts differ.
    ENV.trim_blocks = False
    ENV.cache.clear()
    _, _, control = compare(probe, cases)
    print(f"control: {len(control)} of {len(cases)} different without trim_blocks")
    sys.exit(0 if not differences and rendered > 2 * failed and control else 1)


main()
