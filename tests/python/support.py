"""What the tests of the Python package have in common: a small model with random weights, and the program."""
import json
import os
import subprocess
from typing import Any, Optional

import invar

PROGRAM = os.environ["INVAR_PROGRAM"]  # of the same build


def tiny(seed: int = 7, kind: type = invar.LLM, engine_seed: Optional[int] = None, **changes: Any) -> Any:
    """A model of random weights, open. engine_seed: of the seeds that it draws."""
    args = dict(load_format=f"dummy:{seed}", threads=1, max_model_len=256, kv_cache_gib=1 / 64, max_num_seqs=8)
    return kind(model="tiny", seed=engine_seed, **{**args, **changes})


def program(*args: str, check: bool = True) -> str:
    """What the program prints."""
    return subprocess.run([PROGRAM, *args], check=check, capture_output=True, text=True).stdout


def generate_by_program(prompt: str, **flags: Any) -> dict[str, Any]:
    """The answer of `invar generate` for the same model."""
    listed = [part for name, value in flags.items() for part in ("--" + name.replace("_", "-"), str(value))]
    return json.loads(program("generate", "tiny", "--load-format", "dummy:7", "--threads", "1", "--json", "--max-model-len",
                              "256", "--kv-cache-memory", "0.015625", "--prompt", prompt, *listed))
