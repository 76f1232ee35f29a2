"""A small made model that fills in the text between two others, for tests."""
import json
import pathlib
import subprocess

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


def make_middle(invar, folder):
    """Writes the model into `folder`: three of its tokens are named as the marks, and none ends an answer, so that requests without a
    seed have as many tokens as they ask for. Returns the id of each mark by its name."""
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
    for name in ("config.json", "generation_config.json"):
        file = pathlib.Path(folder, name)
        if file.exists():
            file.write_text(json.dumps({key: value for key, value in json.loads(file.read_text()).items() if key != "eos_token_id"}))
    return marks
