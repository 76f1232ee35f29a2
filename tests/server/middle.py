"""A small made model that fills in the text between two others, for tests."""
import json
import pathlib
import subprocess

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


def make_middle(invar, folder):
    """Writes the model into `folder`: three of its tokens are named as the marks. Returns the id of each mark by its name."""
    subprocess.run([invar, "make-model", folder], check=True, capture_output=True)
    path = pathlib.Path(folder, "tokenizer.json")
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    added = {token["id"] for token in tokenizer["added_tokens"]}
    longest = sorted((text for text, at in vocabulary.items() if at not in added), key=vocabulary.get)[-3:]
    marks = {name: vocabulary.pop(text) for name, text in zip(MARKS, longest)}
    joined = lambda pair: pair.replace(" ", "") if isinstance(pair, str) else "".join(pair)
    tokenizer["model"]["merges"] = [pair for pair in tokenizer["model"]["merges"] if joined(pair) not in longest]
    tokenizer["added_tokens"] += [{"id": at, "content": name, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
                                  for name, at in marks.items()]
    path.write_text(json.dumps(tokenizer))
    return marks
