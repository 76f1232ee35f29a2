#!/usr/bin/env python3
"""Published vocabularies with each family's splitting, against Hugging Face's tokenizers: 300 odd strings each, both ways.
Usage: published_vocabularies.py TOKENIZER_PROBE [FAMILY]. The vocabularies are those of llama.cpp's models/ggml-vocab-*.gguf, which
scripts/setup_witness takes from the source package of llama-cpp-python; what stands before the merges (normalizer, splitting, special
tokens) is written here as the family's tokenizer.json has it. A family whose vocabulary is not among them gets a similar one: what is
its own is the splitting. Without the files, or without tokenizers, the test is skipped (77)."""
import json, os, pathlib, random, subprocess, sys, tempfile

WITNESS = os.environ.get("INVAR_WITNESS", "/opt/witness/bin/python")
MODELS = pathlib.Path(WITNESS).parent.parent / "llama.cpp/models"
try:
    import gguf
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers.tokenization_utils_base import generate_merges
except ImportError as missing:
    if not os.path.exists(WITNESS) or sys.executable == WITNESS:
        print(f"SKIPPED tokenizer.published_vocabularies: {missing}")
        sys.exit(77)
    os.execv(WITNESS, [WITNESS] + sys.argv)

STRINGS = 300
WORDS = ["Hello", "world", "don't", "I'M", "we'LL'd", " naïve", "ΑΒΓ", "привет", "你好", "世界", "ひらがな", "カタカナ", "한국어", "مرحبا", "नमस्ते",
         "ไทย", "🙂", "👩‍👩‍👧", "é", "\u0301", "1", "12345", "3.14", "１２３", "٣٤٥", "x_y", "camelCaseHTTPServer", "--", "...", "!?", "\t", "\n",
         "\r\n", "\n\n\n", "  ", "   ", " \n ", "\u00a0", "\u3000", "{\"a\": 1}", "def f(x):", "//", "/*", "ǅ", "ʰ", "ﬁ", "Å", "\x00", "\x7f",
         "\ufeff", "𝔘", "a" * 40, "ab" * 300, " " * 90, "'s", "'", "’s", "µm", "①", "€5", "<s>", "</s", "▁", "Ġ", "<0x0A>"]
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = rf"{SHORT}|{LETTERS}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{ENDS}"
QWEN2 = rf"{SHORT}|{LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{ENDS}"
QWEN35 = rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{ENDS}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SHORT}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SHORT}?|\p{{N}}{{1,3}}|"
         rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{ENDS}")
NO_HAN = r"&&[^\p{Han}]]"
KIMI = (rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{UPPER[:-1]}{NO_HAN}*{LOWER[:-1]}{NO_HAN}+{SHORT}?|"
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER[:-1]}{NO_HAN}+{LOWER[:-1]}{NO_HAN}*{SHORT}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{ENDS}")
SEED = rf"{SHORT}|{LETTERS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{ENDS}"
EXAONE4 = (rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|"
           r"\s*[\r\n]|\s+(?!\S)|\s+")
DEEPSEEK3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
             r"\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior=behavior, invert=invert)


def bytes_of(use_regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def in_turn(*parts):
    return pre_tokenizers.Sequence(list(parts))


LATIN = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-Ֆ]+"  # shortened: Latin, Greek, Cyrillic, Armenian
CJK = r"[一-龥぀-ゟ゠-ヿ]+"
# family: (vocabulary, normalizer or None, splitting)
BYTE_LEVEL = {
    "llama3": ("llama-bpe", None, in_turn(split(LLAMA3), bytes_of())),
    "smollm3": ("llama-bpe", None, in_turn(split(LLAMA3), bytes_of())),
    "qwen2, qwen3": ("qwen2", normalizers.NFC(), in_turn(split(QWEN2), bytes_of())),
    "qwen3.5": ("qwen35", normalizers.NFC(), in_turn(split(QWEN35), bytes_of())),
    "olmo2": ("llama-bpe", None, in_turn(split(LLAMA3, "removed", True), bytes_of())),
    "glm4": ("llama-bpe", None, in_turn(split(LLAMA3), bytes_of())),
    "gpt-oss, phi4-mini": ("llama-bpe", None, in_turn(split(O200K), bytes_of())),
    "kimi-k2": ("llama-bpe", None, in_turn(split(KIMI), bytes_of())),
    "seed-oss": ("qwen2", None, in_turn(split(SEED), bytes_of())),
    "exaone4": ("qwen2", normalizers.NFC(), in_turn(split(EXAONE4), bytes_of())),
    "deepseek-v2": ("deepseek-llm", None, in_turn(
        split(r"[\r\n]"), split(LATIN), split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"), split(r"\s+$"), split(r"[一-龥ࠀ-一가-퟿]+"),
        pre_tokenizers.Digits(individual_digits=True), bytes_of())),
    "deepseek-v3, hunyuan": ("deepseek-llm", None, in_turn(split(r"\p{N}{1,3}"), split(CJK), split(DEEPSEEK3), bytes_of())),
    "falcon": ("falcon", None, in_turn(pre_tokenizers.Punctuation(behavior="contiguous"), bytes_of(True),
                                       pre_tokenizers.Digits(individual_digits=False), split("[0-9][0-9][0-9]"))),
    "granite": ("starcoder", None, in_turn(pre_tokenizers.Digits(individual_digits=True), bytes_of(True))),
    "command-r": ("command-r", normalizers.NFC(), in_turn(pre_tokenizers.Digits(individual_digits=True), bytes_of(True))),
    "gpt-2": ("gpt-2", None, bytes_of(True)),
    "olmo": ("gpt-neox", normalizers.NFC(), bytes_of(True)),
}
PREPENDED = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
SPACES = normalizers.Replace(" ", "▁")
STRIPPED = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
PIECES = {
    "llama2, mistral, yi": ("llama-spm", PREPENDED, None, STRIPPED),
    "mistral v3, metaspace": ("llama-spm", None, pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False), STRIPPED),
    "phi3": ("phi-3", PREPENDED, None, STRIPPED),
    "gemma2, gemma3": ("gemma-4", SPACES, pre_tokenizers.Split(" ", "merged_with_previous"), STRIPPED[:3]),
    "internlm3": ("baichuan", PREPENDED, None, STRIPPED),
}


