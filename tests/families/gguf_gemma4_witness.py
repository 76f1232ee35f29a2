#!/usr/bin/env python3
"""GGUF files of Gemma 4 beside llama.cpp: what `invar convert --gguf bf16` writes opens there and means the same.

Three made models: layers that share keys, with what tokens bring to each layer; keys that are values, with heads of 512; experts. The
log-probabilities of all tokens behind a few beginnings of a text, by Invar and by llama.cpp's server on one file: their difference (the
median over the beginnings of the mean) is below a bound that files with another meaning miss by far.
Usage: gguf_gemma4_witness.py INVAR FAMILY_LOGITS [--control]; the control gives llama.cpp a file whose layers end by other numbers. Needs
a Python with xllamacpp and numpy (INVAR_LLAMA, or this one), else it is skipped (77)."""
import os, pathlib, shutil, subprocess, sys, tempfile

PYTHON = os.environ.get("INVAR_LLAMA", "")
try:
    import numpy, xllamacpp
except ImportError:
    if not PYTHON or sys.executable == PYTHON:
        print("SKIPPED families.gguf_gemma4_witness: no xllamacpp and numpy here, and none in INVAR_LLAMA")
        sys.exit(77)
    os.execv(PYTHON, [PYTHON] + sys.argv)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "weights"))
from gguf_hybrids import read_directory, write_directory

CONTROL = "--control" in sys.argv
INVAR, TOOL = (word for word in sys.argv[1:] if word != "--control")
SIZES = ["--hidden", 256, "--heads", 8, "--kv-heads", 4, "--head-dim", 32, "--ffn", 256, "--vocab", 512]
# llama.cpp takes it that the last two layers with keys of their own are one with a window and one without: here those before 2.
MODELS = {"shared": ["--preset", "tiny", "--family", "gemma4_text", "--layers", 4, *SIZES],
          "512": ["--preset", "gemma-4-31b", "--layers", 6, *SIZES],
          "experts": ["--preset", "gemma-4-26b-a4b", "--layers", 6, "--experts", 8, "--experts-per-token", 2, *SIZES]}
TOKENS, BEGINNINGS, FAR, QUESTION_MARK = 96, (1, 17, 40, 64, 95, 96), 0.2, 63
TEXT = [int(t) for t in numpy.random.default_rng(3).integers(0, 512, TOKENS)]


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr}")


def log_probabilities(logits):
    logits = logits.astype(numpy.float64)
    top = logits.max(axis=-1, keepdims=True)
    return logits - top - numpy.log(numpy.exp(logits - top).sum(axis=-1, keepdims=True))


def invars(path, scratch):
    numpy.array(TEXT, dtype=numpy.int32).tofile(scratch / "tokens")
    run(TOOL, path, scratch / "tokens", scratch / "out")
    logits = numpy.fromfile(scratch / "out", dtype=numpy.float32).reshape(TOKENS, -1)
    return log_probabilities(logits)[[count - 1 for count in BEGINNINGS]]


def llamas(path):
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.n_gpu_layers = 256, 1, 0
    params.cpuparams.n_threads = 2
    params.warmup, params.no_extra_bufts = False, True
    server = xllamacpp.Server(params)
    out = []
    for count in BEGINNINGS:
        # A token that is a whole character, else nothing is said of it: the bias changes what is chosen alone.
        said = server.handle_completions({"prompt": TEXT[:count], "n_predict": 1, "n_probs": 512, "temperature": 0, "cache_prompt": False,
                                          "logit_bias": [[QUESTION_MARK, 1000.0]]})
        found = said["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        if len(found) != 512:
            sys.exit(f"expected 512 log-probabilities, found {len(found)}")
        row = numpy.zeros(512)
        for one in found:
            row[one["id"]] = one["logprob"]
        out.append(row)
    return numpy.array(out)


def convert(made, path):
    run(INVAR, "convert", made, path, "--gguf", "bf16")


def with_other_ends(made, folder):
    """The same directory with the numbers that end layers doubled."""
    shutil.copytree(made, folder)
    tensors = {name: value * 2 if name.endswith("layer_scalar") else value for name, value in read_directory(made).items()}
    write_directory(folder, tensors)
    return folder


def main():
    faults = 0
    for name, shape in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            scratch = pathlib.Path(folder)
            run(INVAR, "make-model", scratch / "made", *shape)
            convert(scratch / "made", scratch / "file.gguf")
            here, theirs = invars(scratch / "file.gguf", scratch), scratch / "file.gguf"
            if CONTROL:
                theirs = scratch / "other.gguf"
                convert(with_other_ends(scratch / "made", scratch / "other"), theirs)
            there = llamas(theirs)
            off = float(numpy.median(numpy.abs(here - there).mean(axis=1)))
            faults += not off < FAR
            print(f"{name}: log-probabilities differ by {off:.3f} (median over {len(here)} positions of the mean), spread {here.std():.2f}", flush=True)
    print(f"{faults} faults")
    sys.exit(faults != len(MODELS) if CONTROL else faults > 0)


main()
