#!/usr/bin/env python3
"""Runs the fenced commands of README.md and docs in temporary folders, with small models.

Every fence that holds commands says what it is, so that none is forgotten:

  sh           run with bash -euo pipefail; must succeed
  sh server    started in the background; later blocks of the page run once it answers
  sh long      not run: takes minutes, installs packages, or needs a terminal
  sh gpu       not run: needs a GPU
  python, js   run with OpenAI's package; python where it is installed, js with --node-modules
  python invar run with the Python package, where --python and --python-path say how
  python torch the same by a Python that has PyTorch, --torch-python

A page's blocks run in order in one folder, in which models, recipes, scripts and the like are those of the repository and
Qwen3-0.6B is a tiny made model. Port 8000 stands for a free one.

  run_commands.py INVAR                             # all pages
  run_commands.py INVAR --page docs/server.md
  run_commands.py INVAR --node-modules DIR          # with openai in DIR/node_modules
  run_commands.py INVAR --self-test                 # broken pages must be noticed
"""

import argparse
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/server"))
from served import free_port
KINDS = {"sh", "sh server", "sh long", "sh gpu", "python", "python invar", "python torch", "js"}
PACKAGE_KINDS = {"python invar": "python", "python torch": "torch_python"}  # by the argument that runs them
OTHER_LANGUAGES = {"json", "toml", "c++", "cpp", "cmake", "text", "ini", "dockerfile", "yaml"}
LOOKS_LIKE_A_COMMAND = re.compile(r"^(\$ )?(\./|scripts/|tools/|build/|invar |curl |cmake |apt|sudo |docker |ctest |pip )", re.M)
LINKED = ["models", "recipes", "scripts", "tools", "tests", "bench", "examples", "docs", "packaging"]
SECONDS = 120  # for a block, on a busy machine


class Failure(Exception):
    pass


def fences(page, text):
    """(line, kind, content) of every fence."""
    found, lines = [], text.splitlines()
    i = 0
    while i < len(lines):
        if re.match(r"^(<{7}|>{7}) ", lines[i]):
            raise Failure(f"{page}:{i + 1}: found the mark of an unresolved conflict")
        opening = re.match(r"^( *)```(.*)$", lines[i])
        if not opening:
            if re.match(r"^    (invar|curl|cmake|\./scripts) ", lines[i]):
                raise Failure(f"{page}:{i + 1}: expected commands in a fence, found an indented block")
            i += 1
            continue
        end = next((n for n in range(i + 1, len(lines)) if lines[n].strip() == "```"), None)
        if end is None:
            raise Failure(f"{page}:{i + 1}: expected an end of this fence, found none")
        kind, content = opening[2].strip(), "\n".join(lines[i + 1:end]) + "\n"
        if kind not in KINDS and kind not in OTHER_LANGUAGES and (kind or LOOKS_LIKE_A_COMMAND.search(content)):
            raise Failure(f"{page}:{i + 1}: expected one of {', '.join(sorted(KINDS))} for a fence with commands, "
                          f"found \"{kind}\"")
        found.append((i + 1, kind, content))
        i = end + 1
    return found


def check_links(page, text):
    """Every link to a file of the repository has its file."""
    for link in re.finditer(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", re.sub(r"```.*?```", "", text, flags=re.S)):
        if "://" not in link[1] and not (ROOT / page).parent.joinpath(link[1]).exists():
            raise Failure(f"{page}: expected a file at the link {link[1]}, found none")


class Page:
    """A page's folder and the server that its blocks started."""

    def __init__(self, name, args, models):
        self.name, self.args, self.server = name, args, None
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="invar-docs-"))
        self.port = free_port()
        for link in LINKED:
            if (ROOT / link).exists():
                (self.folder / link).symlink_to(ROOT / link)
        (self.folder / "Qwen3-0.6B").symlink_to(models / "Qwen3-0.6B")
        if args.node_modules:
            (self.folder / "node_modules").symlink_to(args.node_modules)
        self.environment = dict(os.environ, HOME=str(self.folder), INVAR_HOME=str(ROOT),
                                PATH=f"{pathlib.Path(args.invar).parent}:{os.environ['PATH']}")
        if args.python_path:
            self.environment["PYTHONPATH"] = str(pathlib.Path(args.python_path).resolve())

    def run(self, line, kind, content):
        content = content.replace("8000", str(self.port))
        if kind == "sh server":
            return self.start_server(line, content)
        if kind == "sh":
            command = ["bash", "-euo", "pipefail", "-c", content]
        elif kind == "python":
            command = [sys.executable, "-c", content]
        elif kind in PACKAGE_KINDS:
            command = [getattr(self.args, PACKAGE_KINDS[kind]), "-c", content]
        else:
            (self.folder / "example.mjs").write_text(content)
            command = ["node", "example.mjs"]
        started = time.monotonic()
        try:
            done = subprocess.run(command, cwd=self.folder, env=self.environment, text=True, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name}:{line}: expected an end within {SECONDS} s, found none")
        if done.returncode != 0:
            raise Failure(f"{self.name}:{line}: expected exit status 0, found {done.returncode}:\n{done.stdout[-2000:]}")
        print(f"{time.monotonic() - started:6.1f} s  {self.name}:{line}", flush=True)

    def start_server(self, line, content):
        self.stop_server()
        log = open(self.folder / "server.log", "w")
        self.server = subprocess.Popen(["bash", "-c", "exec " + content.strip()], cwd=self.folder, env=self.environment,
                                       stdout=log, stderr=log)
        for _ in range(SECONDS * 10):
            if self.server.poll() is not None:
                raise Failure(f"{self.name}:{line}: expected a server, found that it ended:\n"
                              + (self.folder / "server.log").read_text()[-2000:])
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1)
                return
            except OSError:
                time.sleep(0.1)
        raise Failure(f"{self.name}:{line}: expected a server on port {self.port}, found none after {SECONDS} s")

    def stop_server(self):
        if self.server and self.server.poll() is None:
            self.server.send_signal(signal.SIGTERM)
            self.server.wait(SECONDS)

    def close(self):
        self.stop_server()
        shutil.rmtree(self.folder, ignore_errors=True)