class Vocabulary:
    def __init__(self, name):
        fields = gguf.GGUFReader(MODELS / f"ggml-vocab-{name}.gguf").fields
        read = lambda key: fields[f"tokenizer.ggml.{key}"].contents() if f"tokenizer.ggml.{key}" in fields else None
        self.tokens, self.types, self.begin = read("tokens"), read("token_type"), read("bos_token_id")
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        self.special = [t for t, kind in zip(self.tokens, self.types) if kind in (3, 4)]
        merges = read("merges")
        if merges is not None:
            self.merges = [tuple(m.split(" ")) for m in merges]
        else:  # SentencePiece: transformers' way from scores to merges
            scores = dict(zip(self.tokens, read("scores")))
            self.merges = generate_merges({t: i for t, i in self.ids.items() if self.types[i] == 1}, scores)


def made(vocabulary, normalizer, splitting, decoder, pieces):
    """Hugging Face's tokenizer of the vocabulary, with special tokens of each kind."""
    kept = {t: i for t, i in vocabulary.ids.items()}
    merges = [m for m in vocabulary.merges if m[0] in kept and m[1] in kept and m[0] + m[1] in kept]
    options = dict(byte_fallback=True, fuse_unk=True, unk_token="<unk>") if pieces else dict(ignore_merges=len(kept) == 128256)
    tokenizer = Tokenizer(models.BPE(vocab=kept, merges=merges, **options))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if splitting is not None:
        tokenizer.pre_tokenizer = splitting
    tokenizer.decoder = decoders.Sequence(decoder) if decoder else decoders.ByteLevel()
    special = vocabulary.special[:60]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False, rstrip=pieces and i % 3 == 2) for i, t in enumerate(special)])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("Word", single_word=True, normalized=False)])
    if vocabulary.begin is not None:
        begin = vocabulary.tokens[vocabulary.begin]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A $B", special_tokens=[(begin, vocabulary.begin)])
    return tokenizer, special


def odd_strings(special):
    draw = random.Random(7)
    words = WORDS + special[:8] + ["<tool_call>", "Word", "Words"]
    yield from ("", " ", "\n", "a", " a", "A a", "a  b", *words)
    for _ in range(STRINGS - len(words) - 7):
        yield draw.choice(["", " "]).join(draw.choice(words) for _ in range(draw.randint(1, 9)))


def compared(probe, family, vocabulary, tokenizer, special):
    """The number of texts of which ids or the text again differ."""
    texts, wrong = list(odd_strings(special)), 0
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(f"{folder}/tokenizer.json")
        requests = "".join(json.dumps({"text": t, "add": True, "special": True}) + "\n" for t in texts)
        done = subprocess.run([probe, folder], input=requests, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"{family}: refused: {done.stderr.strip()}")
            return len(texts)
        lines = done.stdout.split("\n")
    begin = tokenizer.decode(tokenizer.encode("").ids, skip_special_tokens=False)
    for text, line in zip(texts, lines, strict=False):
        found, expected = json.loads(line), tokenizer.encode(text).ids
        back = tokenizer.decode(expected, skip_special_tokens=False)
        # DeepSeek's added tokens "ø" and the like: tokenizers reads their letters as bytes, and its text is broken.
        is_whole = "\ufffd" in back and found.get("text") == begin + text
        if found.get("ids") != expected or (found["text"] != back and not is_whole):
            wrong += 1
            if wrong <= 3:
                print(f"{family} {text!r}: expected {expected} {back!r}, found {found}")
    other = tokenizer.encode(texts[-1] + "?").ids == json.loads(lines[len(texts) - 1])["ids"]
    print(f"{family}: vocabulary {vocabulary} of {tokenizer.get_vocab_size()}, {len(texts)} texts, {wrong} differ")
    return wrong + other  # the control: another text has other ids


def main():
    if not MODELS.is_dir():
        print(f"SKIPPED tokenizer.published_vocabularies: expected llama.cpp's vocabularies in {MODELS} (scripts/setup_witness)")
        sys.exit(77)
    chosen = sys.argv[2] if len(sys.argv) > 2 else ""
    families = {**{f: (*row, None, False) for f, row in BYTE_LEVEL.items()}, **{f: (*row, True) for f, row in PIECES.items()}}
    vocabularies, wrong = {}, 0
    for family, (name, *parts) in families.items():
        if chosen in family:
            if name not in vocabularies:
                vocabularies[name] = Vocabulary(name)
            vocabulary = vocabularies[name]
            wrong += compared(sys.argv[1], family, name, *made(vocabulary, *parts))
    print("all equal" if wrong == 0 else f"{wrong} differ")
    sys.exit(wrong != 0)


main()
