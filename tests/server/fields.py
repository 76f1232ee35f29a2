"""Bodies that hold what docs/openapi.yaml lets them hold: each field at its limit, and far beyond it."""
import json
import pathlib

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMAS = yaml.safe_load((ROOT / "docs/openapi.yaml").read_text())["components"]["schemas"]
COMPLETIONS, CHAT, RESPONSES, MESSAGES, GENERATE, TRL = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/generate", "/generate/"
REQUESTS = {COMPLETIONS: "CompletionRequest", CHAT: "ChatRequest", RESPONSES: "ResponseRequest", MESSAGES: "MessageRequest", GENERATE: "GenerateSampling",
            TRL: "TrlRequest"}
HI = [{"role": "user", "content": "hi"}]
BASES = {COMPLETIONS: {"prompt": "x", "max_tokens": 2, "seed": 1}, CHAT: {"messages": HI, "max_tokens": 2, "seed": 1},
         RESPONSES: {"input": "x", "max_output_tokens": 2, "seed": 1}, MESSAGES: {"messages": HI, "max_tokens": 2, "seed": 1},
         GENERATE: {"max_new_tokens": 2, "sampling_seed": 1}, TRL: {"prompts": ["x"], "max_tokens": 2}}
LONG = 2000  # bytes of a text that has no limit of its own
VOCABULARY = 2900  # tokens that every model here has
KIB = 1 << 10


def distinct(count, size):
    """Texts that have neither beginnings nor ends in common."""
    return [(f"{i:x}z" + "ab" * size)[:size - 6] + f"{i:06x}" if size > 12 else f"{i:x}" for i in range(count)]


def schema_of(size):
    """A schema of about so many bytes."""
    return {"enum": distinct(size // 64, 58)}


def tool(i, size=200):
    return {"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object", "properties": {"p": schema_of(size)}, "required": ["p"]}}}


