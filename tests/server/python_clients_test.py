#!/usr/bin/env python3
"""The usual calls of the Python packages openai, anthropic, litellm and langchain-openai. Usage: python_clients_test.py INVAR"""
import asyncio
import faulthandler
import os
import sys
import unittest

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LANGSMITH_TRACING="false")

import anthropic
import litellm
import openai
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

from served import Served

INVAR = None
SECONDS = 300  # of the whole, imports included; then it says where each thread stands
faulthandler.dump_traceback_later(SECONDS, exit=True)
HELLO = [{"role": "user", "content": "hello"}]


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
        ask = dict(model="openai/m", api_base=self.url + "/v1", api_key="k", messages=HELLO, max_tokens=8, seed=3)
        whole = litellm.completion(**ask)
        parts = [part.choices[0].delta.content or "" for part in litellm.completion(**ask, stream=True)]
        self.assertEqual("".join(parts), whole.choices[0].message.content)
        by_claude = litellm.completion(model="anthropic/m", api_base=self.url, api_key="k", messages=HELLO, max_tokens=8)
        self.assertTrue(by_claude.choices[0].message.content)
        with self.assertRaises(litellm.AuthenticationError):
            litellm.completion(**{**ask, "api_key": "x"}, num_retries=0)

    def test_langchain(self):
        chat = ChatOpenAI(model="m", base_url=self.url + "/v1", api_key="k", max_tokens=8, seed=3)
        messages = [SystemMessage("be kind"), HumanMessage("hello")]
        whole = chat.invoke(messages)
        self.assertEqual("".join(part.content for part in chat.stream(messages)), whole.content)
        self.assertEqual([one.content for one in chat.batch([messages, messages])], [whole.content] * 2)
        text = OpenAI(model="m", base_url=self.url + "/v1", api_key="k", max_tokens=8, seed=3, temperature=1.0)
        self.assertTrue(text.invoke("hello"))


if __name__ == "__main__":
    INVAR = sys.argv.pop(1)
    unittest.main()
