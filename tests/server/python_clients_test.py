#!/usr/bin/env python3
"""The usual calls of the Python packages openai, anthropic, litellm, langchain-openai, instructor, llm, lm-eval and ollama; a package that is
not there is skipped by its name. Usage: python_clients_test.py INVAR"""
import asyncio
import faulthandler
import importlib
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import typing
import unittest

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LANGSMITH_TRACING="false", LLM_LOAD_PLUGINS="", HF_HUB_OFFLINE="1")

import openai

from served import FAST, Served

INVAR = None
STORY = pathlib.Path(__file__).resolve().parents[2] / "models/story"
SECONDS = 300  # of the whole, imports included; then it says where each thread stands
faulthandler.dump_traceback_later(SECONDS, exit=True)
HELLO = [{"role": "user", "content": "hello"}]


def package(name):
    """The package, or the test is skipped by its name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise unittest.SkipTest(f"{name} is not installed: {error}") from None


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.served = Served(INVAR, "--api-key", "k", name="m")
        cls.url = f"http://127.0.0.1:{cls.served.port}"

    @classmethod
    def tearDownClass(cls):
        assert cls.served.stop() == 0

    def test_openai(self):
        client = openai.OpenAI(base_url=self.url + "/v1", api_key="k", max_retries=0)
        self.assertEqual([model.id for model in client.models.list()], ["m"])
        chat = client.chat.completions.create(model="m", messages=HELLO, max_tokens=8, seed=3, logprobs=True, top_logprobs=2)
        self.assertEqual(len(chat.choices[0].logprobs.content), chat.usage.completion_tokens)
        again = client.chat.completions.create(model="m", messages=HELLO, max_tokens=8, seed=3)
        self.assertEqual(again.choices[0].message.content, chat.choices[0].message.content)
        other = client.chat.completions.create(model="m", messages=HELLO, max_tokens=8, seed=4)
        self.assertNotEqual(other.choices[0].message.content, chat.choices[0].message.content)
        stream = client.chat.completions.create(model="m", messages=HELLO, max_tokens=8, seed=3, stream=True,
                                                stream_options={"include_usage": True})
        parts = list(stream)
        self.assertEqual("".join(p.choices[0].delta.content or "" for p in parts if p.choices), chat.choices[0].message.content)
        self.assertEqual(parts[-1].usage.completion_tokens, chat.usage.completion_tokens)
        self.assertEqual(len(client.completions.create(model="m", prompt=["a", "b"], n=2, max_tokens=3).choices), 4)
        self.assertGreater(len(client.embeddings.create(model="m", input="hello").data[0].embedding), 8)
        response = client.responses.create(model="m", input="hello", max_output_tokens=8)
        self.assertEqual(response.output[0].type, "message")
        form = client.chat.completions.create(model="m", messages=HELLO, max_tokens=60, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}}})
        self.assertIn(form.choices[0].message.content, ('"yes"', '"no"'))
        with self.assertRaises(openai.BadRequestError):
            client.chat.completions.create(model="m", messages=[], max_tokens=8)
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=self.url + "/v1", api_key="x", max_retries=0).models.list()

    def test_a_schema_that_is_not_followed(self):
        """What is checked when the answer ends: eleven digits that all differ."""
        digits = {"type": "array", "minItems": 11, "maxItems": 11, "items": {"type": "integer", "minimum": 0, "maximum": 9}, "uniqueItems": True}
        form = {"type": "json_schema", "name": "x", "schema": {"type": "object", "properties": {"a": digits}, "required": ["a"]}}
        client = openai.OpenAI(base_url=self.url + "/v1", api_key="k")  # which tries again what was the server's fault
        ask = lambda **more: client.chat.completions.create(model="m", messages=HELLO, max_tokens=60, seed=3, **more,
                                                            response_format={"type": "json_schema", "json_schema": form})
        with self.assertRaises(openai.UnprocessableEntityError) as raised:
            ask()
        self.assertEqual(raised.exception.code, "schema_not_followed")
        with self.assertRaisesRegex(openai.APIError, "uniqueItems"):
            list(ask(stream=True))
        events = list(client.responses.create(model="m", input="hello", max_output_tokens=60, text={"format": form}, stream=True))
        self.assertEqual((events[-1].type, events[-1].response.status), ("response.failed", "failed"))
        self.assertEqual(events[-1].response.error.code, "schema_not_followed")
        with self.assertRaisesRegex(package("anthropic").UnprocessableEntityError, "uniqueItems"):
            package("anthropic").Anthropic(base_url=self.url, api_key="k").messages.create(
                model="m", max_tokens=60, messages=HELLO, extra_body={"output_config": {"format": form}})

    def test_openai_in_the_background(self):
        with tempfile.TemporaryDirectory(prefix="invar-clients-") as folder:
            served = Served(INVAR, "--api-key", "k", "--journal", str(pathlib.Path(folder, "journal")), name="m")
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="k", max_retries=0)
            asked = dict(model="m", input="hello", max_output_tokens=20, extra_body={"seed": 3})
            response = client.responses.create(**asked, background=True)
            self.assertEqual(response.status, "queued")
            while response.status in ("queued", "in_progress"):
                time.sleep(0.05)
                response = client.responses.retrieve(response.id)
            self.assertEqual(response.output_text, client.responses.create(**asked).output_text)
            counted = client.responses.input_tokens.count(model="m", input="hello")
            self.assertEqual(counted.input_tokens, response.usage.input_tokens)
            client.responses.delete(response.id)
            with self.assertRaises(openai.NotFoundError):
                client.responses.retrieve(response.id)
            self.assertEqual(served.stop(), 0)

    def test_openai_with_coroutines(self):
        async def ask():
            async with openai.AsyncOpenAI(base_url=self.url + "/v1", api_key="k") as client:
                answers = await asyncio.gather(*(client.completions.create(model="m", prompt="a", max_tokens=5, seed=i)
                                                 for i in (1, 2, 1)))
            return [answer.choices[0].text for answer in answers]
        texts = asyncio.run(ask())
        self.assertEqual(texts[0], texts[2])
        self.assertNotEqual(texts[0], texts[1])

    def test_anthropic(self):
        anthropic = package("anthropic")
        client = anthropic.Anthropic(base_url=self.url, api_key="k", max_retries=0)
        message = client.messages.create(model="m", max_tokens=8, messages=HELLO, system="be kind", extra_body={"temperature": 0})
        self.assertEqual(message.content[0].type, "text")
        self.assertEqual(message.stop_reason, "max_tokens")
        with client.messages.stream(model="m", max_tokens=8, messages=HELLO, system="be kind", extra_body={"temperature": 0}) as stream:
            self.assertEqual("".join(stream.text_stream), message.content[0].text)
        self.assertGreater(client.messages.count_tokens(model="m", messages=HELLO).input_tokens, 0)
        with self.assertRaises(anthropic.BadRequestError):
            client.messages.create(model="m", max_tokens=8, messages=[{"role": "nobody", "content": "x"}])

    def test_litellm(self):
        litellm = package("litellm")
        ask = dict(model="openai/m", api_base=self.url + "/v1", api_key="k", messages=HELLO, max_tokens=8, seed=3)
        whole = litellm.completion(**ask)
        parts = [part.choices[0].delta.content or "" for part in litellm.completion(**ask, stream=True)]
        self.assertEqual("".join(parts), whole.choices[0].message.content)
        by_claude = litellm.completion(model="anthropic/m", api_base=self.url, api_key="k", messages=HELLO, max_tokens=8)
        self.assertTrue(by_claude.choices[0].message.content)
        with self.assertRaises(litellm.AuthenticationError):
            litellm.completion(**{**ask, "api_key": "x"}, num_retries=0)
        ranked = litellm.rerank(model="hosted_vllm/m", api_base=self.url, api_key="k", query="a", documents=["b", "c"], top_n=1)
        self.assertEqual(len(ranked.results), 1)

    def test_langchain(self):
        ChatOpenAI, OpenAI = package("langchain_openai").ChatOpenAI, package("langchain_openai").OpenAI
        HumanMessage, SystemMessage = package("langchain_core.messages").HumanMessage, package("langchain_core.messages").SystemMessage
        chat = ChatOpenAI(model="m", base_url=self.url + "/v1", api_key="k", max_tokens=8, seed=3)
        messages = [SystemMessage("be kind"), HumanMessage("hello")]
        whole = chat.invoke(messages)
        self.assertEqual("".join(part.content for part in chat.stream(messages)), whole.content)
        self.assertEqual([one.content for one in chat.batch([messages, messages])], [whole.content] * 2)
        text = OpenAI(model="m", base_url=self.url + "/v1", api_key="k", max_tokens=8, seed=3, temperature=1.0)
        self.assertTrue(text.invoke("hello"))

    def test_instructor(self):
        instructor, BaseModel = package("instructor"), package("pydantic").BaseModel

        class Verdict(BaseModel):
            good: bool
            kind: typing.Literal["a", "b"]

        for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
            client = instructor.from_openai(openai.OpenAI(base_url=self.url + "/v1", api_key="k", max_retries=0), mode=mode)
            found = client.chat.completions.create(model="m", messages=HELLO, max_tokens=30, seed=3, response_model=Verdict, max_retries=0)
            self.assertIsInstance(found, Verdict)

    def test_llm(self):
        package("llm")
        with tempfile.TemporaryDirectory(prefix="invar-llm-") as folder:
            pathlib.Path(folder, "extra-openai-models.yaml").write_text(
                f"- model_id: invar\n  model_name: m\n  api_base: {self.url}/v1\n  api_key_name: invar\n")
            asked = [sys.executable, "-m", "llm", "-m", "invar", "--key", "k", "-o", "max_tokens", "8", "-o", "seed", "3"]
            texts = [subprocess.run([*asked, *more, "hello"], capture_output=True, text=True, check=True,
                                    env={**os.environ, "LLM_USER_PATH": folder}).stdout for more in ((), ("--no-stream",))]
            self.assertTrue(texts[0].strip())
            self.assertEqual(texts[0], texts[1])

    def test_ollama(self):
        client = package("ollama").Client(host=self.url, headers={"Authorization": "Bearer k"})
        self.assertEqual([model.model for model in client.list().models], ["m:latest"])
        self.assertEqual(client.ps().models[0].model, "m:latest")
        self.assertIn("completion", client.show("m").capabilities)
        options = {"num_predict": 8, "seed": 3}
        chat = client.chat("m", HELLO, options=options)
        same = openai.OpenAI(base_url=self.url + "/v1", api_key="k").chat.completions.create(model="m", messages=HELLO, max_tokens=8, seed=3)
        self.assertEqual((chat.message.content, chat.eval_count), (same.choices[0].message.content, same.usage.completion_tokens))
        parts = list(client.chat("m:latest", HELLO, options=options, stream=True))
        self.assertEqual("".join(part.message.content for part in parts), chat.message.content)
        self.assertTrue(parts[-1].done and parts[-1].eval_duration > 0)
        schema = {"type": "object", "properties": {"days": {"enum": [1, 2]}}, "required": ["days"]}
        self.assertIn("days", client.chat("m", HELLO, format=schema, options={"num_predict": 60}).message.content)
        generated = client.generate("m", "hello", options=options)
        self.assertEqual(generated.response, "".join(part.response for part in client.generate("m", "hello", options=options, stream=True)))
        self.assertEqual(len(client.embed("m", ["a", "b"]).embeddings), 2)
        self.assertEqual(client.embeddings("m", "a").embedding[:2], client.embeddings("m", "a").embedding[:2])
        with self.assertRaisesRegex(package("ollama").ResponseError, "invar pull"):
            client.pull("other")
        with self.assertRaisesRegex(package("ollama").ResponseError, "images"):
            client.chat("m", [{"role": "user", "content": "x", "images": [b"png"]}])

    def test_openai_batches(self):
        with tempfile.TemporaryDirectory() as folder:
            served = Served(INVAR, "--journal", folder + "/journal", name="m")
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="k", max_retries=0)
            lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions",
                      "body": {"model": "m", "messages": HELLO, "max_tokens": 4, "seed": i}} for i in range(5)]
            path = pathlib.Path(folder, "in.jsonl")
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            file = client.files.create(file=path.open("rb"), purpose="batch")
            batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
            end = time.monotonic() + 60
            while batch.status != "completed":
                self.assertLess(time.monotonic(), end, batch)
                time.sleep(0.05)
                batch = client.batches.retrieve(batch.id)
            said = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
            self.assertEqual([one["custom_id"] for one in said], [str(i) for i in range(5)])
            self.assertEqual([one.id for one in client.batches.list()], [batch.id])
            self.assertTrue(client.files.delete(file.id).deleted)
            self.assertEqual(served.stop(), 0)

    def test_lm_evals_remote_tokenizer(self):
        utils = package("lm_eval.utils")
        served = Served(INVAR, command=[INVAR, "serve", STORY, "--host", "127.0.0.1", "--port", "0", "--served-model-name", "m", *FAST])
        url = f"http://127.0.0.1:{served.port}/v1/completions"
        self.assertTrue(utils.check_remote_tokenizer_support(url))
        tokenizer = utils.RemoteTokenizer(url)
        self.assertEqual(tokenizer.decode(tokenizer.encode("hello world")), "hello world")
        self.assertEqual(tokenizer.encode(tokenizer.eos_token), [tokenizer.eos_token_id])
        self.assertEqual(served.stop(), 0)

    def test_lm_eval(self):
        models, instance = package("lm_eval.models.openai_completions"), package("lm_eval.api.instance")
        os.environ["OPENAI_API_KEY"] = "k"
        served = Served(INVAR, command=[INVAR, "serve", STORY, "--host", "127.0.0.1", "--port", "0", "--served-model-name", "m", *FAST])
        url = f"http://127.0.0.1:{served.port}/v1"
        model = models.LocalCompletionsAPI(model="m", base_url=url + "/completions", tokenizer_backend="huggingface", tokenizer=str(STORY),
                                           num_concurrent=1, max_retries=1)
        pairs = [("hello", " world"), ("hello", " there")]
        requests = [instance.Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
        found = model.loglikelihood(requests, disable_tqdm=True)
        client = openai.OpenAI(base_url=url, api_key="k", max_retries=0)
        for (context, rest), (likelihood, _) in zip(pairs, found):
            told = client.completions.create(model="m", prompt=context + rest, max_tokens=0, echo=True, logprobs=1).choices[0].logprobs
            behind = [p for p, at in zip(told.token_logprobs, told.text_offset) if at >= len(context)]
            self.assertTrue(math.isclose(likelihood, sum(behind), rel_tol=1e-6), (likelihood, behind))
        self.assertNotEqual(found[0][0], found[1][0], "the control: other words")
        self.assertEqual(served.stop(), 0)

    def test_lm_evals_tasks(self):
        """The harness's own models for servers, by tasks of its kind: no number of requests at once changes a result."""
        package("lm_eval")
        os.environ.update(OPENAI_API_KEY="k", HF_DATASETS_OFFLINE="1")
        served = Served(INVAR, command=[INVAR, "serve", STORY, "--host", "127.0.0.1", "--port", "0", "--served-model-name", "m", *FAST])
        url = f"http://127.0.0.1:{served.port}/v1"
        for model, tasks, path in (("local-completions", ["endings", "continued"], "/completions"), ("local-chat-completions", ["continued"], "/chat/completions")):
            tokenizer = {"tokenizer_backend": "remote"} if "endings" in tasks else {}
            args = dict(model="m", base_url=url + path, max_retries=1, **tokenizer)
            one, many = (evaluated(model, dict(args, num_concurrent=n), tasks, STORIES) for n in (1, 8))
            self.assertEqual(one, many)
            self.assertEqual({name: len(said) for name, said in one.items()}, {name: len(STORIES) for name in tasks})
            other = evaluated(model, dict(args, num_concurrent=8), tasks, [text.replace("a", "e") for text in STORIES])
            for name in tasks:
                self.assertNotEqual(other[name], one[name], "the control: other words")
        self.assertEqual(served.stop(), 0)


