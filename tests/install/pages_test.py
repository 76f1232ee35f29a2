#!/usr/bin/env python3
"""Manual pages, shell completion and the service's unit. Usage: pages_test.py INVAR SOURCE"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

invar, source = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2])


def complete(script, *words, **environment):
    """What bash offers for the last of `words`, in an empty folder."""
    quoted = " ".join(f"'{word}'" for word in words)
    command = (f"source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _invar; "
               'printf "%s\\n" "${COMPREPLY[@]}"')
    environment = {"PATH": f"{pathlib.Path(invar).parent}:{os.environ['PATH']}", **environment}
    with tempfile.TemporaryDirectory() as empty:
        return set(subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True, env=environment, cwd=empty).stdout.split())


def check_models_and_values(script):
    assert {"portable", "pair"} == complete(script, "invar", "serve", "--arith", "p"), "values that the help explains"
    assert {"sarathi", "simple-chunking"} == complete(script, "invar", "generate", "--scheduling-policy", "s"), "a list of the help's"
    assert {"key", "none"} == complete(script, "invar", "serve", "--fair-by", ""), "values that the program checks"
    assert not complete(script, "invar", "serve", "--port", "8"), "no value is known"
    with tempfile.TemporaryDirectory() as home:
        for name in ("models--Qwen--Qwen3-0.6B", "models--unsloth--Qwen3-4B-GGUF"):
            (pathlib.Path(home) / "hub" / name).mkdir(parents=True)
        for command in ("chat", "serve", "inspect", "rm"):
            assert {"Qwen/Qwen3-0.6B"} == complete(script, "invar", command, "Qw", HF_HOME=home), command
        assert not complete(script, "invar", "train", "Qw", HF_HOME=home), "a recipe is no model"
        (pathlib.Path(home) / "hub/models--Qwen--$(echo${IFS}run)").mkdir()
        assert {"Qwen/Qwen3-0.6B", "Qwen/$(echo${IFS}run)"} == complete(script, "invar", "chat", "Qw", HF_HOME=home), "a name is no command"


def check_completion(script):
    assert {"generate"} == complete(script, "invar", "gen"), complete(script, "invar", "gen")
    assert {"train", "text"} == complete(script, "invar", "bench", "t")
    assert {"--temperature", "--tensor-parallel-size"} == complete(script, "invar", "generate", "--te")
    assert {"--num-prompts", "--num-warmups"} == complete(script, "invar", "bench", "serve", "--num")
    assert not complete(script, "invar", "corpus", "--te")


def check_pages(folder):
    pages = sorted(folder.glob("*.1"))
    help_text = subprocess.run([invar, "--help"], check=True, capture_output=True, text=True).stdout
    commands = re.findall(r"^  ([a-z][a-z-]*) +\S", help_text.split("Subcommands:")[1], re.M)
    for name in commands:
        assert folder / f"invar-{name}.1" in pages, f"expected a page of invar {name}"
    serve = (folder / "invar-serve.1").read_text()
    for option in re.findall(r"--[a-z][a-z-]+", subprocess.run([invar, "serve", "--help-all"], check=True, capture_output=True,
                                                               text=True).stdout):
        assert option.replace("-", "\\-") in serve, f"expected {option} in invar-serve.1"
    if shutil.which("groff"):
        for page in pages:
            said = subprocess.run(["groff", "-man", "-ww", "-z", page], capture_output=True, text=True).stderr
            assert not said, said
    return len(pages)


def check_unit(folder):
    """systemd's own check, with this program in the unit's place; a misspelt line must be noticed."""
    if not shutil.which("systemd-analyze"):
        return "no systemd-analyze here"
    unit = (source / "packaging/invar.service").read_text().replace("/usr/bin/invar", invar)
    for text, good in ((unit, True), (unit.replace("ProtectSystem=strict", "ProtectSystem=strct"), False)):
        path = folder / "invar.service"
        path.write_text(text)
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True)
        said = [line for line in (done.stdout + done.stderr).splitlines() if "invar" in line]
        assert (done.returncode == 0 and not said) == good, f"expected {'nothing' if good else 'a complaint'}, found {said}"
    return "unit verified"


def check_config():
    """The package's configuration names options that the server has."""
    config = source / "packaging/invar.toml"
    done = subprocess.run([invar, "--config", config, "serve", "no-such-model", "--journal", "/nonexistent/journal"],
                          capture_output=True, text=True)
    assert done.returncode == 1 and "no-such-model" in done.stderr, f"expected the model to be missed, found {done.stderr}"
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as wrong:
        wrong.write("[serve]\nno-such-option = 1\n")
        wrong.flush()
        done = subprocess.run([invar, "--config", wrong.name, "serve"], capture_output=True, text=True)
        assert done.returncode == 2 and "no-such-option" in done.stderr, f"expected a refusal, found {done.stderr}"


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([sys.executable, source / "tools/cli_docs", invar, folder], check=True)
        check_completion(folder / "invar.bash")
        check_models_and_values(folder / "invar.bash")
        pages = check_pages(folder / "man1")
        unit = check_unit(folder)
    check_config()
    print(f"{pages} pages, completion, {unit}, configuration")


if __name__ == "__main__":
    main()
