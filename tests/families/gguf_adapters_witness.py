#!/usr/bin/env python3
"""Adapters beside llama.cpp (llama_witness.py): a GGUF file in Q8_0 with an adapter beside every matrix of its layers, here and there.

The two programs differ by far less than the adapter moves either.
Usage: gguf_adapters_witness.py INVAR FAMILY_LOGITS [--control]; the control gives llama.cpp the adapter with another alpha."""
import pathlib, sys, tempfile

from llama_witness import CONTROL, TEXT, apart, invars, llamas
from gguf_adapters_test import ALPHA, KEYS, Adapter
from gguf_models import Made

MOST = 0.1  # of what the adapter moves
BYTES = [token % 256 for token in TEXT]


def main():
    faults = 0
    for architecture in ("llama", "qwen3"):
        with tempfile.TemporaryDirectory() as folder:
            scratch, adapter = pathlib.Path(folder), Adapter(architecture)
            file = Made(architecture, 3, ["q8_0"]).write_gguf(scratch / "file.gguf")
            keys = KEYS | {"general.architecture": architecture, "adapter.lora.alpha": ALPHA * (1.5 if CONTROL else 1)}
            here = invars(file, scratch, BYTES, adapter.write_peft(scratch / "adapter"))
            there = llamas(file, BYTES, here.shape[1], adapter.write_gguf(scratch / "lora.gguf", keys))
            off, moved = apart(here, there), apart(here, invars(file, scratch, BYTES))
            faults += not off < MOST * moved
            print(f"{architecture}: the programs differ by {off:.4f}, the adapter moves {moved:.4f} (medians over positions of means)", flush=True)
    print(f"{faults} faults")
    sys.exit(faults != 2 if CONTROL else faults > 0)


main()
