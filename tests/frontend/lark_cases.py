#!/usr/bin/env python3
"""Grammars of Lark's that answers can be held to, checked from outside. Usage: lark_cases.py PROBE

Every case is a grammar with texts that follow it and texts that do not, or a part of the sentence that refuses it. The probe
(schema_probe) reads each text through the masks, byte by byte and token by token, as a whole answer and as a string of JSON, and draws
random answers. Where the package lark is installed, its Earley parser with the lexer that tries every length of a terminal is the
witness of both."""
import json
import pathlib
import re
import subprocess
import sys

try:
    import lark
except ImportError:
    lark = None

# The grammar that Codex sends with its tool apply_patch.
PATCH = (pathlib.Path(__file__).resolve().parents[1] / "data/apply_patch.lark").read_text()
ADD = "*** Begin Patch\n*** Add File: a.py\n+import os\n+\n+print(\"\\n\")\n*** End Patch"
EDIT = "*** Begin Patch\n*** Update File: a/ü.txt\n*** Move to: b.txt\n@@ def f():\n-x = 1\n+x = 2\n y\n@@\n+z\n*** End of File\n*** End Patch\n"
DELETE = "*** Begin Patch\n*** Delete File: a\n*** Delete File: b\n*** End Patch\n"
SUMS = r"""
start: sum
?sum: product | sum "+" product -> add   // begins with itself
    | sum "-" product
?product: atom | product "*" atom
?atom: NUMBER | "-" atom | NAME | "(" sum ")"
NAME: ("a".."z" | "_") ("a".."z" | DIGIT)*
%import common.NUMBER
%import common.DIGIT
%ignore " "
%ignore /\t/
"""
SELECT = r"""
# A query, as a guide of OpenAI's has it.
start: "SELECT"i SP columns SP "FROM"i SP NAME [SP "LIMIT"i SP INT] ";"
columns: "*" | NAME ("," SP? NAME)~0..2
SP: " "
%import common (INT, CNAME)
NAME: CNAME
"""
LISTS = r"""
start: value
value: list | STRING | "null"
list: "[" [value ("," value)*] "]"
STRING: ESCAPED_STRING
%import common.ESCAPED_STRING
%import common.WS -> SPACE
%ignore SPACE
"""
CASES = [
    ("a patch", PATCH, [ADD, EDIT, DELETE], ["", "*** Begin Patch\n*** End Patch", ADD[:-1], ADD.replace("+import", "import"), EDIT + "x",
                                             DELETE.replace("Begin", "begin"), EDIT.replace("b.txt\n", "\n")]),
    ("sums", SUMS, ["1", "1 + 2*x", "-(a1-_b) * 3.5", "1-2-3", " 7 "], ["", "1+", "(1", "1 ** 2", "A", "1 2", "1..2"]),
    ("queries", SELECT, ["SELECT * FROM t;", "select a,b, c from t limit 10;"], ["SELECT * FROM t", "SELECT a,b,c,d FROM t;", "SELECT  * FROM t;", "SELECT a FROM 1;"]),
    ("lists", LISTS, ["[]", "null", '["a", "b\\"c" , [null]]', ' [ "ü" ]\n'], ["[,]", "[", '"a', "nul l", '["a" "b"]']),
    ("counts", 'start: "a"~2 ("b"~1..3) "c"*', ["aab", "aabbbcc"], ["ab", "aabbbb"]),
    ("a choice over lines", 'start: "a"\n     | "b" x\n\nx: "c"\n  | /[d-f]{2}/', ["a", "bc", "bdf"], ["b", "bd", "bdfe"]),
    ("escapes", r'start: "\n\t\\\"\x41\u00e9" /\/\.\// "\d" "i"i', ['\n\t\\"Aé/./\\dI'], ['\n\t\\"Aé/x/\\dI']),
    ("what looks like another's", 'start: "a ::= b" // x ::= y\n', ["a ::= b"], ["a", "root"]),
    ("any line", 'start: /a.b/s /[a-z]+/i', ["a\nbX", "a.bx"], ["ab", "a\nb1"]),
    ("a rule that is nothing", 'start: "a" none "b"\nnone:', ["ab"], ["a", "b"]),
    ("terminals in terminals", 'start: A+\nA: B "-" B\nB: /[0-9]/ | C\nC: "x".."z"', ["1-2", "x-zy-0"], ["1-", "x--z"]),
]
# Terminals and rules of others: 14,000 deep, and 40 deep, each twice in the next.
DEEP = "start: T0\n" + "".join(f"T{i}: T{i + 1}\n" for i in range(14_000)) + 'T14000: "a"'
RULES = "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(14_000)) + 'r14000: "a"'
DOUBLED = "start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(40)) + 'T40: ""'
REFUSED = [
    ("deep terminals", DEEP, "at most 100 terminals within one another"), ("doubled terminals", DOUBLED, "too large"), ("deep rules", RULES, "64 deep"),
    ("no start", 'a: "b"', '"start"'), ("a name without a rule", 'start: b', '"b"'), ("two of a name", 'start: "a"\nstart: "b"', "second definition"),
    ("rules that begin with each other", 'start: a "x"\na: start "y" | "z"', "begins with itself"), ("a template", 'start: sep{"a", ","}\nsep{x, y}: x (y x)*', "a template"),
    ("a priority", 'start: A\nA.2: "a"', "priority of a terminal"), ("a foreign import", 'start: A\n%import python.NAME -> A', '"common"'),
    ("an unknown import", "start: X\n%import common.X", '"X"'), ("a declaration", "start: A\n%declare A", '"%declare"'), ("a look-ahead", "start: /a(?=b)/", "look-ahead"),
    ("an end", "start: /a$/", "^ or $"), ("a look-behind", r"start: /(?<!a)b/", "not plain"), ("a flag", "start: /a/x", '"x"'), ("a rule in a terminal", 'start: A\nA: b\nb: "c"', '"b"'),
    ("a terminal of itself", 'start: A\nA: "a" A | "b"', "refers to itself"), ("a bracket", 'start: ("a"', "not closed in line 1"), ("a text", 'start: "a', "line 1"),
    ("JSON of a schema", 'start: %json {"type": "null"}', '"%json"'), ("a token", "start: <|x|>", "no part of a rule"),
]


