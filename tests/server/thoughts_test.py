#!/usr/bin/env python3
"""Thoughts on all three protocols: budgets, forms behind them, what comes back, receipts and journals.
Usage: thoughts_test.py INVAR [unittest arguments]"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from messages_test import events_of, put_together
from served import Served, events, fast_and

INVAR = None  # the program; set by main
ROOT = pathlib.Path(__file__).resolve().parents[2]
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
HI = [{"role": "user", "content": "hi"}]
# Qwen3's switch, and a thought that the prompt begins.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and m.reasoning_content and loop.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content.split('</think>')[-1] if m.content is string else '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}{% endif %}")
SCHEMA = {"type": "object", "properties": {"days": {"enum": [1, 2, 3]}}, "required": ["days"]}
BODY = dict(temperature=0.9, seed=5, ignore_eos=True)


class Thoughts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="invar-thoughts-")
        cls.root = pathlib.Path(cls.folder.name)
        cls.model = cls.root / "model"
        subprocess.run([INVAR, "make-model", cls.model], check=True, capture_output=True)
        cls.template = cls.root / "thinks.jinja"
        cls.template.write_text(TEMPLATE)
        cls.flags = fast_and(["--chat-template", str(cls.template), "--receipt-key", str(cls.root / "key.pem")])
        cls.served = cls.serve("--journal", str(cls.root / "journal"))

    @classmethod
    def serve(cls, *more):
        return Served(INVAR, command=[INVAR, "serve", cls.model, "--host", "127.0.0.1", "--port", "0",
                                      "--served-model-name", "m", *cls.flags, *more])

    @classmethod
    def tearDownClass(cls):
        assert cls.served.stop() == 0
        cls.folder.cleanup()

    def chat(self, **body):
        """The whole message, which the stream must say too, with the same bits."""
        body = dict(messages=HI, max_tokens=40, logits_hash=True, **{**BODY, **body})
        whole = self.served.post(CHAT, **body)
        choice = whole["choices"][0]
        said = {"reasoning_content": "", "content": ""}
        for event in events(self.served.stream(CHAT, stream_options={"include_usage": True}, **body)):
            for one in event["choices"]:
                for name in said:
                    said[name] += one["delta"].get(name) or ""
                hash_ = one.get("logits_hash")
            usage = event["usage"] or None
        self.assertEqual(said["content"], choice["message"]["content"] or "")
        self.assertEqual(said["reasoning_content"], choice["message"].get("reasoning_content", ""))
        self.assertEqual(usage, whole["usage"])
        self.assertEqual(hash_, choice["logits_hash"])
        return choice, whole["usage"]["completion_tokens_details"]["reasoning_tokens"]

    def test_a_budget_ends_a_thought(self):
        unending, thought = self.chat()
        self.assertEqual((unending["message"]["content"], thought), ("", 40))
        for budget in (0, 1, 7):
            choice, thought = self.chat(thinking_token_budget=budget)
            self.assertNotEqual(choice["message"]["content"], "")
            # The mark is text here: several tokens, all of the thought.
            self.assertGreater(thought, budget)
            self.assertLess(thought, budget + 10)
            if budget == 7:
                self.assertTrue(unending["message"]["reasoning"].startswith(choice["message"]["reasoning"][:4]))

    def test_the_words_of_every_protocol(self):
        off = [dict(enable_thinking=False), dict(reasoning_effort="none"), dict(thinking={"type": "disabled"}),
               dict(chat_template_kwargs={"enable_thinking": False})]
        on = [dict(enable_thinking=True), dict(reasoning_effort="high"), dict(thinking={"type": "adaptive"})]
        for path, thoughts in ((CHAT, self.of_chat), (MESSAGES, self.of_messages), (RESPONSES, self.of_responses)):
            for words in off:
                self.assertEqual(thoughts(**words)[0], "", (path, words))
            for words in on + [dict(thinking={"type": "enabled", "budget_tokens": 5})]:
                self.assertNotEqual(thoughts(**words)[0], "", (path, words))
            budgeted = thoughts(thinking={"type": "enabled", "budget_tokens": 5})
            self.assertNotEqual(budgeted[1], "")
            self.assertEqual(budgeted, self.of_chat(thinking_token_budget=5))
        self.assertEqual(self.of_responses(reasoning={"effort": "none"})[0], "")
        self.assertNotEqual(self.of_responses(reasoning={"effort": "low"})[0], "")

    def of_chat(self, **words):
        message = self.served.post(CHAT, messages=HI, max_tokens=30, **BODY, **words)["choices"][0]["message"]
        return message.get("reasoning_content", ""), message["content"]

    def of_messages(self, **words):
        body = dict(messages=HI, max_tokens=30, **BODY, **words)
        whole = self.served.post(MESSAGES, **body)
        said = events_of(self.served.stream(MESSAGES, **body))
        blocks = []
        for name, event in said:
            if name == "content_block_start":
                blocks.append(event["content_block"])
            elif name == "content_block_delta":
                for key in ("text", "thinking", "signature"):
                    if key in event["delta"]:
                        blocks[-1][key] += event["delta"][key]
        self.assertEqual(blocks, whole["content"])
        return ("".join(b["thinking"] for b in blocks if b["type"] == "thinking"),
                "".join(b["text"] for b in blocks if b["type"] == "text"))

    def of_responses(self, **words):
        body = dict(input="hi", max_output_tokens=30, **BODY, **words)
        whole = self.served.post(RESPONSES, **body)
        said = [json.loads(block.split("data: ")[1]) for block in self.served.stream(RESPONSES, **body).decode().split("\n\n")[:-1]]
        self.assertEqual([{**item, "id": None} for item in said[-1]["response"]["output"]],
                         [{**item, "id": None} for item in whole["output"]])
        self.assertEqual(whole["usage"]["output_tokens_details"].keys(), {"reasoning_tokens"})
        deltas = {kind: "".join(e["delta"] for e in said if e["type"] == f"response.{kind}.delta")
                  for kind in ("reasoning_text", "output_text")}
        text = {kind: "".join(part["text"] for item in whole["output"] for part in item["content"] if part["type"] == kind)
                for kind in deltas}
        self.assertEqual(deltas, text)
        return text["reasoning_text"], text["output_text"]

    def test_a_form_begins_behind_the_thought(self):
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
        choice, thought = self.chat(response_format=form, thinking_token_budget=6)
        self.assertIn(json.loads(choice["message"]["content"])["days"], (1, 2, 3))
        self.assertGreater(thought, 6)
        self.assertNotEqual(choice["message"]["reasoning"], "")
        choice, thought = self.chat(response_format=form, enable_thinking=False)
        self.assertEqual((json.loads(choice["message"]["content"]).keys(), thought), ({"days"}, 0))
        tool = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
        choice = self.served.post(CHAT, messages=HI, max_tokens=60, tools=[tool], tool_choice="required",
                                  thinking_token_budget=4, **BODY)["choices"][0]
        self.assertIn(json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["days"], (1, 2, 3))
        self.assertNotEqual(choice["message"]["reasoning"], "")

    def test_stop_strings_count_behind_thoughts(self):
        thought = self.of_chat()[0]
        word = next(w for w in thought.split() if w.isalpha())
        self.assertEqual(self.of_chat(stop=word)[0], thought)
        self.assertLess(len(self.of_chat(stop=word, stop_in_reasoning=True)[0]), len(thought))

    def test_signed_thoughts_come_back(self):
        body = dict(max_tokens=30, thinking={"type": "enabled", "budget_tokens": 5}, **BODY)
        said = self.served.post(MESSAGES, messages=HI, **body)["content"]
        self.assertEqual([block["type"] for block in said], ["thinking", "text"])
        more = HI + [{"role": "assistant", "content": said}, {"role": "user", "content": "and?"}]
        tokens = lambda: self.served.ask("POST", MESSAGES + "/render", dict(messages=more, **body))
        status, headers, kept = tokens()
        self.assertEqual((status, headers.get("X-Invar-Warning")), (200, None))
        self.assertEqual(kept["messages"][1]["reasoning_content"], said[0]["thinking"])
        # A thought that was changed, or that another server signed, is left out and said to be.
        for wrong in (dict(thinking=said[0]["thinking"] + "!"), dict(signature="EqQBCgIYAg=="), dict(signature=None)):
            more[1]["content"] = [said[0] | wrong, said[1]]
            status, headers, _ = self.served.ask("POST", MESSAGES, dict(messages=more, **body))
            self.assertEqual(status, 200)
            self.assertIn("signature", headers["X-Invar-Warning"])
            self.assertNotIn("reasoning_content", tokens()[2]["messages"][1])

    def test_closed_thoughts_come_back(self):
        body = dict(max_output_tokens=30, reasoning={"effort": "minimal", "summary": "auto"}, thinking_token_budget=5,
                    include=["reasoning.encrypted_content"], **BODY)
        output = self.served.post(RESPONSES, input="hi", **body)["output"]
        self.assertEqual([item["type"] for item in output], ["reasoning", "message"])
        self.assertEqual(output[0]["summary"][0]["text"], output[0]["content"][0]["text"])
        closed = {"type": "reasoning", "summary": [], "encrypted_content": output[0]["encrypted_content"]}
        question = [{"role": "user", "content": "hi"}]
        again = self.served.post(RESPONSES, input=question + [closed, output[1]], **body)
        opened = {"type": "reasoning", "summary": [], "content": output[0]["content"]}
        same = self.served.post(RESPONSES, input=question + [opened, output[1]], **body)
        for name in ("input_tokens", "output_tokens"):
            self.assertEqual(same["usage"][name], again["usage"][name])
        closed["encrypted_content"] = closed["encrypted_content"][:-2] + "00"
        status, headers, _ = self.served.ask("POST", RESPONSES, dict(input=question + [closed], **body))
        self.assertEqual((status, "another server closed it" in headers["X-Invar-Warning"]), (200, True))
        first = self.served.post(RESPONSES, input="hi", **body)
        self.served.post(RESPONSES, input="and?", previous_response_id=first["id"], **body)

    def test_thoughts_of_earlier_turns_are_what_the_template_says(self):
        def tokens(*turn):
            messages = HI + [dict(role="assistant", content="yes", **t) for t in turn] + HI
            return self.served.post("/tokenize", messages=messages)["count"]
        self.assertEqual(tokens({}), tokens({"reasoning_content": "long and deep"}))  # the template drops it

    def test_receipts_and_a_new_server_say_the_same(self):
        body = dict(messages=HI, max_tokens=30, receipt=True, thinking_token_budget=6, stop=["zebra"],
                    response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}, **BODY)
        answer = self.served.post(CHAT, **body)
        self.assertEqual(json.loads(answer["choices"][0]["receipt"]["request"]["form"])["thought"],
                         {"parser": "qwen3", "begun": True, "budget": 6})
        file, asked = self.root / "answer.json", self.root / "request.json"
        asked.write_text(json.dumps(body))
        verify = [INVAR, "verify", file, self.model, "--threads", "1", "--chat-template", self.template]
        for flags, change, expected in (([], None, 0), (["--request", asked], None, 0), ([], "reasoning_content", 1)):
            shown = json.loads(json.dumps(answer))
            if change:
                shown["choices"][0]["message"][change] += "!"
            file.write_text(json.dumps(shown))
            run = subprocess.run([*map(str, verify), *map(str, flags)], capture_output=True, text=True)
            self.assertEqual(run.returncode, expected, run.stdout + run.stderr)
        other = [sys.executable, str(ROOT / "examples" / "verify_receipt.py"), str(file), str(self.model)]
        for budget, change, expected in ((6, "", 0), (7, "", 1), (6, "!", 1)):
            shown = json.loads(json.dumps(answer))
            shown["choices"][0]["message"]["reasoning_content"] += change
            file.write_text(json.dumps(shown))
            asked.write_text(json.dumps({**body, "thinking_token_budget": budget}))
            run = subprocess.run([*other, "--request", str(asked)], capture_output=True, text=True)
            self.assertEqual(run.returncode, expected, run.stdout + run.stderr)
        asked.write_text(json.dumps({**body, "thinking_token_budget": 7}))
        file.write_text(json.dumps(answer))
        run = subprocess.run([*map(str, verify), "--request", str(asked)], capture_output=True, text=True)
        self.assertEqual(run.returncode, 1, run.stdout)

    def test_an_idempotency_key_gives_the_answer_again(self):
        body = dict(messages=HI, max_tokens=30, thinking_token_budget=6, **BODY)
        first = self.served.ask("POST", CHAT, body, {"Idempotency-Key": "once"})
        again = self.served.ask("POST", CHAT, body, {"Idempotency-Key": "once"})
        self.assertEqual(first[2], again[2])
        self.assertIn("reasoning_content", first[2]["choices"][0]["message"])

    def test_what_is_refused(self):
        for path, words, named in (
                (CHAT, dict(reasoning_effort="extreme"), "reasoning_effort"),
                (CHAT, dict(thinking={"type": "enabled", "budget_tokens": 0}), "budget_tokens"),
                (CHAT, dict(thinking={"type": "maybe"}), "thinking"),
                (CHAT, dict(thinking="yes"), "thinking"),
                (CHAT, dict(thinking={"type": "adaptive", "budget_tokens": 3}), "budget_tokens"),
                (CHAT, dict(thinking_token_budget=-1), "thinking_token_budget"),
                (CHAT, dict(enable_thinking="no"), "enable_thinking"),
                (RESPONSES, dict(reasoning={"effort": "low", "depth": 3}), "depth"),
                (MESSAGES, dict(thinking={"type": "enabled", "budget": 3}), "budget")):
            said = dict(input="hi") if path == RESPONSES else dict(messages=HI)
            status, _, answer = self.served.ask("POST", path, dict(max_tokens=9, **said, **words))
            self.assertEqual(status, 400, words)
            self.assertIn(named, answer["error"]["message"])

    def test_parsers_that_do_not_exist_or_fit(self):
        for flags, named in ((["--reasoning-parser", "qwen9"], "qwen9"), (["--tool-call-parser", "qwen9"], "qwen9"),
                             (["--tool-call-parser", "gpt_oss"], "reasoning-parser gpt_oss")):
            run = subprocess.run([INVAR, "serve", self.model, "--port", "0", *self.flags, *flags], capture_output=True, text=True,
                                 timeout=30)
            self.assertEqual(run.returncode, 2, run.stderr)
            self.assertIn(named, run.stderr.strip().split("\n")[-1])

    def test_an_answer_that_was_begun_is_the_same_after_a_restart(self):
        begun = [*HI, {"role": "assistant", "content": "So", "prefix": True}]
        flags = ("--journal", str(self.root / "begun"), "--reasoning-parser", "qwen3")
        served = self.serve(*flags)
        body = dict(messages=begun, max_tokens=60, structured_outputs={"choice": ["<think>a</think>b"]})
        told = {}
        for path in (CHAT, MESSAGES):
            whole = served.post(path, **body)
            told[f"{path}/{whole['id']}"] = whole.get("choices") or whole["content"]
        self.assertIn("<think>a</think>b", json.dumps([*told.values()]), "it goes on with words, so it has no thought")
        self.assertEqual(served.stop(), 0)
        served = self.serve(*flags)
        for path, said in told.items():
            again = served.ask("GET", path)[2]
            self.assertEqual(again.get("choices") or again["content"], said)
        self.assertEqual(served.stop(), 0)

    def test_without_a_parser_the_text_has_everything(self):
        plain = self.serve("--reasoning-parser", "none")
        try:
            body = dict(messages=HI, max_tokens=30, logits_hash=True, **BODY)
            whole = plain.post(CHAT, **body)
            mine = self.served.post(CHAT, **body)
            self.assertEqual(whole["choices"][0]["message"]["content"].strip("\n"),
                             mine["choices"][0]["message"]["reasoning_content"])
            self.assertEqual(whole["choices"][0]["logits_hash"], mine["choices"][0]["logits_hash"])
            self.assertNotIn("completion_tokens_details", whole["usage"])
            status, _, answer = plain.ask("POST", CHAT, dict(reasoning_effort="low", **body))
            self.assertEqual((status, "reasoning-parser" in answer["error"]["message"]), (400, True))
            plain.post(CHAT, thinking={"type": "disabled"}, **body)
        finally:
            plain.stop()


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main()
