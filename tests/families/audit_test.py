#!/usr/bin/env python3
"""The audit of every family: ranks, drafters, schedulers, chunks and the rest give one hash. Tiny models of random weights
(tiny_*configs.json). Usage: audit_test.py INVAR [--device cuda] [--arith ORDER] [FAMILY ...]; --only-device compares the
logits hash of one answer on the CPU and on the device instead, or expects that the device refuses the family."""
import json, pathlib, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parent
# Families with a part that CPUs alone compute.
CPU_ONLY = ("llama4_text", "mimo_v2_flash", "deepseek_v32", "glm_moe_dsa", "nemotron_h_latent")
TEXT = "The order of every sum is fixed once, as a small tree that depends on the shape of the model only. " * 5


def run(*command, seconds=600):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=seconds)
    return done.returncode, done.stdout, done.stderr.strip()


def audit(invar, folder, flags):
    status, said, error = run(invar, "audit", folder, "--load-format", "dummy:1", *flags)
    rows = [line for line in said.split("\n") if line.endswith("same bits") or "same bits," in line]
    failed = [line for line in said.split("\n") if "FAILED" in line]
    return status == 0, f"{len(rows)} axes of same bits" if status == 0 else "; ".join(failed) or error


def answer(invar, folder, order, device):
    _, said, error = run(invar, "generate", folder, "--load-format", "dummy:1", "--arith", order, "--device", device, "--ignore-eos",
                         "--temperature", "0.8", "--seed", "5", "--max-model-len", "1024", "--max-tokens", "24", "-p", TEXT, "--json")
    return json.loads(said)["logits_hash"] if said else error


def main():
    arguments = sys.argv[2:]
    only_device = "--only-device" in arguments
    flags = [a for a in arguments if a.startswith("--") and a != "--only-device"]
    values = [arguments[arguments.index(flag) + 1] for flag in flags]
    configs = {name: config for path in sorted(ROOT.glob("tiny_*configs.json")) for name, config in json.load(open(path)).items()}
    names = [a for a in arguments if not a.startswith("--") and a not in values] or list(configs)
    faults, hashes = 0, set()
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "config.json").write_text(json.dumps(configs[name]))
            if only_device:
                device = dict(zip(flags, values)).get("--device", "cpu")
                pairs = {order: [answer(sys.argv[1], folder, order, d) for d in ("cpu", device)] for order in ("portable", "hopper")}
                if device != "cpu" and name.startswith(CPU_ONLY):
                    good = all(len(a) == 64 and "expected the device cpu" in b for a, b in pairs.values())
                else:
                    good = all(a == b and len(a) == 64 for a, b in pairs.values())
                said = ", ".join(f"{order} {a[:16]} {b[:16]}" for order, (a, b) in pairs.items())
                hashes |= {a for a, _ in pairs.values()}
            else:
                good, said = audit(sys.argv[1], folder, [word for pair in zip(flags, values) for word in pair])
        faults += not good
        print(f"{name:18} {'equal' if good else 'DIFFERS'}: {said}", flush=True)
    if only_device and len(hashes) < len(names):  # the control: families and orders differ
        print(f"expected different hashes, found {len(hashes)} of {2 * len(names)}")
        faults += 1
    print(f"{len(names)} families, {faults} faults")
    sys.exit(faults > 0)


main()
