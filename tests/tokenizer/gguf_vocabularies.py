#!/usr/bin/env python3
"""Vocabularies of GGUF files as llama.cpp's own tests have them, texts and their tokens: every one equal, of each file whose
pre-tokenizer is known here; others are refused by name. Usage: gguf_vocabularies.py TOKENIZER_PROBE. The files are those of llama.cpp's
models/, which scripts/setup_witness takes from a source package; without them the test is skipped (77)."""
import json, os, pathlib, subprocess, sys, unicodedata

PROBE = sys.argv[1]
MODELS = pathlib.Path(os.environ.get("INVAR_WITNESS", "/opt/witness/bin/python")).parent.parent / "llama.cpp/models"


def tokens_of(path, texts):
    requests = "".join(json.dumps({"text": text, "add": False, "special": False}) + "\n" for text in texts)
    done = subprocess.run([PROBE, path], input=requests, capture_output=True, text=True, timeout=300)
    return [json.loads(line)["ids"] for line in done.stdout.splitlines()] if done.returncode == 0 else done.stderr.strip()


def main():
    files = sorted(path for path in MODELS.glob("*.gguf") if pathlib.Path(f"{path}.inp").exists())
    if not files:
        print(f"SKIPPED tokenizer.gguf_vocabularies: expected llama.cpp's vocabularies in {MODELS} (scripts/setup_witness)")
        sys.exit(77)
    faults, compared = 0, 0
    for path in files:
        texts = pathlib.Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
        expected = [[int(token) for token in line.split()] for line in pathlib.Path(f"{path}.out").read_text().splitlines()]
        found = tokens_of(path, texts)
        if isinstance(found, str):
            print(f"{path.stem}: {found}")
            faults += "tokenizer" not in found and "cut short" not in found
            continue
        # Qwen's texts are composed first (NFC), as its tokenizer.json says; llama.cpp does not.
        differ = [i for i in range(len(expected)) if found[i] != expected[i] and
                  not ("qwen" in path.stem and not unicodedata.is_normalized("NFC", texts[i]))]
        compared += 1
        faults += len(differ)
        print(f"{path.stem}: {len(differ)} of {len(expected)} texts differ" +
              (f", {texts[differ[0]]!r}: {found[differ[0]]}, expected {expected[differ[0]]}" if differ else ""))
    print(f"{compared} vocabularies, {faults} faults")
    sys.exit(faults > 0 or compared == 0)


main()
