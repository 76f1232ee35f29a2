"""AsyncLLM: coroutines' answers are those of LLM; pauses, aborts, streams."""
import asyncio
import unittest

import invar
from invar import RequestOutputKind, SamplingParams
from support import tiny

PROMPTS = ["hello", "once upon a time", "a"]


async def last(stream):
    async for output in stream:
        found = output
    return found


class AsyncTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.llm = tiny(kind=invar.AsyncLLM, max_model_len=4096)

    async def asyncTearDown(self):
        self.llm.shutdown()

    async def test_answers_are_those_of_llm(self):
        params = SamplingParams(n=2, max_tokens=12, seed=5, ignore_eos=True)
        found = await asyncio.gather(*(last(self.llm.generate(p, params, f"r{i}")) for i, p in enumerate(PROMPTS)))
        with tiny() as offline:
            expected = offline.generate(PROMPTS, params, use_tqdm=False)
        for ours, theirs in zip(found, expected):
            self.assertEqual(ours.outputs, theirs.outputs)

    async def test_a_stream_grows_to_the_whole(self):
        params = SamplingParams(max_tokens=12, seed=5, ignore_eos=True)
        whole = await last(self.llm.generate("hello", params))
        deltas = [o async for o in self.llm.generate("hello", params.clone(output_kind=RequestOutputKind.DELTA))]
        self.assertGreaterEqual(len(deltas), 12)
        self.assertEqual("".join(o.outputs[0].text for o in deltas), whole.outputs[0].text)
        self.assertEqual(sum((o.outputs[0].token_ids for o in deltas), []), whole.outputs[0].token_ids)
        grown = [o async for o in self.llm.generate("hello", params)]
        self.assertEqual([len(o.outputs[0].token_ids) for o in grown[:12]], list(range(1, 13)))
        final = [o async for o in self.llm.generate("hello", params.clone(output_kind=RequestOutputKind.FINAL_ONLY))]
        self.assertEqual([o.outputs[0].logits_hash for o in final], [whole.outputs[0].logits_hash])

    async def test_errors_go_to_whoever_asked(self):
        with self.assertRaises(ValueError):
            await last(self.llm.generate(list(range(300)) + [1] * 4000, SamplingParams(max_tokens=4)))
        self.assertEqual(len((await last(self.llm.generate("a", SamplingParams(max_tokens=4, ignore_eos=True)))).outputs[0].token_ids), 4)

    async def test_who_stops_to_listen_cancels(self):
        async for _ in self.llm.generate("hello", SamplingParams(max_tokens=200, ignore_eos=True)):
            break
        await self.llm.pause_generation("wait")
        await self.llm.resume_generation()
        await self.llm.sleep()
        await self.llm.wake_up()

    def begin(self, params, name=None):
        """A task with an answer's last output, and what is set at its first."""
        begun = asyncio.Event()

        async def answer():
            async for output in self.llm.generate("hello", params, *([name] if name else [])):
                begun.set()
                found = output
            return found

        return asyncio.create_task(answer()), begun

    async def test_abort_and_pauses(self):
        params = SamplingParams(max_tokens=2000, seed=1, ignore_eos=True)  # they go on when this thread comes to pause them
        task, begun = self.begin(params, "one")
        await begun.wait()
        await self.llm.abort("one")
        self.assertEqual((await task).outputs[0].finish_reason, "abort")
        kept, begun = self.begin(params)
        await begun.wait()
        await self.llm.pause_generation("keep")
        late = asyncio.create_task(last(self.llm.generate("a", params)))
        await asyncio.sleep(0.1)
        self.assertFalse(kept.done() or late.done())
        await self.llm.resume_generation()
        with tiny(max_model_len=4096) as offline:
            expected = offline.generate(["hello", "a"], params, use_tqdm=False)
        self.assertEqual((await kept).outputs, expected[0].outputs)
        self.assertEqual((await late).outputs, expected[1].outputs)

    async def test_no_answer_mixes_weights(self):
        params = SamplingParams(max_tokens=30, seed=1, ignore_eos=True)
        with tiny(seed=8) as other:
            expected, weights = other.generate("hello", params, False)[0], list(other.named_weights())
        running, begun = self.begin(params)
        await begun.wait()
        await self.llm.pause_generation("wait")
        held = asyncio.create_task(last(self.llm.generate("hello", params)))
        await self.llm.update_weights(weights, "8")
        await self.llm.resume_generation()
        before, after = await running, await held
        self.assertEqual([before.weight_version, after.weight_version], ["default", "8"])
        self.assertEqual(after.outputs, expected.outputs)
        self.assertNotEqual(before.outputs, expected.outputs)


if __name__ == "__main__":
    unittest.main()
