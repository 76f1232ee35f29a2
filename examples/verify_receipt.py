#!/usr/bin/env python3
"""Checks all of a signed answer that needs no logits: signatures, chains, text and fields. Standard library only; made from
docs/receipts.md alone. `invar verify` also computes the logits again, and renders a chat's prompt.

usage: verify_receipt.py ANSWER.json MODEL_DIRECTORY [--request REQUEST.json] [--public-key HEX]"""
import argparse, hashlib, json, pathlib, struct, sys

P, L = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493  # Ed25519 (RFC 8032)
D = -121665 * pow(121666, -1, P) % P

def point_add(a, b):
    t = D * a[0] * b[0] * a[1] * b[1]
    return ((a[0] * b[1] + b[0] * a[1]) * pow(1 + t, -1, P) % P, (a[1] * b[1] + a[0] * b[0]) * pow(1 - t, -1, P) % P)
def times(n, point):
    total = (0, 1)
    while n:
        total, point, n = point_add(total, point) if n & 1 else total, point_add(point, point), n >> 1
    return total
def point_of(data):
    number = int.from_bytes(data, "little")
    y, odd = number % 2**255, number >> 255
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if x * x % P == square else x * pow(2, (P - 1) // 4, P) % P
    same("the signature's curve", square, x * x % P)
    return (P - x if x % 2 != odd else x, y)
def is_signed(key, message, signature):
    r, s = signature[:32], int.from_bytes(signature[32:], "little")
    h = int.from_bytes(hashlib.sha512(r + key + message).digest(), "little") % L
    base = point_of((4 * pow(5, -1, P) % P).to_bytes(32, "little"))
    return len(signature) == 64 and s < L and times(s, base) == point_add(point_of(r), times(h, point_of(key)))

def same(what, expected, found):
    if expected != found:
        raise ValueError(f"{what} differs: expected {expected!r}, found {found!r}")

sha = lambda data: hashlib.sha256(data).digest()

def canonical(value, *without):  # RFC 8785: no number of a receipt has a fraction
    value = {name: member for name, member in value.items() if name not in without}
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

def check_chain(receipt):
    answer, links = receipt["answer"], []
    link = sha(canonical(receipt, "answer", "chain", "public_key", "signature"))
    hashes, tokens = answer["logits_hashes"], answer["tokens"]
    same("the number of logits hashes", (len(tokens) + 63) // 64, len(hashes))
    for i, mark in enumerate(hashes):
        part = tokens[64 * i:64 * i + 64]
        end = answer["finish_reason"].encode() if i == len(hashes) - 1 else b""
        link = sha(link + struct.pack(f"<{len(part)}i", *part) + bytes.fromhex(mark) + end)
        links.append(link.hex())
    same("the chain", links, receipt["chain"])

MARKS = {"qwen3": ("<think>", "</think>"), "deepseek_r1": ("<think>", "</think>"), "mistral": ("[THINK]", "[/THINK]")}

def thought_form(request):
    return json.loads(request["form"] or "{}").get("thought")

def part(text, form):
    """(what was thought, what was said)"""
    opening, closing = MARKS[form["parser"]]
    opens = text.lstrip().startswith(opening)
    if not opens and not form["begun"]:
        return "", text
    thought, _, said = text[text.index(opening) + len(opening) if opens else 0:].partition(closing)
    return thought.strip("\r\n"), said.lstrip("\r\n")

class Texts:  # the bytes of every token of a tokenizer.json: byte-level BPE, or pieces with a fallback to bytes
    def __init__(self, folder):
        files = ["tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tekken.json"]
        found = [folder / name for name in files if (folder / name).exists()]
        self.digest = sha("".join(f"{file.name} {sha(file.read_bytes()).hex()}\n" for file in found).encode()).hex()
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        rest = [byte for byte in range(256) if byte not in printable]
        letters = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(rest)}
        by_bytes = '"ByteLevel"' in json.dumps(tokenizer["decoder"])
        spelled = lambda p: bytes([int(p[3:5], 16)]) if p[:3] == "<0x" else p.replace("\u2581", " ").encode()
        self.bytes = {id: bytes(letters[c] for c in piece) if by_bytes else spelled(piece)
                      for piece, id in tokenizer["model"]["vocab"].items()}
        self.bytes |= {added["id"]: added["content"].encode() for added in tokenizer["added_tokens"]}
        self.special = {added["id"] for added in tokenizer["added_tokens"] if added["special"]}

    def decode(self, tokens, skip=True, marks=()):
        shown = [t for t in tokens if not (skip and t in self.special) or self.bytes[t].decode("utf-8", "replace") in marks]
        return b"".join(self.bytes[t] for t in shown).decode("utf-8", "replace")

    def answer(self, receipt):
        """(what was thought, what was said)"""
        request, tokens = receipt["request"], receipt["answer"]["tokens"]
        include, stopped = request["include_stop_str_in_output"], receipt["answer"]["finish_reason"] == "stop"
        if stopped and tokens[-1] in self.special and not include:
            tokens = tokens[:-1]
        form = thought_form(request)
        text = self.decode(tokens, request["skip_special_tokens"], MARKS[form["parser"]] if form else ())
        thought, text = part(text, form) if form else ("", text)
        stops = lambda where: [(where.find(stop) + len(stop), where.find(stop)) for stop in request["stop"] if stop in where]
        cut = lambda where: where[:min(stops(where))[0 if include else 1]] if stops(where) and stopped else where
        if form and form.get("stops") and cut(thought) != thought:
            return cut(thought), ""
        return thought, cut(text)

def check_body(body, receipts, texts):
    first = receipts[0]
    said = first["request"]["sampling"]
    others = set(first) - {"arithmetic", "specification", "weights", "tokenizer", "chat_template", "defaults"}
    same("system_fingerprint", first["arithmetic"] + "-" + sha(canonical(first, *others)).hex()[:16], body["system_fingerprint"])
    same("the seed, the length", [int(said["seed"]), said["max_tokens"]], [body["seed"], body["max_tokens"]])
    same("the head", *([one[name] for name in ("id", "created", "model")] for one in (first, body)))
    same("the prompts' tokens", sum(len(r["request"]["prompt"]) for r in receipts[::said["n"]]), body["usage"]["prompt_tokens"])
    same("the answers' tokens", sum(len(r["answer"]["tokens"]) for r in receipts), body["usage"]["completion_tokens"])
    for i, (choice, receipt) in enumerate(zip(body["choices"], receipts)):
        same("a choice", (i, i % said["n"], first["id"]), (choice["index"], receipt["choice"], receipt["id"]))
        last = receipt["answer"]["logits_hashes"][-1]
        same("the logits hash", last, choice.get("logits_hash", last))
        if (thought_form(receipt["request"]) or {}).get("parser", "qwen3") not in MARKS:
            print(f"choice {i}: its thoughts are for you to compare with its tokens")
            continue
        prompt, (thought, own) = texts.decode(receipt["request"]["prompt"]), texts.answer(receipt)
        same(f"the thought of choice {i}", thought, choice.get("message", {}).get("reasoning_content", ""))
        if choice.get("message", {}).get("tool_calls"):
            print(f"choice {i}: its calls of tools are for you to compare with its text: {own!r}")
            continue
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        same(f"the text of choice {i}", prompt + own if text.startswith(prompt) and text != own else own, text)  # "echo"
        same("finish_reason", receipt["answer"]["finish_reason"], choice["finish_reason"])

NEUTRAL = {"temperature": 1, "top_p": 1, "min_p": 0, "top_k": 0, "repetition_penalty": 1, "presence_penalty": 0,
           "frequency_penalty": 0, "n": 1, "min_tokens": 0, "ignore_eos": False}
FORMS = ("response_format", "structured_outputs", "tools", "guided_regex", "guided_choice", "guided_json", "guided_grammar")

def check_request(asked, receipt, texts, generation):  # a chat's prompt is for a person to read: its template is a program
    request, said = receipt["request"], receipt["request"]["sampling"]
    for name, value in NEUTRAL.items():
        if float(said["temperature"]) > 0 or name not in ("top_p", "top_k", "min_p"):
            wanted = float(asked.get(name, generation.get(name, value)))
            same(name, 0.0 if name == "top_k" and wanted < 0 else wanted, float(said[name]))
    same("the seed, the length", *([int(one.get(name, said[name])) for name in ("seed", "max_tokens")] for one in (asked, said)))
    stop = asked.get("stop") or []
    same("stop", [stop] if isinstance(stop, str) else stop, request["stop"])
    same("logit_bias", {int(t): float(b) for t, b in (asked.get("logit_bias") or {}).items()},
         {t: float(b) for t, b in said["logit_bias"]})
    same("allowed_token_ids", sorted(set(asked.get("allowed_token_ids") or [])), said["allowed_token_ids"])
    same("bad_words", bool(asked.get("bad_words")), bool(said["bad_words"]))
    form = json.loads(request["form"] or "{}")
    thought = form.pop("thought", {})
    same("the form", bool(form) and any(asked.get(name) for name in FORMS), bool(form))
    if not any(name in asked for name in ("reasoning_effort", "thinking", "enable_thinking")):
        same("the thought's budget", asked.get("thinking_token_budget", -1), thought.get("budget", -1))
    if isinstance(asked.get("prompt"), str):
        same("the prompt", asked["prompt"], texts.decode(request["prompt"]))

def check(flags):
    body, folder = json.load(open(flags.answer)), pathlib.Path(flags.model)
    receipts = [choice["receipt"] for choice in body["choices"]] if "choices" in body else body.get("data", [body])
    texts, generation = Texts(folder), folder / "generation_config.json"
    defaults = json.loads(generation.read_text()) if generation.exists() else {}
    for receipt in receipts:
        key, signature = bytes.fromhex(receipt["public_key"]), bytes.fromhex(receipt["signature"])
        same("the key", flags.public_key or receipts[0]["public_key"], receipt["public_key"])
        same("the signature", True, is_signed(key, canonical(receipt, "signature"), signature))
        same("the tokenizer", texts.digest, receipt["tokenizer"])
        same("the sampling", receipts[0]["request"]["sampling"], receipt["request"]["sampling"])
        check_chain(receipt)
        if flags.request:
            check_request(json.load(open(flags.request)), receipt, texts, defaults)
    if "choices" in body:
        check_body(body, receipts, texts)
    return f"{len(receipts)} choices: signature, chain and text are as they were signed; the logits were not looked at"

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for argument in ("answer", "model", "--request", "--public-key"):
        parser.add_argument(argument)
    try:
        print(check(parser.parse_args()))
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, struct.error) as error:
        sys.exit(f"{type(error).__name__}: {error}")
