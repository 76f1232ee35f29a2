#!/usr/bin/env python3
"""GGUF files of Gemma 4 beside llama.cpp: what `invar convert --gguf bf16` writes opens there and means the same (llama_witness.py).

Three made models: layers that share keys, with what tokens bring to each layer; keys that are values, with heads of 512; experts.
Usage: gguf_gemma4_witness.py INVAR FAMILY_LOGITS [--control]; the control gives llama.cpp a file whose layers end by other numbers."""
import shutil

import llama_witness
from gguf_files import read_directory, write_directory

SIZES = ["--hidden", 256, "--heads", 8, "--kv-heads", 4, "--head-dim", 32, "--ffn", 256, "--vocab", 512]
# llama.cpp takes it that the last two layers with keys of their own are one with a window and one without: here those before 2.
MODELS = {"shared": ["--preset", "tiny", "--family", "gemma4_text", "--layers", 4, *SIZES],
          "512": ["--preset", "gemma-4-31b", "--layers", 6, *SIZES],
          "experts": ["--preset", "gemma-4-26b-a4b", "--layers", 6, "--experts", 8, "--experts-per-token", 2, *SIZES]}


def with_other_ends(made, folder):
    """The same directory with the numbers that end layers doubled."""
    shutil.copytree(made, folder)
    tensors = {name: value * 2 if name.endswith("layer_scalar") else value for name, value in read_directory(made).items()}
    write_directory(folder, tensors)
    return folder


llama_witness.main(MODELS, with_other_ends, 0.2)
