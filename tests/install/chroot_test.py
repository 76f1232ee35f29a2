#!/usr/bin/env python3
"""Every documented way to install, in clean Debian systems: what README.md and docs/installation.md say is run as it stands there.

Usage: chroot_test.py SOURCE BUILD [--sources [--cache DIRECTORY]]
Without --sources: the tarball and the Debian packages that packaging/release makes of BUILD, in systems that have nothing else. With it also
the ways that compile, in a system without a compiler's cache, or with that of DIRECTORY. Needs root and debootstrap, else 77.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = "/root/sources"  # where the sources stand inside
STORY = 'generate -p "Once upon a time" --temperature 0 --max-tokens 48 --json'
PYTHON = ("import invar; print(invar.LLM(invar.bundled_model(), max_model_len=256).generate('Once upon a time', invar.SamplingParams("
          "temperature=0, max_tokens=48, logits_hash=True), use_tqdm=False)[0].outputs[0].logits_hash)")


class System:
    """A Debian system in a folder, with nothing but what is essential."""

    def __init__(self, root, base):
        self.root, self.mounts = root, []
        subprocess.run(["cp", "-a", base, root], check=True)
        self.mount("proc", ["-t", "proc", "proc"])

    def mount(self, inside, what):
        target = self.root / inside.lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", *what, target], check=True)
        self.mounts.append(target)

    def run(self, command, **more):
        """Standard output of a command of bash, as root without anything of this environment."""
        done = subprocess.run(["chroot", self.root, "env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "DEBIAN_FRONTEND=noninteractive",
                               *(f"{name}={value}" for name, value in more.items()), "bash", "-euo", "pipefail", "-c", command], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"chroot_test: expected an end with 0 of {command!r}, found {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
        return done.stdout

    def fails(self, command):
        return subprocess.run(["chroot", self.root, "bash", "-c", command], capture_output=True).returncode != 0

    def expect(self, way, said, card):
        if card not in said:
            sys.exit(f"chroot_test: expected the card's logits hash {card} by {way}, found {said[-500:]}")
        print(f"works: {way}", flush=True)

    def close(self):
        for target in reversed(self.mounts):
            subprocess.run(["umount", "-l", target])


def fence(page, begin):
    """The fenced block of a page that has a line with this beginning."""
    for block in re.findall(r"(?ms)^```sh long\n(.*?)^```", page.read_text()):
        if any(line.startswith(begin) for line in block.splitlines()):
            return block
    sys.exit(f"chroot_test: expected a block with {begin!r} in {page}, found none")


def try_tarball(system, made, card):
    [tarball] = made.glob("invar-*.tar.xz")
    subprocess.run(["tar", "-C", system.root / "opt", "-xf", tarball], check=True)
    program = f"/opt/{tarball.name.removesuffix('.tar.xz')}/bin/invar"
    system.expect("the tarball", system.run(f"{program} {STORY}"), card)
    if not system.fails(f"rm -r /opt/*/lib && {program} --version"):
        sys.exit("chroot_test: expected a program that needs the libraries beside it, found one that runs without")


def try_packages(system, made, docs, card):
    for package in made.glob("*.deb"):
        shutil.copy(package, system.root / "root")
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
    files = subprocess.run(["git", "ls-files", "-z"], cwd=source, check=True, capture_output=True).stdout
    target = system.root / HERE.lstrip("/")
    target.mkdir(parents=True)
    subprocess.run(["cpio", "-0", "-pdm", "--quiet", target], cwd=source, input=files, check=True)
    cache = {"CCACHE_DIR": "/cache"} if (system.root / "cache").exists() else {}
    run = lambda command: system.run(f"cd {HERE} && {command}", **cache)
    run("apt-get update -qq && apt-get install -y -qq --no-install-recommends ca-certificates python3-pip")
    run(fence(source / "README.md", "scripts/setup release"))
    system.expect("cmake --install", system.run(f"cd / && /root/.local/bin/invar {STORY}"), card)
    wheel = next(line for line in fence(docs / "installation.md", "pip wheel .").splitlines() if line.startswith("pip")).split("#")[0]
    run(f"{wheel} --no-deps && pip install -q --break-system-packages --no-deps invar-*.whl")
    system.expect("pip wheel", system.run(f'cd / && python3 -c "{PYTHON}"'), card)
    run(fence(docs / "installation.md", "scripts/setup package"))
    run("ls build/package/invar_*_amd64.deb build/package/libinvar-dev_*_amd64.deb build/package/python3-invar_*_amd64.deb")
    print("works: cpack", flush=True)
    # The first stage of the Dockerfile is the same steps; the second takes this package.
    assert "RUN scripts/setup package && cmake --build --preset package && cd build/package && cpack" in (source / "Dockerfile").read_text()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--sources", action="store_true")
    parser.add_argument("--cache", type=pathlib.Path)
    args = parser.parse_args()
    if os.geteuid() or not all(map(shutil.which, ("debootstrap", "cpio", "git"))):
        print("skipped: needs root, debootstrap, cpio and git")
        sys.exit(77)
    source, card = args.source.resolve(), re.search(r"logits hash of 48 greedy tokens.*`([0-9a-f]{64})`", (args.source / "models/story/README.md").read_text())[1]
    systems = []
    with tempfile.TemporaryDirectory(prefix="invar-chroot-", dir="/var/tmp") as name:
        folder = pathlib.Path(name)
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", folder / "base"], check=True, stdout=subprocess.DEVNULL)
        new = lambda: systems.append(System(folder / f"system{len(systems)}", folder / "base")) or systems[-1]
        try:
            subprocess.run([source / "packaging/release", "--dry-run", "--only", "deb,tarball", "--build", args.build, "--out", folder / "made"], check=True)
            try_tarball(new(), folder / "made", card)
            try_packages(new(), folder / "made", source / "docs", card)
            if args.sources:
                builder = new()
                if args.cache:
                    builder.mount("cache", ["--bind", args.cache])
                try_sources(builder, source, source / "docs", card)
        finally:
            for system in systems:
                system.close()
            still = [str(target) for system in systems for target in system.mounts if os.path.ismount(target)]
            if still:  # removing the folder would remove what is mounted there
                print(f"chroot_test: expected to unmount {', '.join(still)}; {folder} is left as it is", file=sys.stderr, flush=True)
                os._exit(1)


if __name__ == "__main__":
    main()