def run_page(name, text, args, models):
    check_links(name, text)
    blocks = fences(name, text)
    page = Page(name, args, models)
    counts = {"run": 0, "not run": 0}
    try:
        for line, kind, content in blocks:
            runs = kind in ("sh", "sh server") or (kind == "python" and importlib.util.find_spec("openai")) or (
                kind == "js" and args.node_modules) or (kind in PACKAGE_KINDS and getattr(args, PACKAGE_KINDS[kind]))
            if runs and not (args.only and kind not in args.only):
                page.run(line, kind, content)
                counts["run"] += 1
            elif kind in KINDS:
                counts["not run"] += 1
    finally:
        page.close()
    return counts


def self_test(args, models):
    """Pages with a fault must fail; one without must not."""
    good = "```sh\ninvar --version\n```\n"
    run_page("good", good, args, models)
    broken = {
        "a command that fails": "```sh\ninvar generate --no-such-flag\n```\n",
        "a first line that fails": "```sh\ninvar --no-such-flag\ninvar --version\n```\n",
        "a pipe whose begin fails": "```sh\ninvar --no-such-flag | cat\n```\n",
        "an unmarked command": "```\ninvar --version\n```\n",
        "an unknown mark": "```bash\ninvar --version\n```\n",
        "a broken link": "[nothing](no-such-page.md)\n",
        "a conflict": "text\n" + "<" * 7 + " HEAD\n",
        "an indented command": "text\n\n    invar --version\n",
        "a fence without an end": "```sh\ninvar --version\n",
        "a server that ends": "```sh server\ninvar serve --port 8000 --no-such-flag\n```\n",
    }
    for what, text in broken.items():
        try:
            run_page(what, text, args, models)
        except Failure:
            continue
        sys.exit(f"expected {what} to be noticed, found that the page passes")
    print(f"{len(broken)} broken pages noticed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("invar")
    parser.add_argument("--page", action="append", help="only this page")
    parser.add_argument("--only", action="append", help="only fences of this kind")
    parser.add_argument("--node-modules", help="a node_modules folder with OpenAI's package")
    parser.add_argument("--python", help="the Python that the package was built for")
    parser.add_argument("--torch-python", help="one of the same version with PyTorch; `this`: the one that runs this")
    parser.add_argument("--python-path", help="where the package is")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.torch_python == "this":
        args.torch_python = sys.executable
    args.invar = str(pathlib.Path(args.invar).resolve())
    pages = args.page or ["README.md"] + sorted(
        str(p.relative_to(ROOT)) for p in [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/howto").glob("*.md")])
    with tempfile.TemporaryDirectory() as folder:
        models = pathlib.Path(folder)
        subprocess.run([args.invar, "make-model", models / "Qwen3-0.6B", "--preset", "tiny"], check=True,
                       stdout=subprocess.DEVNULL)
        if args.self_test:
            return self_test(args, models)
        run = not_run = 0
        try:
            for page in pages:
                counts = run_page(page, (ROOT / page).read_text(), args, models)
                run, not_run = run + counts["run"], not_run + counts["not run"]
        except Failure as failure:
            sys.exit(f"run_commands: {failure}")
    if run == 0:
        sys.exit("run_commands: expected commands, found none")
    print(f"{len(pages)} pages: {run} blocks run, {not_run} marked or without their package")


if __name__ == "__main__":
    main()
