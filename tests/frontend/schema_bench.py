#!/usr/bin/env python3
"""JSON-Schema-Bench: of how many schemas answers can be held to. Usage: schema_bench.py PROBE [FOLDER [COUNT]]. FOLDER (INVAR_SCHEMA_BENCH)
is maskbench/data of github.com/guidance-ai/jsonschemabench, one schema with instances in a file; COUNT takes as many at random. Without a
folder the test is skipped (77). It fails where fewer than 95 % of the schemas are held to, or 1 % or more let an invalid instance pass. Valid
instances may be refused: an answer has no names that its schema does not mention."""
import collections
import json
import os
import pathlib
import random
import re
import subprocess
import sys

ANY_LAYOUT = r"[ \t\n\r]*"


class Probe:
    def __init__(self, command):
        self.command = command
        self.start()

    def start(self):
        self.process = subprocess.Popen([self.command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, schema, texts):
        """What it says, or None: it ended."""
        self.process.stdin.write(json.dumps({"form": {"json": schema, "whitespace": ANY_LAYOUT}, "texts": texts, "walks": 0}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.start()
        return None


def verdicts(probe, case):
    """The words that are true of a case."""
    tests = case.get("tests", [])
    said = probe.ask(case["schema"], [json.dumps(test["data"], ensure_ascii=False) for test in tests])
    if said is None:
        return ["ended"], "the probe ended"
    if "error" in said:
        return ["refused"], said["error"]
    found = ["held"]
    wrong = [test["valid"] for test, accepted in zip(tests, said["accepted"]) if accepted != test["valid"]]
    if False in wrong:
        found.append("accepts an invalid one")
    if True in wrong:
        found.append("refuses a valid one")
    return found, ""


def kind_of(file):
    """The data set that a file is of: Github_easy---o1234.json, BFCL_simple_12.json."""
    return re.sub(r"_\d+$", "", file.stem.split("---")[0])


def main():
    folder = sys.argv[2] if len(sys.argv) > 2 else os.environ.get("INVAR_SCHEMA_BENCH")
    if not folder or not pathlib.Path(folder).is_dir():
        print("SKIPPED frontend.schema_bench: INVAR_SCHEMA_BENCH names no folder of JSON-Schema-Bench")
        return 77
    files = sorted(pathlib.Path(folder).glob("*.json"))
    if len(sys.argv) > 3:
        files = sorted(random.Random(1).sample(files, int(sys.argv[3])))
    probe = Probe(sys.argv[1])
    kinds, all_of_them, reasons = collections.defaultdict(collections.Counter), collections.Counter(), collections.Counter()
    for file in files:
        words, reason = verdicts(probe, json.loads(file.read_text(encoding="utf-8")))
        for count in (kinds[kind_of(file)], all_of_them):
            count.update(words + ["all"])
        if reason:
            reasons[reason[:100]] += 1
    for kind, count in sorted(kinds.items()):
        print(f"  {kind:26} {count['all']:5} {100 * count['held'] / count['all']:6.1f} % held to; "
              + ", ".join(f"{word}: {n}" for word, n in count.items() if word not in ("all", "held")))
    for reason, count in reasons.most_common(20):
        print(f"  {count:4} {reason}")
    held, leaks = all_of_them["held"] / len(files), all_of_them["accepts an invalid one"] / len(files)
    print(f"{len(files)} schemas: {100 * held:.1f} % are held to, {100 * leaks:.1f} % of all let an invalid instance pass, "
          f"{100 * all_of_them['refuses a valid one'] / len(files):.1f} % refuse a valid one; {all_of_them['ended']} end the probe")
    return int(held < 0.95 or leaks >= 0.01 or all_of_them["ended"] > 0)


if __name__ == "__main__":
    sys.exit(main())
