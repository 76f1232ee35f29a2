#!/usr/bin/env python3
"""tekken.json against Mistral's own library: both files that mistral_common brings along, 300 odd strings each.
Usage: tekken_witness.py TOKENIZER_PROBE. Needs a Python with mistral_common (INVAR_WITNESS, or
/opt/witness/bin/python); without one the test says so and is skipped (77)."""
import json, os, pathlib, random, subprocess, sys, tempfile

WITNESS = os.environ.get("INVAR_WITNESS", "/opt/witness/bin/python")
try:
    import mistral_common
    from mistral_common.tokens.tokenizers.tekken import SpecialTokenPolicy, Tekkenizer
except ImportError:
    if not os.path.exists(WITNESS) or sys.executable == WITNESS:
        print(f"SKIPPED tokenizer.tekken_is_mistral_commons: no mistral_common here, and none in {WITNESS}")
        sys.exit(77)
    os.execv(WITNESS, [WITNESS] + sys.argv)

WORDS = ["Hello", "world", "don't", "I'M", " naïve", "ΑΒΓ", "привет", "你好", "世界", "مرحبا", "नमस्ते", "🙂", "👩‍👩‍👧", "é",
         "\u0301", "12345", "3.14", "x_y", "</s>x", "--", "...", "\t", "\n", "\r\n", "  ", "   ", "\u00a0", "\u3000", "{\"a\": 1}",
         "def f(x):", "return", "//", "/*", "ǅ", "ʰ", "ﬁ", "\x00", "\x7f", "\ufeff", "𝔘", "a" * 40, "ab" * 300, " " * 90]


def odd_strings(count):
    draw = random.Random(7)
    yield from ("", " ", "\n", "a", " a", "A a", "<s>plain", *WORDS)
    for _ in range(count - len(WORDS) - 7):
        yield draw.choice(["", " "]).join(draw.choice(WORDS) for _ in range(draw.randint(1, 9)))


def main():
    probe = sys.argv[1]
    wrong = 0
    for file in sorted((pathlib.Path(mistral_common.__file__).parent / "data").glob("tekken_*.json")):
        witness = Tekkenizer.from_file(str(file))
        texts = list(odd_strings(300))
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(file, f"{folder}/tekken.json")
            requests = "".join(json.dumps({"text": t, "add": True, "special": False}) + "\n" for t in texts)
            lines = subprocess.run([probe, folder], input=requests, capture_output=True, text=True, check=True).stdout
        for text, line in zip(texts, lines.split("\n"), strict=False):
            found, expected = json.loads(line), witness.encode(text, bos=True, eos=False)
            back = "".join(witness.id_to_piece(i) for i in expected[:1]) + text
            if found.get("ids") != expected or found["text"] != back:
                wrong += 1
                print(f"{file.name} {text!r}: expected {expected}, found {found}")
        control = sum(witness.encode(t, bos=False, eos=False) == json.loads(l)["ids"] for t, l in zip(texts, lines.split("\n")))
        print(f"{file.name}: {len(texts)} texts, {witness.n_words} tokens, {control} equal without begin-of-text (the control)")
        wrong += control != 0
    print("all equal" if wrong == 0 else f"{wrong} differ")
    sys.exit(wrong != 0)


main()
