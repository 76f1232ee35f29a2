#!/usr/bin/env python3
"""Every documented way to install, in clean Debian systems: what README.md, docs/installation.md, the Dockerfile and release.yml say is run as
it stands there.

Usage: chroot_test.py SOURCE BUILD [--sources [--cache DIRECTORY]]
Without --sources: the tarball and the Debian packages that packaging/release makes of BUILD, in systems that have nothing else. With it the
ways that compile, too, and packages and a tarball are those of release.yml's job. What one system has compiled, another takes from the compiler's
cache, which is empty at first, or DIRECTORY. Needs root, debootstrap and PyYAML, else 77.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

from clean_system import Systems
from container_test import free_port, instructions

HERE = "/src"  # where sources stand inside
STORY = 'generate -p "Once upon a time" --temperature 0 --max-tokens 48 --json'
PYTHON = ("import invar; print(invar.LLM(invar.bundled_model(), max_model_len=256).generate('Once upon a time', invar.SamplingParams("
          "temperature=0, max_tokens=48, logits_hash=True), use_tqdm=False)[0].outputs[0].logits_hash)")


def fence(page, begin):
    """The fenced block of a page that has a line with this beginning."""
    for block in re.findall(r"(?ms)^```sh long\n(.*?)^```", page.read_text()):
        if any(line.startswith(begin) for line in block.splitlines()):
            return block
    sys.exit(f"chroot_test: expected a block with {begin!r} in {page}, found none")


def copy_sources(system, source):
    """The tracked files, as a checkout or a container's context has them."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=source, check=True, capture_output=True).stdout
    system.path(HERE).mkdir(parents=True, exist_ok=True)
    subprocess.run(["cpio", "-0", "-pdm", "--quiet", system.path(HERE)], cwd=source, input=files, check=True)


def try_tarball(system, made, card):
    [tarball] = made.glob("invar-*.tar.xz")
    subprocess.run(["tar", "-C", system.path("opt"), "-xf", tarball], check=True)
    program = f"/opt/{tarball.name.removesuffix('.tar.xz')}/bin/invar"
    system.expect("the tarball", system.run(f"{program} {STORY}"), card)
    if not system.fails(f"rm -r /opt/*/lib && {program} --version"):
        sys.exit("chroot_test: expected a program that needs the libraries beside it, found one that runs without")


def try_packages(system, made, docs, card):
    for package in made.glob("*.deb"):
        shutil.copy(package, system.path("root"))
    assert system.fails("invar --version"), "the control: it is not there yet"
    block = fence(docs / "installation.md", "apt-get install ./invar_").splitlines()[0]
    system.run(f"apt-get update -qq && cd /root && {block.replace('install', 'install -y -qq')}")
    system.expect("the Debian package", system.run(f"invar {STORY}"), card)
    system.run("id invar && test -f /etc/invar/invar.toml && test -f /lib/systemd/system/invar.service")
    system.run("cd /root && apt-get install -y -qq ./python3-invar_*.deb")
    system.expect("python3-invar", system.run(f'python3 -c "{PYTHON}"'), card)
    system.run("apt-get purge -y -qq invar python3-invar")
    assert system.fails("invar --version"), "it is gone"


def try_sources(system, source, docs, card):
    copy_sources(system, source)
    run = lambda command: system.run(f"cd {HERE} && {command}")
    run("apt-get update -qq && apt-get install -y -qq --no-install-recommends ca-certificates python3-pip")
    run(fence(source / "README.md", "scripts/setup release"))
    system.expect("cmake --install", system.run(f"cd / && ~/.local/bin/invar {STORY}"), card)
    wheel = next(line for line in fence(docs / "installation.md", "pip wheel .").splitlines() if line.startswith("pip")).split("#")[0]
    run(f"{wheel} --no-deps && pip install -q --break-system-packages --no-deps invar-*.whl")
    system.expect("pip wheel", system.run(f'cd / && python3 -c "{PYTHON}"'), card)
    run("pip uninstall -q -y --break-system-packages invar && pip install -q --break-system-packages .")
    system.expect("pip install .", system.run(f'cd / && python3 -c "{PYTHON}"'), card)


