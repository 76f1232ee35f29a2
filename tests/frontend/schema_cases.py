"""schema_cases.py PROBE [--full]: which JSON schemas answers can be held to, checked from outside.

Every line of schema_cases.jsonl is a schema with values that follow it and values that do not, or a part of the sentence
that refuses it. The probe reads each value through the masks, byte by byte and token by token, in three layouts: what
follows the schema must be accepted and what does not must be rejected. Then it draws random answers from the masks, and
jsonschema (python3-jsonschema) must accept each of them that no fault is found in at its end, but where a case says "unknown": a word that it does not know. Prints a table; exits 1 where something differs."""
import json
import pathlib
import re
import subprocess
import sys

import jsonschema

CASES = pathlib.Path(__file__).with_name("schema_cases.jsonl")
PATTERNS = {  # of formats that jsonschema needs other packages for
    "email": r"[^@\s]+@[^@\s]+\.[A-Za-z]{2,}", "hostname": r"(?=.{1,253}$)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*",
    "uri": r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]+", "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "uuid4": r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-4[0-9a-fA-F]{3}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    "duration": r"P(\d+W|(?=.)(\d+Y)?(\d+M)?(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+S)?)?)",
    "date-time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"}


def checker():
    formats = jsonschema.FormatChecker(["date", "ipv4", "ipv6"])
    for name, pattern in PATTERNS.items():
        formats.checks(name)(lambda value, p=pattern: not isinstance(value, str) or re.fullmatch(p, value) is not None)
    return formats


def validator_of(schema):
    text = json.dumps(schema)
    draft = jsonschema.Draft202012Validator
    if '"items": [' in text or "draft-07" in text:
        draft = jsonschema.Draft7Validator
    if '"exclusiveMinimum": true' in text:
        draft = jsonschema.Draft4Validator
    return draft(schema, format_checker=checker())


ANY_LAYOUT = "( |\n {0,16})?"  # grammar::kAnyLayout


def layouts(value):
    yield json.dumps(value, ensure_ascii=False)
    yield json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    indented = json.dumps(value, ensure_ascii=False, indent=2)
    if "\n" + 17 * " " not in indented:  # further in than answers may be
        yield indented


def instance(value):
    return value["repeated"][0] * value["repeated"][1] if isinstance(value, dict) and "repeated" in value else value


def nested_anyof(levels):
    return {"type": "string"} if levels == 0 else {"anyOf": [nested_anyof(levels - 1)] * 2, "minLength": 1}


def deep(levels, make):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = make(schema)
    return schema


