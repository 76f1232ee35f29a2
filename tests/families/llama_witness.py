"""llama.cpp (xllamacpp) as a witness of GGUF files that `invar convert` writes of made models: log-probabilities of all tokens behind a few
beginnings of a text, by Invar and by llama.cpp's server on one file. Their difference, the median over the beginnings of the mean, is
below a bound that files with another meaning miss by far. Needs a Python with xllamacpp and numpy (INVAR_LLAMA, or this one), else the
test is skipped (77)."""
import os, pathlib, subprocess, sys, tempfile

PYTHON = os.environ.get("INVAR_LLAMA", "")
try:
    import numpy, xllamacpp
except ImportError:
    if not PYTHON or sys.executable == PYTHON:
        print(f"SKIPPED {pathlib.Path(sys.argv[0]).stem}: no xllamacpp and numpy here, and none in INVAR_LLAMA")
        sys.exit(77)
    os.execv(PYTHON, [PYTHON] + sys.argv)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "weights"))

CONTROL = "--control" in sys.argv
INVAR, TOOL = (word for word in sys.argv[1:] if word != "--control")
TOKENS, BEGINNINGS, QUESTION_MARK = 96, (1, 17, 40, 64, 95, 96), 63
TEXT = [int(t) for t in numpy.random.default_rng(3).integers(0, 512, TOKENS)]


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr}")


def log_probabilities(logits):
    logits = logits.astype(numpy.float64)
    top = logits.max(axis=-1, keepdims=True)
    return logits - top - numpy.log(numpy.exp(logits - top).sum(axis=-1, keepdims=True))


def invars(path, scratch, text=TEXT, adapter=None):
    numpy.array(text, dtype=numpy.int32).tofile(scratch / "tokens")
    run(TOOL, path, scratch / "tokens", scratch / "out", *(["portable", len(text), "auto", 0, adapter] if adapter else []))
    logits = numpy.fromfile(scratch / "out", dtype=numpy.float32).reshape(len(text), -1)
    return log_probabilities(logits)[[count - 1 for count in BEGINNINGS]]


def llamas(path, text=TEXT, vocabulary=512, adapter=None):
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.n_gpu_layers = 256, 1, 0
    params.cpuparams.n_threads = 2
    params.warmup, params.no_extra_bufts = False, True
    if adapter:
        lora = xllamacpp.CommonAdapterLoraInfo()
        lora.path, lora.scale = str(adapter), 1.0
        params.lora_adapters = [lora]
    server = xllamacpp.Server(params)
    out = []
    for count in BEGINNINGS:
        # A token that is a whole character, else nothing is said of it: the bias changes what is chosen alone.
        said = server.handle_completions({"prompt": text[:count], "n_predict": 1, "n_probs": vocabulary, "temperature": 0, "cache_prompt": False,
                                          "logit_bias": [[QUESTION_MARK, 1000.0]]})
        found = said["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        if len(found) != vocabulary:
            sys.exit(f"expected {vocabulary} log-probabilities, found {len(found)}")
        row = numpy.zeros(vocabulary)
        for one in found:
            row[one["id"]] = one["logprob"]
        out.append(row)
    return numpy.array(out)


def apart(a, b):
    return float(numpy.median(numpy.abs(a - b).mean(axis=1)))


def convert(made, path):
    run(INVAR, "convert", made, path, "--gguf", "bf16")


def compare(name, made, other, far, scratch):
    """Whether the file of `made` means the same to both; with the control llama.cpp gets that of another directory."""
    convert(made, scratch / "file.gguf")
    theirs = scratch / "file.gguf"
    if CONTROL:
        theirs = scratch / "other.gguf"
        convert(other(made, scratch / "other"), theirs)
    here, there = invars(scratch / "file.gguf", scratch), llamas(theirs)
    off = apart(here, there)
    print(f"{name}: log-probabilities differ by {off:.3f} (median over {len(here)} positions of the mean), spread {here.std():.2f}", flush=True)
    return off < far


def main(models, other, far):
    """models: flags of make-model by name. other(made, folder) writes a directory with another meaning."""
    faults = 0
    for name, shape in models.items():
        with tempfile.TemporaryDirectory() as folder:
            run(INVAR, "make-model", pathlib.Path(folder) / "made", *shape)
            faults += not compare(name, pathlib.Path(folder) / "made", other, far, pathlib.Path(folder))
    print(f"{faults} faults")
    sys.exit(faults != len(models) if CONTROL else faults > 0)