STORIES = ["Once upon a time there was a little girl named Lily.", "Tom had a big red ball.", "The cat sat on the mat and slept.",
           "One day a boy went to the park with his dog.", "She was very happy to see her mom.", "They played all day in the sun."]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/data.jsonl}}}}
test_split: test
doc_to_text: "{{{{begin}}}}"
"""
KINDS = {"endings": "{output_type: multiple_choice, doc_to_choice: choices, doc_to_target: 0, metric_list: [{metric: acc}]}",
         "continued": "{output_type: generate_until, doc_to_target: '{{rest}}', metric_list: [{metric: exact_match}], "
                      "generation_kwargs: {until: ['.'], max_gen_toks: 16, do_sample: false}}"}


def evaluated(model, args, tasks, texts):
    """The answers to each of lm-eval's tasks, text by text: log-probabilities of endings, and texts that go on."""
    lm_eval, managed = package("lm_eval"), package("lm_eval.tasks")
    with tempfile.TemporaryDirectory(prefix="invar-lm-eval-") as folder:
        halves = [(text[:len(text) // 2], text[len(text) // 2:]) for text in texts]
        rows = [{"begin": begin, "rest": rest, "choices": [rest, " " + halves[i - 1][1], " xyz"]} for i, (begin, rest) in enumerate(halves)]
        pathlib.Path(folder, "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for name in tasks:
            kind = "".join(f"{key}: {json.dumps(value)}\n" for key, value in package("yaml").safe_load(KINDS[name]).items())
            pathlib.Path(folder, f"{name}.yaml").write_text(TASK.format(name=name, folder=folder) + kind)
        found = lm_eval.simple_evaluate(model=model, model_args=args, tasks=tasks, log_samples=True, bootstrap_iters=0, apply_chat_template="chat" in model,
                                        task_manager=managed.TaskManager(include_path=folder, include_defaults=False))
    return {name: [sample["resps"] for sample in samples] for name, samples in found["samples"].items()}


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main()