def hostile():
    """Forms that must be refused by a sentence, or be held to, within two seconds of the processor's time."""
    yield "10 MB of titles", {"json": {"type": "string", "title": "x" * 10_000_000}}
    yield "10 MB of enum", {"json": {"enum": ["x%d" % i for i in range(900_000)]}}
    yield "20000 of enum", {"json": {"enum": ["x%d" % i for i in range(20_000)]}}
    yield "1000 levels of arrays", {"json": deep(1000, lambda s: {"type": "array", "items": s})}
    yield "1000 levels of anyOf", {"json": deep(1000, lambda s: {"anyOf": [s, {"type": "null"}]})}
    yield "2^14 alternatives", {"json": nested_anyof(14)}
    yield "20 x 20 x 20 x 20 alternatives", {"json": {"allOf": [{"anyOf": [{"minLength": i} for i in range(20)]}] * 4}}
    yield "20000 properties in allOf", {"json": {"allOf": [
        {"properties": {f"{c}{i}": {"type": "string"} for i in range(20_000)}} for c in "ab"]}}
    yield "500 patterns with lengths", {"json": {"type": "object", "properties": {
        f"p{i}": {"type": "string", "pattern": f"^[a-z]*x{i}.*y$", "minLength": 900, "maxLength": 1000} for i in range(500)}}}
    yield "a pattern of exponential size", {"json": {"type": "string", "pattern": "(a|b)*a(a|b){30}", "minLength": 3}}
    yield "10000 references in a row", {"json": {"$ref": "#/$defs/d0", "$defs": {
        f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(10_000)} | {"d10000": {"type": "null"}}}}
    yield "two types that grow together", {"json": {"$ref": "#/$defs/z", "$defs": {
        **{f"x{i}": {"type": "object", "properties": {"n": {"allOf": [{"$ref": f"#/$defs/x{i}"}, {"$ref": f"#/$defs/x{(i + 1) % 12}"}]}}}
           for i in range(12)}, "z": {"$ref": "#/$defs/x0"}}}}
    yield "multiples of a large number", {"json": {"type": "integer", "multipleOf": 999_983}}
    yield "counts within counts", {"grammar": 'root ::= ((("a"{1,99}){1,99}){1,99}){1,99}'}
    yield "left recursion", {"grammar": 'root ::= root "a" | "b"'}
    yield "2 MB of grammar", {"grammar": 'root ::= "' + "a" * 2_000_000 + '"'}
    yield "10000 rules in a row", {"grammar": "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(10_000)) + 'r10000 ::= "a"'}


class Probe:
    def __init__(self, command):
        self.process = subprocess.Popen([command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, form, texts, walks):
        self.process.stdin.write(json.dumps({"form": form, "texts": texts, "walks": walks}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the probe ended at {str(form)[:200]}")
        return json.loads(line)


def check_case(probe, case, walks):
    """What is wrong with a case, and how many answers were drawn."""
    schema, wrong = case["schema"], []
    valid = [instance(value) for value in case.get("valid", [])]
    invalid = [instance(value) for value in case.get("invalid", [])]
    texts = [(text, True) for value in valid for text in layouts(value)]
    texts += [(text, False) for value in invalid for text in layouts(value)]
    said = probe.ask({"json": schema, "whitespace": ANY_LAYOUT}, [text for text, _ in texts], case.get("walks", walks))
    if "refused" in case:
        if case["refused"] not in said.get("error", ""):
            wrong.append(f"expected a refusal with {case['refused']!r}, found {str(said)[:200]}")
        return wrong, 0
    if "error" in said:
        return [f"refused: {said['error']}"], 0
    for (text, expected), found in zip(texts, said["accepted"]):
        if found != expected:
            wrong.append(f"{'rejects' if expected else 'accepts'} {text[:120]!r}")
    # Without another word only the compact layout is held to.
    compact = [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in valid]
    plain = probe.ask({"json": schema}, [text for text, _ in texts], 1)
    for (text, expected), found in zip(texts, plain["accepted"]):
        if found != (expected and text in compact):
            wrong.append(f"{'rejects' if text in compact else 'accepts'} the layout of {text[:120]!r}")
    validator = validator_of(schema)
    for text, fault in zip(said["walked"], said["faults"]):
        if text is None:
            wrong.append("an answer did not end")
            continue
        errors = [e.message for e in validator.iter_errors(json.loads(text))] if "unknown" not in case else []
        if "unknown" not in case and bool(errors) != bool(fault):  # what is found at an answer's end is found
            wrong.append(f"draws {text[:120]!r}: {errors[0][:120] if errors else 'no error'}, but {fault}")
    return wrong, sum(not fault for fault in said["faults"])


def main():
    sys.setrecursionlimit(10_000)
    probe, walks = Probe(sys.argv[1]), 20 if "--full" in sys.argv else 3
    failed = values = drawn = refused = 0
    cases = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    for case in cases:
        wrong, walked = check_case(probe, case, walks)
        failed += bool(wrong)
        refused += "refused" in case
        drawn += walked
        values += len(case.get("valid", [])) + len(case.get("invalid", []))
        print(f"  {'DIFFERS' if wrong else 'refused' if 'refused' in case else 'ok':8} {case['name']}")
        for what in wrong:
            print(f"           {what}")
    for name, form in hostile():
        said = probe.ask(form, [], 0)
        seconds = said["seconds"]
        failed += seconds > 2
        print(f"  {'DIFFERS' if seconds > 2 else 'hostile':8} {name}: {seconds:.2f} s, {said.get('error', 'held to')[:150]}")
    print(f"{len(cases)} schemas: {len(cases) - refused} supported, {refused} refused with a sentence; {values} values in three "
          f"layouts, {drawn} drawn answers; {failed} differ")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
