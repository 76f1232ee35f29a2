#!/usr/bin/env python3
"""GGUF files of models with states beside llama.cpp: what `invar convert --gguf bf16` writes opens there and means the same
(llama_witness.py). Usage: gguf_states_witness.py INVAR FAMILY_LOGITS [--control]; the control gives llama.cpp a file whose decays, or taps
where there are no decays, are others."""
import shutil

import llama_witness
from gguf_files import read_directory, write_directory

SIZES = ["--preset", "tiny", "--heads", 8, "--kv-heads", 4, "--head-dim", 32, "--ffn", 256, "--vocab", 512]
EXPERTS = ["--experts", 8, "--experts-per-token", 2]
MODELS = {"qwen3_next": EXPERTS, "qwen3_5_text": [], "qwen3_5_moe_text": EXPERTS, "lfm2": [], "lfm2_moe": EXPERTS,
          "granitemoehybrid": EXPERTS, "nemotron_h": [], "falcon_h1": [], "kimi_linear": EXPERTS}
# llama.cpp has Granite's states twice as wide as the stream; a file cannot say that a Nemotron has dense networks and experts.
HIDDEN, LAYERS = {"granitemoehybrid": 128}, {"nemotron_h": 3}


def with_other_states(made, folder):
    """The same directory with other numbers of its states."""
    shutil.copytree(made, folder)
    tensors = read_directory(made)
    decays = [name for name in tensors if name.endswith("A_log")]
    for name in decays or [name for name in tensors if name.endswith("conv.conv.weight")]:
        tensors[name] = tensors[name] + 3 if decays else tensors[name] * -1
    write_directory(folder, tensors)
    return folder


llama_witness.main({family: [*SIZES, "--family", family, "--hidden", HIDDEN.get(family, 256), "--layers", LAYERS.get(family, 4), *own]
                    for family, own in MODELS.items()}, with_other_states, 0.2)