def run_job(system, source, name):
    """Runs a job of release.yml at a commit that has the version's tag; the files that it hands on."""
    import yaml

    job = yaml.safe_load((source / ".github/workflows/release.yml").read_text())["jobs"][name]
    assert job["container"] == "debian:12", "these systems"
    system.path(HERE).mkdir()
    made = []
    for step in job["steps"]:
        uses = step.get("uses", "").split("@")[0]
        if uses == "actions/checkout":
            copy_sources(system, source)
            version = re.search(r"project\(invar VERSION ([\d.]+)", (source / "CMakeLists.txt").read_text())[1]
            system.run(f"cd {HERE} && git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -q -m one && git tag v{version}")
        elif uses == "actions/upload-artifact":
            for pattern in step["with"]["path"].split():
                found = list(system.path(HERE).glob(pattern))
                assert found, f"expected files {pattern}, found none"
                made += found
        else:
            system.run(f"cd {HERE} && {step['run']}")
    print(f"works: {name} of release.yml, which makes {', '.join(path.name for path in made)}", flush=True)
    return made


def healthy(system, check, user):
    return subprocess.run(system.words(check, user), capture_output=True, timeout=60).returncode == 0


def try_container(new, source):
    """The Dockerfile's steps, each FROM in a clean system; then its server is started and asked for its health as an engine would."""
    stages, port, said = [], str(free_port()), {}
    for instruction, rest in instructions((source / "Dockerfile").read_text()):
        if instruction == "FROM":
            stages.append(new())
            folder, user = "/", "root"
        elif instruction == "COPY" and rest.startswith("--from="):
            _, files, target = rest.split()
            for path in stages[0].root.glob(files.lstrip("/")):
                shutil.copy(path, stages[-1].path(target))
        elif instruction == "COPY":
            assert rest == f". {HERE}"
            copy_sources(stages[-1], source)
        elif instruction == "RUN":
            stages[-1].run(f"cd {folder} && {rest}")
        elif instruction == "WORKDIR":
            folder = rest
        elif instruction == "USER":
            user = rest
        else:
            said[instruction] = rest
    check = shlex.join(json.loads(said["HEALTHCHECK"].split("CMD ")[1])).replace("8000", port)
    command = shlex.join(json.loads(said["ENTRYPOINT"]) + json.loads(said["CMD"])).replace("8000", port)
    assert not healthy(stages[-1], check, user), "the control: nobody listens"
    server = subprocess.Popen(stages[-1].words(f"cd {folder} && exec {command}", user), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 120
        while not healthy(stages[-1], check, user):
            assert server.poll() is None and time.monotonic() < end, "expected a healthy server, found none"
            time.sleep(0.2)
    finally:
        server.terminate()
        server.wait(90)
    print("works: the container's steps", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--sources", action="store_true")
    parser.add_argument("--cache", type=pathlib.Path)
    args = parser.parse_args()
    if os.geteuid() or not all(map(shutil.which, ("debootstrap", "cpio", "git"))) or not importlib.util.find_spec("yaml"):
        print("skipped: needs root, debootstrap, cpio, git and PyYAML")
        sys.exit(77)
    source, card = args.source.resolve(), re.search(r"logits hash of 48 greedy tokens.*`([0-9a-f]{64})`", (args.source / "models/story/README.md").read_text())[1]
    with tempfile.TemporaryDirectory(prefix="invar-chroot-", dir="/var/tmp") as name:
        folder = pathlib.Path(name)
        (folder / "made").mkdir()
        (cache := args.cache or folder / "cache").mkdir(parents=True, exist_ok=True)
        systems = Systems(folder, cache if args.sources else None)
        try:
            if args.sources:
                try_sources(systems.new(), source, source / "docs", card)
                for path in run_job(systems.new(), source, "packages"):
                    shutil.copy(path, folder / "made")
                try_container(systems.new, source)
            else:
                subprocess.run([source / "packaging/release", "--dry-run", "--only", "deb,tarball", "--build", args.build, "--out", folder / "made"], check=True)
            try_tarball(systems.new(), folder / "made", card)
            try_packages(systems.new(), folder / "made", source / "docs", card)
        finally:
            systems.close()


if __name__ == "__main__":
    main()