# What a schema does not say: values that are hard, by field.
HARD = {
    "logit_bias": {str(i): 0.5 for i in range(VOCABULARY)},
    "allowed_token_ids": list(range(VOCABULARY)),
    "bad_words": distinct(1024, 16),
    "response_format": {"type": "json_schema", "json_schema": {"schema": schema_of(120 * KIB)}},
    "structured_outputs": {"choice": distinct(4096, 28)},
    "chat_template_kwargs": {f"k{i}": "v" * 50 for i in range(1000)},
    "tools": [tool(i) for i in range(128)],
    "messages": [{"role": "user" if i % 2 == 0 else "assistant", "content": "word " * 5} for i in range(41)],
    "prompt": ["word " * 20] * 4,  # with n 128 as many answers as one key may have
}
# The same, where a protocol has its own form.
HARD_OF = {
    RESPONSES: {"input": [{"role": "user", "content": "word " * 5}] * 41, "tool_choice": "required", "reasoning": {"effort": "low"},
                "tools": [{"type": "function", "name": f"f{i}", "parameters": {"type": "object"}} for i in range(128)]},
    MESSAGES: {"system": [{"type": "text", "text": "word " * 20}] * 20, "tool_choice": {"type": "any"}, "thinking": {"type": "enabled", "budget_tokens": 1024},
               "tools": [{"name": f"f{i}", "input_schema": {"type": "object"}} for i in range(128)]},
    CHAT: {"tool_choice": "required", "thinking": {"type": "enabled"}, "logprobs": True},
    COMPLETIONS: {},
    GENERATE: {"json_schema": schema_of(120 * KIB), "regex": "(a|b)" * (16 * KIB // 5)},
    TRL: {"prompts": ["word " * 20] * 4, "structured_outputs_regex": "(a|b)" * (16 * KIB // 5), "guided_decoding_regex": "(a|b)" * (16 * KIB // 5),
          "logprobs": 0, "images": [], "generation_kwargs": {"logit_bias": {str(i): 0.5 for i in range(VOCABULARY)}}},
}
# What a field asks for beside it.
BESIDE = {"stream_options": {"stream": True}, "top_logprobs": {"logprobs": True}, "tools": {"tool_choice": "required"}}
ONE_TOOL = {CHAT: [tool(0)], RESPONSES: HARD_OF[RESPONSES]["tools"][:1], MESSAGES: HARD_OF[MESSAGES]["tools"][:1]}
NEEDS_MORE = ("previous_response_id", "return_routed_experts")  # a journal: the attack of its name has one; a model with experts
MORE = {"guided_regex": "(a|b)" * (16 * KIB // 5), "guided_choice": distinct(4096, 28), "guided_json": schema_of(120 * KIB),
        "guided_grammar": "root ::= " + " | ".join(f'"{text}"' for text in distinct(4000, 24)), "user": "u" * (10 << 20), "metadata": {"m": "m" * (10 << 20)},
        "prediction": {"type": "content", "content": "word " * 300}}
# What no request may hold.
BEYOND = {"cache_salt": "s" * (10 << 20), "stop_token_ids": [i % 500 for i in range(4_000_000)], "stop": ["s" * (10 << 20)], "bad_words": ["w" * 10_000] * 1000,
          "guided_regex": "a" * (10 << 20), "guided_choice": distinct(100_000, 20), "tools": [tool(i, 1) for i in range(129)], "response_format": {
              "type": "json_schema", "json_schema": {"schema": schema_of(2 << 20)}}, "chat_template_kwargs": {"k": "v" * (1 << 20)}, **{f"unknown{i}": i for i in range(2000)}}
MANY_STOPS = distinct(100_000, 8)


def at_limit(schema):
    """The largest value that the schema allows, or that is sensible where it has no limit."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if "enum" in schema:
        return schema["enum"][0]
    if "array" in kinds:
        item = schema.get("items", {})
        count = schema.get("maxItems", 8)
        return distinct(count, min(item.get("maxLength", 64), 1024)) if item.get("type") == "string" else [i % VOCABULARY for i in range(count)]
    if "string" in kinds:
        return "s" * schema.get("maxLength", LONG)
    if "boolean" in kinds:
        return True
    if "integer" in kinds or "number" in kinds:
        return schema.get("maximum", 20)
    return {}


def properties(name):
    schema = SCHEMAS[name]
    found = dict(schema.get("properties", {}))
    for part in schema.get("allOf", []):
        found |= SCHEMAS[part["$ref"].rsplit("/", 1)[1]]["properties"]
    return found


def bodies(n):
    """(field, path, body) for each field of each request, with n answers where there may be several."""
    for path, name in REQUESTS.items():
        several = {"n": n, "temperature": 1} if path in (COMPLETIONS, CHAT, GENERATE, TRL) else {}
        fields = {field: HARD_OF[path].get(field, HARD.get(field, at_limit(schema))) for field, schema in properties(name).items()}
        for field, value in (fields | (MORE if path in (COMPLETIONS, CHAT) else {})).items():
            beside = {"tools": ONE_TOOL[path]} if field == "tool_choice" else BESIDE.get(field, {})
            if path == MESSAGES and field == "tools":
                beside = {"tool_choice": {"type": "any"}}
            if field not in ("model", "n", "seed", "temperature", "max_tokens", "max_output_tokens", "max_completion_tokens", "min_tokens", "max_new_tokens",
                             "min_new_tokens", "sampling_seed", "stream", *NEEDS_MORE):
                body = {**BASES[path], **several, **beside, field: value}
                yield field, path, {"text": "x", "sampling_params": body} if path == GENERATE else body


def too_large(n):
    for field, value in BEYOND.items():
        if not field.startswith("unknown"):
            yield field, CHAT, {**BASES[CHAT], "n": n, "temperature": 1, field: value}
    for field in ("stop_token_ids", "stop"):
        yield field, GENERATE, {"text": "x", "sampling_params": {**BASES[GENERATE], "n": n, "temperature": 1, field: BEYOND[field]}}
    yield "stop", CHAT, {**BASES[CHAT], "n": n, "temperature": 1, "stop": MANY_STOPS}
    yield "unknown", COMPLETIONS, {**BASES[COMPLETIONS], **{name: value for name, value in BEYOND.items() if name.startswith("unknown")}}


if __name__ == "__main__":  # what there is
    for field, path, body in [*bodies(128), *too_large(128)]:
        print(f"{path} {field}: {len(json.dumps(body))} bytes")