class Probe:
    def __init__(self, command):
        self.process = subprocess.Popen([command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, form, texts=(), walks=0):
        self.process.stdin.write(json.dumps({"form": form, "texts": texts, "walks": walks}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def witness(grammar):
    """Lark's own parser, or None. It has no terminal that may be empty: such a pattern is one that may be left out."""
    if lark is None:
        return None
    grammar = re.sub(r"/\(\.\*\)/", "(/(.+)/)?", grammar.replace("\n#", "\n//"))
    parser = lark.Lark(grammar, parser="earley", lexer="dynamic_complete")

    def parses(text):
        try:
            parser.parse(text)
        except lark.exceptions.LarkError:
            return False
        return True
    return parses


def check_case(probe, grammar, good, bad):
    texts = [*good, *bad]
    expected = [True] * len(good) + [False] * len(bad)
    said = probe.ask({"grammar": grammar}, texts, 20)
    if "error" in said:
        return [f"refused: {said['error']}"]
    inside = probe.ask({"json": {"type": "string", "x-lark": grammar}}, [json.dumps(text, ensure_ascii=False) for text in texts], 20)
    wrong = [f"{'rejects' if wanted else 'accepts'} {text!r} {where}" for where, found in (("", said), ("in JSON", inside))
             for text, wanted, got in zip(texts, expected, found["accepted"]) if wanted != got]
    parses = witness(grammar)
    if parses is None:
        return wrong
    wrong += [f"lark itself says another thing of {text!r}" for text, wanted in zip(texts, expected) if parses(text) != wanted]
    drawn = [text for text in said["walked"] if text is not None] + [json.loads(text) for text in inside["walked"] if text is not None]
    if len(drawn) < 10:
        wrong.append(f"only {len(drawn)} of 40 answers ended")
    return wrong + [f"draws {text[:120]!r}, which lark refuses" for text in drawn if len(text) < 400 and not parses(text)]


def main():
    probe, failed = Probe(sys.argv[1]), 0
    for name, grammar, good, bad in CASES:
        wrong = check_case(probe, grammar, good, bad)
        failed += bool(wrong)
        print(f"  {name:32} {'; '.join(wrong) or 'as it should be'}")
    for name, grammar, part in REFUSED:
        said = probe.ask({"grammar": grammar}).get("error", "nothing")
        if part not in said:
            failed += 1
            print(f"  {name:32} expected a refusal with {part!r}, found {said}")
    beside = {"type": "string", "x-lark": 'start: "ab"'}
    for other in ({"pattern": "a"}, {"minLength": 2}):
        said = probe.ask({"json": {**beside, **other}})
        if "x-lark" not in said.get("error", ""):
            failed += 1
            print(f"  expected a refusal beside {other}, found {said}")
    said = probe.ask({"json": {**beside, "enum": ["a", "ab"]}}, ['"a"', '"ab"'])  # those that follow the grammar
    if said.get("accepted") != [False, True]:
        failed += 1
        print(f"  expected the text that follows the grammar of a list, found {said}")
    print(f"{len(CASES)} grammars, {len(REFUSED)} refused ones, {'with' if lark else 'without'} lark as the witness: {failed} are wrong")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
