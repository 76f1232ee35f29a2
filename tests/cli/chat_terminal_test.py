#!/usr/bin/env python3
"""invar chat on a terminal: banner, commands, line editing, history that a later chat still has, words that are not torn, lines that are
pasted, Markdown and thoughts in styles.
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
STYLES = re.compile("\x1b\\[([0-9;]*m|\\?2004[hl])")  # and the words by which a terminal marks what is pasted
SECONDS = 60
STORY = pathlib.Path(__file__).resolve().parents[2] / "models/story"


class Terminal:
    def __init__(self, command, state, **environment):
        self.shown = self.said = ""
        pid, self.file = pty.fork()
        if pid == 0:
            os.environ.update({"TERM": "xterm", "XDG_STATE_HOME": state, "LC_ALL": "C.UTF-8", **environment})
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
            self.said += data.decode(errors="replace")
            self.shown = STYLES.sub("", self.said)
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


def check_pasting(command, state):
    """What is pasted is one message with its lines but for empty ones at its end, in which no key and no command counts.
    Between two pastes in a row stand the line ends of the first."""
    kept = state + "/pasted.json"
    terminal = Terminal(command, state, NO_COLOR="1")
    at = terminal.wait_for("> ", terminal.wait_for("lists the commands"))
    terminal.send("/set max_tokens 3\r")
    at = terminal.wait_for(r"\n> ", at)
    assert "\x1b[?2004h" in terminal.said, "the terminal is asked to mark what is pasted"
    terminal.send("Forget this.\r")
    at = terminal.wait_for(r"\n> ", terminal.wait_for("this", at))
    for pasted in ("/reset\n", "\n"):
        terminal.send(f"\x1b[200~{pasted}\x1b[201~\r")
        at = terminal.wait_for(r"\n> ", at)
    terminal.send("Look:\r")
    at = terminal.wait_for(r"\n> ", terminal.wait_for("Look:", at))
    terminal.send("Read \x1b[200~one\r/exit\r\ttwo\x01 \u00e9\nthree\x1b[201~, please.\r")
    at = terminal.wait_for(r"\n> $", terminal.wait_for("please", at))
    terminal.send("\x1b[200~four\rfive\r\r\x1b[201~\x1b[200~six\r\x1b[201~, \x1b[200~seven\x1b[201~ eight.\r")
    at = terminal.wait_for(r"\n> $", terminal.wait_for("eight", at))
    terminal.send(f"/save {kept}\r")
    at = terminal.wait_for(r"\n> ", at)
    terminal.send("/exit\r")
    assert terminal.end() == 0
    assert "\x1b[?2004l" in terminal.said
    said = [one["content"] for one in json.loads(pathlib.Path(kept).read_text())["messages"] if one["role"] == "user"]
    assert said == ["Look:", "Read one\n/exit\n\ttwo \u00e9\nthree, please.", "four\nfive\n\nsix, seven eight."], said
    dumb = Terminal(command, state, TERM="dumb")
    dumb.wait_for("> ", dumb.wait_for("lists the commands"))
    dumb.send("/exit\r")
    assert dumb.end() == 0
    assert "\x1b" not in dumb.said, dumb.said


def model_whose_thoughts_end(folder):
    """The bundled model with a tokenizer that writes </think> for the word "found", which its thought comes to."""
    folder.mkdir()
    for file in STORY.iterdir():
        (folder / file.name).symlink_to(file)
    tokenizer = json.loads((STORY / "tokenizer.json").read_text())
    bpe, word = tokenizer["model"], "\u0120found"
    bpe["vocab"] = {"</think>" if piece == word else piece: token for piece, token in bpe["vocab"].items()}
    bpe["merges"] = [merge for merge in bpe["merges"] if word not in (*merge, "".join(merge))]
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return str(folder)


def check_styles(command, state):
    """Thoughts are dim and no part of the answer's text. With NO_COLOR nothing has a style; a pipe gets the text alone."""
    template = pathlib.Path(state) / "thinks.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}{# </think> ends it #}<think>\n")
    thinks = [*command, "--chat-template", str(template)]
    for environment, dim in (({}, True), ({"NO_COLOR": "1"}, False)):
        terminal = Terminal(thinks, state, **environment)
        at = terminal.wait_for("> ", terminal.wait_for("lists the commands"))
        terminal.send("Once upon a time\r")
        terminal.wait_for(r"\w.*\n> ", terminal.wait_for("time\r\n", at))
        terminal.send("/exit\r")
        assert terminal.end() == 0
        assert ("\x1b[0;2m" in terminal.said) == dim, terminal.said
        assert ("\x1b[0m" in terminal.said) == dim, "a style ends with the answer"
    piped = lambda *more: subprocess.run([*thinks, *more], input="Once upon a time\n", text=True, capture_output=True, check=True).stdout
    assert piped().strip() == "", "the answer is all thought"
    answer = json.loads(piped("--json"))["messages"][-1]
    assert answer["content"] == "" and answer["reasoning_content"], answer
    thinks.append(model_whose_thoughts_end(pathlib.Path(state) / "model"))
    answer = json.loads(piped("--json"))["messages"][-1]
    assert answer["content"] and answer["reasoning_content"], answer
    assert piped() == answer["content"] + "\n", "the answer alone, and no line break for the thought that is not shown"
    terminal = Terminal(thinks, state)
    at = terminal.wait_for("> ", terminal.wait_for("lists the commands"))
    terminal.send("Once upon a time\r")
    shown, _ = turn(terminal, terminal.wait_for("time\r\n", at))
    terminal.send("/exit\r")
    assert terminal.end() == 0
    thought, text = shown.split("\n\n", 1)
    assert (thought.split(), text.split()) == (answer["reasoning_content"].split(), answer["content"].split()), shown


