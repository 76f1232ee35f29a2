#!/usr/bin/env python3
"""Checks all of a signed answer that needs no logits: signatures, chains, text and fields. Standard library only; made from
docs/receipts.md alone. `invar verify` also computes the logits again, and renders a chat's prompt.
usage: verify_receipt.py ANSWER.json MODEL_DIRECTORY [--request REQUEST.json] [--public-key HEX]"""
import argparse, hashlib, json, pathlib, struct, sys

def same(what, expected, found):
    if expected != found:
        raise ValueError(f"{what} differs: expected {expected!r}, found {found!r}")

P, L = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493  # Ed25519 (RFC 8032)
D = -121665 * pow(121666, -1, P) % P

def plus(a, b):
    t = D * a[0] * b[0] * a[1] * b[1]
    return ((a[0] * b[1] + b[0] * a[1]) * pow(1 + t, -1, P) % P, (a[1] * b[1] + a[0] * b[0]) * pow(1 - t, -1, P) % P)
def times(n, point):
    return plus(times(n // 2, plus(point, point)), point if n % 2 else (0, 1)) if n else (0, 1)
def point_of(data):
    y, odd = int.from_bytes(data, "little") % 2**255, data[31] >> 7
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    root = pow(square, (P + 3) // 8, P)
    x = root if root * root % P == square else root * pow(2, (P - 1) // 4, P) % P
    same("the signature's curve", square, x * x % P)
    return (P - x if x % 2 != odd else x, y)
def is_signed(receipt):
    key, signature, message = bytes.fromhex(receipt["public_key"]), bytes.fromhex(receipt["signature"]), canonical(receipt, "signature")
    r, s = signature[:32], int.from_bytes(signature[32:], "little")
    h = int.from_bytes(hashlib.sha512(r + key + message).digest(), "little") % L
    base = point_of((4 * pow(5, -1, P) % P).to_bytes(32, "little"))
    return len(signature) == 64 and s < L and times(s, base) == plus(point_of(r), times(h, point_of(key)))

sha = lambda data: hashlib.sha256(data).digest()
def canonical(value, *without):  # RFC 8785: no number of a receipt has a fraction
    value = {name: member for name, member in value.items() if name not in without}
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

def check_chain(receipt):
    answer, links = receipt["answer"], [sha(canonical(receipt, "answer", "chain", "public_key", "signature"))]
    parts = [answer["tokens"][i:i + 64] for i in range(0, len(answer["tokens"]), 64)]
    same("the number of logits hashes", len(parts), len(answer["logits_hashes"]))
    for part, mark in zip(parts, answer["logits_hashes"]):
        end = answer["finish_reason"].encode() if len(links) == len(parts) else b""
        links.append(sha(links[-1] + struct.pack(f"<{len(part)}i", *part) + bytes.fromhex(mark) + end))
    same("the chain", [link.hex() for link in links[1:]], receipt["chain"])

MARKS = {"qwen3": ("<think>", "</think>"), "deepseek_r1": ("<think>", "</think>"), "mistral": ("[THINK]", "[/THINK]")}
thought_form = lambda receipt: json.loads(receipt["request"]["form"] or "{}").get("thought", {})

class Texts:  # the bytes of every token of a tokenizer.json: byte-level BPE, or pieces with a fallback to bytes
    def __init__(self, folder):
        names = "tokenizer.json tokenizer.model tokenizer_config.json special_tokens_map.json added_tokens.json tekken.json"
        found = [folder / name for name in names.split() if (folder / name).exists()]
        self.digest = sha("".join(f"{file.name} {sha(file.read_bytes()).hex()}\n" for file in found).encode()).hex()
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        rest = [*range(33), *range(127, 161), 173]  # the bytes that are not printed as themselves
        letters = {chr(byte): byte for byte in range(256)} | {chr(256 + i): byte for i, byte in enumerate(rest)}
        of_letters = lambda piece: bytes(letters[letter] for letter in piece)
        of_piece = lambda piece: bytes([int(piece[3:5], 16)]) if piece[:3] == "<0x" else piece.replace("\u2581", " ").encode()
        spelled = of_letters if '"ByteLevel"' in json.dumps(tokenizer["decoder"]) else of_piece
        self.bytes = {id: spelled(piece) for piece, id in tokenizer["model"]["vocab"].items()}
        self.bytes |= {added["id"]: added["content"].encode() for added in tokenizer["added_tokens"]}
        self.special = {added["id"] for added in tokenizer["added_tokens"] if added["special"]}

    def decode(self, tokens, skip=True, marks=()):
        shown = [t for t in tokens if not (skip and t in self.special) or self.bytes[t].decode("utf-8", "replace") in marks]
        return b"".join(self.bytes[t] for t in shown).decode("utf-8", "replace")
    def answer(self, receipt):
        """(what was thought, what was said)"""
        request, tokens, form = receipt["request"], receipt["answer"]["tokens"], thought_form(receipt)
        include, stopped = request["include_stop_str_in_output"], receipt["answer"]["finish_reason"] == "stop"
        ended, marks = stopped and tokens[-1] in self.special and not include, MARKS.get(form.get("parser"), ())
        thought, text = "", self.decode(tokens[:-1] if ended else tokens, request["skip_special_tokens"], marks)
        opens = marks and text.lstrip().startswith(marks[0])
        if opens or marks and form.get("begun"):
            thought, _, text = (text.lstrip().removeprefix(marks[0]) if opens else text).partition(marks[1])
            thought, text = thought.strip("\r\n"), text.lstrip("\r\n")
        ends = lambda where: [(where.find(s) + len(s), where.find(s)) for s in request["stop"] if stopped and s in where]
        cut = lambda where: where[:min(ends(where))[0 if include else 1]] if ends(where) else where
        return (cut(thought), "") if form.get("stops") and ends(thought) else (thought, cut(text))

def check_body(body, receipts, texts):
    first, said = receipts[0], receipts[0]["request"]["sampling"]
    others = set(first) - {"arithmetic", "specification", "weights", "tokenizer", "chat_template", "defaults"}
    mark = first["arithmetic"] + "-" + sha(canonical(first, *others)).hex()[:16]
    head = dict(first, seed=int(said["seed"]), max_tokens=said["max_tokens"], system_fingerprint=mark)
    same("the head", *([one[name] for name in "id created model seed max_tokens system_fingerprint".split()] for one in (head, body)))
    counts = sum(len(r["request"]["prompt"]) for r in receipts[::said["n"]]), sum(len(r["answer"]["tokens"]) for r in receipts)
    same("the numbers of tokens", counts, (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]))
    for i, (choice, receipt) in enumerate(zip(body["choices"], receipts)):
        answer, message, seed = receipt["answer"], choice.get("message", {}), receipt["request"]["sampling"]["seed"]
        same("a choice", (i, i % said["n"], first["id"], hashed := answer["logits_hashes"][-1], seed),
             (choice["index"], receipt["choice"], receipt["id"], choice.get("logits_hash", hashed), str(choice.get("seed", seed))))
        prompt, (thought, own) = texts.decode(receipt["request"]["prompt"]), texts.answer(receipt)
        if message.get("tool_calls") or thought_form(receipt).get("parser", "qwen3") not in MARKS:
            print(f"choice {i}: its thoughts and calls of tools are for you to compare with its text: {own!r}")
            continue
        text = choice["text"] if "text" in choice else message["content"]
        echoed = prompt if text == prompt + own else ""
        same(f"the thought and text of choice {i}", (thought, echoed + own, answer["finish_reason"]),
             (message.get("reasoning_content", ""), text, choice["finish_reason"]))

NEUTRAL = dict(temperature=1, top_p=1, min_p=0, top_k=0, repetition_penalty=1, presence_penalty=0, frequency_penalty=0, n=1, min_tokens=0,
               ignore_eos=False)
FORMS = ("response_format", "structured_outputs", "tools", "guided_regex", "guided_choice", "guided_json", "guided_grammar")

def check_request(asked, receipt, texts, generation):  # a chat's prompt is for a person to read: its template is a program
    request, said = receipt["request"], receipt["request"]["sampling"]
    for name in [name for name in NEUTRAL if float(said["temperature"]) > 0 or name not in ("top_p", "top_k", "min_p")]:
        wanted = float(asked.get(name, generation.get(name, NEUTRAL[name])))
        same(name, max(0.0, wanted) if name == "top_k" else wanted, float(said[name]))
    same("the seed, the length", *([int(one.get(name, said[name])) for name in ("seed", "max_tokens")] for one in (asked, said)))
    stop = asked.get("stop") or []
    same("stop", [stop] if isinstance(stop, str) else stop, request["stop"])
    biases = lambda pairs: {int(token): float(bias) for token, bias in pairs}
    same("logit_bias", biases((asked.get("logit_bias") or {}).items()), biases(said["logit_bias"]))
    same("allowed_token_ids", sorted(set(asked.get("allowed_token_ids") or [])), said["allowed_token_ids"])
    held = bool(set(json.loads(request["form"] or "{}")) - {"thought"})
    wanted = [bool(asked.get("bad_words")), held and any(asked.get(name) for name in FORMS)]
    same("bad_words, the form", wanted, [bool(said["bad_words"]), held])
    if not any(name in asked for name in ("reasoning_effort", "thinking", "enable_thinking")):
        same("the thought's budget", asked.get("thinking_token_budget", -1), thought_form(receipt).get("budget", -1))
    prompt = texts.decode(request["prompt"])
    same("the prompt", asked["prompt"] if isinstance(asked.get("prompt"), str) else prompt, prompt)

def check(flags):
    body, folder, asked = json.load(open(flags.answer)), pathlib.Path(flags.model), flags.request and json.load(open(flags.request))
    receipts = [choice["receipt"] for choice in body["choices"]] if "choices" in body else body.get("data", [body])
    texts, files = Texts(folder), [*folder.glob("generation_config.json")]
    generation = json.loads(files[0].read_text()) if files else {}
    same("that there is an answer", True, bool(receipts))
    said, last = receipts[0]["request"]["sampling"], receipts[-1]["request"]["sampling"]  # where seeds are drawn, one a prompt
    for i, receipt in enumerate(receipts):
        same("the key", flags.public_key or receipts[0]["public_key"], receipt["public_key"])
        same("the signature", True, is_signed(receipt))
        same("the tokenizer", texts.digest, receipt["tokenizer"])
        same("the sampling", dict(said, seed=str(int(said["seed"]) + (said != last) * (i // said["n"]))), receipt["request"]["sampling"])
        check_chain(receipt)
        asked and check_request(asked, receipt, texts, generation)
    if "choices" in body:
        check_body(body, receipts, texts)
    return f"{len(receipts)} choices: signature, chain and text are as they were signed; the logits were not looked at"

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    [parser.add_argument(argument) for argument in ("answer", "model", "--request", "--public-key")]
    try:
        print(check(parser.parse_args()))
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, struct.error) as error:
        sys.exit(f"{type(error).__name__}: {error}")
