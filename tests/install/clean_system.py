"""A clean Debian system in a folder, for tests of what README and the pages say. Needs root and debootstrap."""
import os
import pathlib
import subprocess
import sys
import time

# A machine that reaches package indexes through a proxy trusts its certificate; so must systems within.
CERTIFICATES = pathlib.Path("/usr/local/share/ca-certificates")


class System:
    """A copy of `base`, which has nothing but what is essential. `cache`: a folder of the compiler's cache, or none."""

    def __init__(self, root, base, cache=None):
        self.root, self.mounts, self.variables = root, [], {}
        subprocess.run(["cp", "-a", base, root], check=True)
        self.mount("proc", ["-t", "proc", "proc"])
        if cache:
            self.mount("cache", ["--bind", cache])
            self.variables = {"CCACHE_DIR": "/cache"}
        (root / str(CERTIFICATES).lstrip("/")).mkdir(parents=True, exist_ok=True)
        for one in CERTIFICATES.glob("*.crt"):
            subprocess.run(["cp", one, root / str(CERTIFICATES).lstrip("/")], check=True)

    def path(self, inside):
        return self.root / str(inside).lstrip("/")

    def mount(self, inside, what):
        self.path(inside).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", *what, self.path(inside)], check=True)
        self.mounts.append(self.path(inside))

    def words(self, command, user="root"):
        """What runs a command of bash without anything of this environment."""
        home = next(line.split(":")[5] for line in self.path("etc/passwd").read_text().splitlines() if line.startswith(f"{user}:"))
        variables = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": home, "DEBIAN_FRONTEND": "noninteractive", **self.variables}
        return ["chroot", f"--userspec={user}", self.root, "env", "-i", *(f"{name}={value}" for name, value in variables.items()),
                "bash", "-euo", "pipefail", "-c", command]

    def run(self, command):
        """Its standard output."""
        began = time.monotonic()
        done = subprocess.run(self.words(command), capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"expected an end with 0 of {command!r}, found {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
        if (seconds := time.monotonic() - began) > 60:
            print(f"    {seconds:.0f} s: {' '.join(command.split())[:110]}", flush=True)
        return done.stdout

    def fails(self, command):
        return subprocess.run(self.words(command), capture_output=True).returncode != 0

    def expect(self, way, said, card):
        if card not in said:
            sys.exit(f"expected the card's logits hash {card} by {way}, found {said[-500:]}")
        print(f"works: {way}", flush=True)

    def close(self):
        for target in reversed(self.mounts):
            subprocess.run(["umount", "-l", target])


class Systems:
    """Makes systems, and removes them all at the end."""

    def __init__(self, folder, cache):
        self.folder, self.cache, self.all = folder, cache, []
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", folder / "base"], check=True, stdout=subprocess.DEVNULL)

    def new(self):
        self.all.append(System(self.folder / f"system{len(self.all)}", self.folder / "base", self.cache))
        return self.all[-1]

    def close(self):
        for system in self.all:
            system.close()
        still = [str(target) for system in self.all for target in system.mounts if os.path.ismount(target)]
        if still:  # removing the folder would remove what is mounted there
            print(f"expected to unmount {', '.join(still)}; {self.folder} is left as it is", file=sys.stderr, flush=True)
            os._exit(1)