def check_full_context(invar):
    """Without --context-shift a conversation that does not fit is refused, with what to do; with it the oldest messages go, and the system's stays."""
    turns = "Tell me a story.\n" * 4
    for more in ([], ["--max-tokens", "40"]):
        run = lambda *flags: subprocess.run([invar, "chat", "--temperature", "0", "--max-model-len", "96", "--system", "Be kind.", "--json", *more, *flags],
                                            input=turns, text=True, capture_output=True)
        done = run()
        assert done.returncode == 1 and len(json.loads(done.stdout)["answers"]) == 1, done.stderr
        assert re.search(r"the conversation has \d+ tokens.*, and the context 96: .*--context-shift drops the oldest messages", done.stderr), done.stderr
        done = run("--context-shift")
        said = json.loads(done.stdout)
        assert done.returncode == 0 and len(said["answers"]) == 4, done.stderr
        assert "the oldest messages are dropped" in done.stderr, done.stderr
        assert all(answer["completion_tokens"] >= 20 for answer in said["answers"]), said["answers"]
        assert said["messages"][0] == {"role": "system", "content": "Be kind."} and len(said["messages"]) < 9, said["messages"]
    # A message before which several go: that is said once. One that never fits: what helps is said, and not what is on already.
    run = lambda tokens, turns: subprocess.run([invar, "chat", "--temperature", "0", "--max-model-len", "96", "--context-shift", *tokens], input=turns,
                                               text=True, capture_output=True)
    dropped = "the oldest messages are dropped"
    done = run(["--max-tokens", "8"], "Tell me.\n" * 3 + "Tell me. " * 14 + "\n")
    assert done.returncode == 0 and done.stderr.count(dropped) == 1, done.stderr
    for tokens, advice in ((["--max-tokens", "200"], "a smaller --max-tokens or a shorter message fits"), ([], "a shorter message fits")):
        done = run(tokens, "Tell me. " * 60 + "\n")
        assert done.returncode == 1 and f"the context 96: {advice}\n" in done.stderr, done.stderr
        assert dropped not in done.stderr, done.stderr


def main():
    invar = os.path.abspath(sys.argv[1])
    flags = ["--temperature", "0", "--max-tokens", "60", "--max-model-len", "auto"]
    command = [invar, "chat", *flags]
    with tempfile.TemporaryDirectory() as state:
        answer = check_editing(command, state)
        check_history(command, state)
        assert (pathlib.Path(state) / "invar/chat_history").exists()
        check_commands(command, state)
        check_pasting(command, state)
        check_styles(command, state)
    check_full_context(command[0])
    # The same question through a pipe: the words are the same, and no line is broken.
    piped = subprocess.run(command, input="Tell me a story.\n", text=True, capture_output=True, check=True).stdout
    assert " ".join(piped.split()) == answer, f"expected {answer!r}, found {piped!r}"
    assert max(map(len, piped.split("\n"))) > COLUMNS, "expected a long line through a pipe; the check of widths shows nothing"
    print("ok")


if __name__ == "__main__":
    main()
