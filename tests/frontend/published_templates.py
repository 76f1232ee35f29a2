#!/usr/bin/env python3
"""Chat templates as published, rendered by Invar and by transformers: 40 conversations each, with tools, thoughts and odd texts.
Usage: published_templates.py JINJA_PROBE. The templates are those that llama.cpp keeps in models/templates; scripts/setup_witness
takes them from the source package of llama-cpp-python. Without them, or without transformers, the test is skipped (77)."""
import datetime, json, os, pathlib, random, subprocess, sys

WITNESS = os.environ.get("INVAR_WITNESS", "/opt/witness/bin/python")
MODELS = pathlib.Path(WITNESS).parent.parent / "llama.cpp/models"
try:
    from transformers.utils import chat_template_utils
except ImportError:
    if not os.path.exists(WITNESS) or sys.executable == WITNESS:
        print(f"SKIPPED frontend.published_templates: no transformers here, and none in {WITNESS}")
        sys.exit(77)
    os.execv(WITNESS, [WITNESS] + sys.argv)

CONVERSATIONS = 40
TEXTS = ["Hi", "", " ", "\n", "What is 2 + 2?", "naïve 世界 🙂", "a\nb\n\n", "  spaces  ", "<|im_start|>user", "</think>", "[INST]", "{{ x }}",
         "\"quoted\" & <b>", "'single'", "\\n", "tab\there", "<think>\nold thought\n</think>\n\nanswer", "x" * 300, "\u00a0\u200b", "0"]
CALLS = [{"city": "Paris"}, {}, {"city": "Zürich", "days": 3, "exact": True}, {"list": [1, 2.5, None, "ü"], "nested": {"a": {"b": "</x>"}}}]
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city\nby name & <day>",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "Name, as \"Paris\""}, "days": {"type": "integer", "enum": [1, 2, 3]},
        "exact": {"type": "boolean", "default": False}, "kinds": {"type": "array", "items": {"type": "string"}}}}}},
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}}]
CLOCK = datetime.datetime(2024, 6, 30, 7, 8, 9)  # jinja_probe's


class FixedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return CLOCK


def answer(draw, identifier):
    """An assistant's message: text, or thoughts and text, or calls."""
    message = {"role": "assistant", "content": draw.choice(TEXTS)}
    if draw.random() < 0.3:
        thought = draw.choice(TEXTS)
        message = {"thinking": thought, **message, "reasoning_content": thought}
    if draw.random() < 0.3:
        message["content"] = draw.choice([message["content"], ""])
        message["tool_calls"] = [
            {"id": f"call{identifier:05}{i}", "type": "function",
             "function": {"name": draw.choice(["get_weather", "now"]), "arguments": draw.choice(CALLS)}}
            for i in range(draw.randint(1, 2))]
    return message


def conversation(seed):
    """Messages and the other variables of a template."""
    draw = random.Random(seed)
    messages = [{"role": "system", "content": draw.choice(TEXTS)}] if draw.random() < 0.5 else []
    for turn in range(draw.randint(1, 4)):
        text = draw.choice(TEXTS)
        parts = [{"type": "text", "text": text}, {"type": "text", "text": draw.choice(TEXTS)}]
        messages.append({"role": "user", "content": parts if draw.random() < 0.15 else text})
        if turn == 0 or draw.random() < 0.7:
            messages.append(answer(draw, turn))
            for call in messages[-1].get("tool_calls", []):
                messages.append({"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"],
                                 "content": draw.choice(TEXTS)})
    if draw.random() < 0.6 and messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": draw.choice(TEXTS)})
    variables = {"messages": messages, "tools": TOOLS[: draw.randint(1, 2)] if draw.random() < 0.5 else None, "documents": None,
                 "add_generation_prompt": draw.random() < 0.7, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
                 "pad_token": "<pad>"}
    if draw.random() < 0.4:
        variables["enable_thinking"] = draw.random() < 0.5
    if draw.random() < 0.2:
        variables["reasoning_effort"] = draw.choice(["low", "medium", "high"])
    return variables


def witness_renders(template, variables):
    try:
        return chat_template_utils._compile_jinja_template(template).render(**variables)
    except Exception as error:  # a template raises what it likes; jinja, too
        return error


def main():
    if not (MODELS / "templates").is_dir():
        print(f"SKIPPED frontend.published_templates: expected llama.cpp's templates in {MODELS}/templates (scripts/setup_witness)")
        sys.exit(77)
    chat_template_utils.datetime = FixedClock
    conversations = [conversation(seed) for seed in range(CONVERSATIONS)]
    chosen = sys.argv[2] if len(sys.argv) > 2 else ""
    files = [f for f in sorted((MODELS / "templates").glob("*.jinja")) if chosen in f.name]
    templates = {file.stem: file.read_text() for file in files}
    requests = "".join(json.dumps({"template": text, "variables": v}) + "\n" for text in templates.values() for v in conversations)
    lines = subprocess.run([sys.argv[1]], input=requests, capture_output=True, text=True, check=True).stdout.split("\n")
    rendered = refused = wrong = 0
    for name, text in templates.items():
        for seed, variables in enumerate(conversations):
            found, expected = json.loads(lines.pop(0)), witness_renders(text, variables)
            both_refuse = isinstance(expected, Exception) and "error" in found
            if both_refuse or found.get("text") == expected:
                refused, rendered = refused + both_refuse, rendered + (not both_refuse)
                continue
            wrong += 1
            print(f"{name}, conversation {seed}: expected {expected!r:.3000}\n  found {found!s:.3000}")
    print(f"{len(templates)} templates x {CONVERSATIONS} conversations: {rendered} texts equal, {refused} refused by both, {wrong} differ")
    sys.exit(wrong != 0 or rendered < 20 * len(templates))


main()
