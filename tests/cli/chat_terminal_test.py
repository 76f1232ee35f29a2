#!/usr/bin/env python3
"""invar chat on a terminal: banner, commands, line editing, history that a later chat still has, words that are not torn.
Usage: chat_terminal_test.py INVAR"""

import fcntl
import json
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time

COLUMNS = 44
SECONDS = 60


class Terminal:
    def __init__(self, command, state):
        self.shown = ""
        pid, self.file = pty.fork()
        if pid == 0:
            os.environ.update(TERM="xterm", XDG_STATE_HOME=state, LC_ALL="C.UTF-8")
            os.execv(command[0], command)
        self.pid = pid
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))

    def read(self):
        """False at the end."""
        if select.select([self.file], [], [], 0.1)[0]:
            try:
                data = os.read(self.file, 4096)
            except OSError:
                return False
            self.shown += data.decode(errors="replace")
            return bool(data)
        return True

    def wait_for(self, pattern, start=0):
        """Waits until what was shown from `start` on has the pattern; returns the place after it."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            found = re.search(pattern, self.shown[start:])
            if found:
                return start + found.end()
            if not self.read():
                break
        raise AssertionError(f"expected {pattern!r}, found:\n{self.shown[start:]!r}")

    def send(self, keys):
        os.write(self.file, keys.encode())

    def end(self):
        until = time.monotonic() + SECONDS
        while time.monotonic() < until and self.read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def turn(terminal, start):
    """What one answer shows, up to the next prompt."""
    end = terminal.wait_for(r"\n> ", start)
    return terminal.shown[start:end - 3].replace("\r\n", "\n"), end


def check_editing(command, state):
    terminal = Terminal(command, state)
    at = terminal.wait_for(r"invar-1/portable.*\n/help lists the commands\r\n\r\n(.*)> ")
    terminal.send("/help\r")
    at = terminal.wait_for(r"/reset +forget.*\n(.*\n)*> $", at)
    # A typing error, corrected with the cursor: "Tll me a story." with Home, Right and an e.
    terminal.send("Tll me a story.\x01\x1b[Ce\r")
    at = terminal.wait_for(r"\n", terminal.wait_for("story", at))
    answer, at = turn(terminal, at)
    lines = answer.split("\n")
    assert len(lines) > 3, f"expected an answer of several lines, found {answer!r}"
    assert max(map(len, lines)) <= COLUMNS, f"expected lines of {COLUMNS} columns, found {answer!r}"
    terminal.send("/exit\r")
    assert terminal.end() == 0
    return " ".join(answer.split())


def check_commands(command, state):
    """Each command says what it did or what it expected, and the chat goes on."""
    terminal = Terminal(command, state)
    at = terminal.wait_for(r"> ", terminal.wait_for("lists the commands"))

    def shows(line, pattern):
        nonlocal at
        terminal.send(line + "\r")
        at = terminal.wait_for(r"(^|\n)> $", terminal.wait_for(pattern, at))

    kept = state + "/kept.json"
    for line, pattern in [
            ("/set", r"temperature +0\.0\r\n(.*\n)* +max_tokens +60\r\n +min_tokens +0\r\n +seed +0\r\n"),
            ("/set max_tokens 3", r"\n"),
            ("/set", r" max_tokens +3\r\n"),
            ("/set color 3", r'expected a setting that /set shows, found "color"'),
            ("/set temperature hot", r'expected temperature as a number, found "hot"'),
            ("/set max_tokens 0", r"max_tokens.*found 0"),
            ("/set top_p", r'expected /set NAME VALUE, found "top_p"'),
            ("/nothing", r'expected a command that /help lists, found "/nothing"'),
            ("/reset now", r'expected /reset alone, found "now" behind it'),
            ("/retry", r"expected a message to answer once more, found none"),
            ("/save", r"expected /save FILE, found no FILE"),
            ("/load /nowhere.json", r"/nowhere\.json: cannot be opened"),
            ("/system Be kind.", r"\n"),
            ("Once", r"\n.+\r\n"),
            ("/retry", r"\n.+\r\n"),
            ("/set", r" max_tokens +3\r\n +min_tokens +0\r\n +seed +1\r\n"),
            (f"/save {kept}", r"\n"),
            (f"/load {kept}", r"3 messages")]:
        shows(line, pattern)
    terminal.send("/exit \r")
    assert terminal.end() == 1  # some were refused
    messages = json.loads(pathlib.Path(kept).read_text())["messages"]
    assert [one["role"] for one in messages] == ["system", "user", "assistant"], messages
    assert messages[0]["content"] == "Be kind.", messages


def check_history(command, state):
    """The other chat's line comes back with Up."""
    terminal = Terminal(command, state)
    at = terminal.wait_for("> ", terminal.wait_for("lists the commands"))
    terminal.send("\x1b[A\x1b[A")  # /exit, then the line before it
    terminal.wait_for(r"Tell me a story\.", at)
    terminal.send("\x15/exit\r")
    assert terminal.end() == 0


def main():
    invar = os.path.abspath(sys.argv[1])
    flags = ["--temperature", "0", "--max-tokens", "60", "--max-model-len", "auto"]
    command = [invar, "chat", *flags]
    with tempfile.TemporaryDirectory() as state:
        answer = check_editing(command, state)
        check_history(command, state)
        assert (pathlib.Path(state) / "invar/chat_history").exists()
        check_commands(command, state)
    # The same question through a pipe: the words are the same, and no line is broken.
    piped = subprocess.run(command, input="Tell me a story.\n", text=True, capture_output=True, check=True).stdout
    assert " ".join(piped.split()) == answer, f"expected {answer!r}, found {piped!r}"
    assert max(map(len, piped.split("\n"))) > COLUMNS, "expected a long line through a pipe; the check of widths shows nothing"
    print("ok")


if __name__ == "__main__":
    main()
