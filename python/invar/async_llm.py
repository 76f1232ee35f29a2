"""A model that is open for coroutines: a thread computes steps, requests come and go between them."""
from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import Future
from typing import Any, Callable, Optional

from ._invar import Generation, Session, Update
from .engine_args import session_options
from .lora import LoRARequest, paths_of
from .outputs import CompletionOutput, RequestOutput
from .params import RequestOutputKind, SamplingParams, Seeds
from .requests import Asked, Prompt, default_params, output_of, tokens_of
from .tokenizer import Tokenizer
from .weights import Weights

_PAUSES = ("abort", "wait", "keep")


class _Live:
    """A request whose answers are computed: what has come of each, and where its consumer waits."""

    def __init__(self, request_id: str, asked: Asked, version: str) -> None:
        self.request_id = request_id
        self.asked = asked
        self.version = version
        self.loop = asyncio.get_running_loop()
        self.events: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        self.ids: list[int] = []  # of the session, an answer each

    def tell(self, answer: int, event: Any) -> None:
        """From the engine's thread."""
        try:
            self.loop.call_soon_threadsafe(self.events.put_nowait, (answer, event))
        except RuntimeError:  # its loop is closed: nobody waits
            pass


class AsyncLLM:
    """A model with its tokenizer, for coroutines. Arguments are those of LLM.

    An answer is computed by one version of the weights: they change only while no request is live.
    """

    def __init__(self, model: str, **engine_args: Any) -> None:
        options = session_options("AsyncLLM", model, engine_args)
        self._session = Session(options)
        self._weights = Weights(self._session)
        self.model = options.model
        self._logprobs_mode = options.logprobs_mode
        self._seeds = Seeds(engine_args.get("seed"))
        self._tokenizer = Tokenizer(self._session, self.model)
        self._tasks: queue.SimpleQueue[Optional[Callable[[], None]]] = queue.SimpleQueue()
        self._live: dict[str, _Live] = {}  # of the engine's thread, as what follows
        self._answers: dict[int, tuple[_Live, int]] = {}
        self._held: list[_Live] = []  # came while it was paused
        self._paused = ""  # how
        self._number = 0
        self._thread = threading.Thread(target=self._run, name="invar", daemon=True)
        self._thread.start()

    async def generate(self, prompt: Prompt, sampling_params: Optional[SamplingParams] = None,
                       request_id: Optional[str] = None,
                       lora_request: Optional[LoRARequest] = None) -> AsyncIterator[RequestOutput]:
        """The answer as it grows: all of it so far at each step, or as sampling_params.output_kind says.

        Whoever stops to iterate cancels the request.
        """
        params = sampling_params or self.get_default_sampling_params()
        self._number += 1
        live = _Live(request_id or f"request-{self._number}",
                     Asked(*tokens_of(prompt, self._tokenizer), params, self._seeds.of(params), *paths_of(lora_request, 1)),
                     self._weights.weight_version)
        self._do(lambda: self._add(live))
        try:
            async for output in _outputs(live, self._tokenizer):
                yield output
        finally:
            self._do(lambda: self._drop(live, tell=False))

    async def abort(self, request_id: str) -> None:
        """Ends a request; its iterator ends with what there is and the finish_reason "abort"."""
        await self._done(lambda: self._abort([one for one in self._all() if one.request_id == request_id]))

    async def pause_generation(self, mode: str = "abort") -> None:
        """No step is computed until resume_generation; new requests wait.

        mode: what becomes of live ones: they end ("abort"), are waited for ("wait"), or stay ("keep").
        """
        if mode not in _PAUSES:
            raise ValueError(f"pause_generation: expected one of {_PAUSES}, found {mode!r}")
        await self._done(lambda: self._pause(mode))
        while mode == "wait" and await self._done(lambda: bool(self._live)):
            await asyncio.sleep(0.01)

    async def resume_generation(self) -> None:
        """Goes on after a pause."""
        await self._done(self._resume)

    async def is_paused(self) -> bool:
        """Whether it is paused."""
        return bool(self._paused)

    # The weights: what Weights says of LLM's.

    async def update_weights(self, weights: Iterable[tuple[str, Any]], weight_version: Optional[str] = None) -> None:
        """Weights.update_weights."""
        await asyncio.to_thread(self._weights.update_weights, weights, weight_version)

    async def init_weight_transfer_engine(self, request: Any) -> None:
        """Weights.init_weight_transfer_engine."""
        self._weights.init_weight_transfer_engine(request)

    async def start_weight_update(self, is_checkpoint_format: bool = True) -> None:
        """Weights.start_weight_update."""
        self._weights.start_weight_update(is_checkpoint_format)

    async def finish_weight_update(self, weight_version: Optional[str] = None) -> None:
        """Weights.finish_weight_update."""
        self._weights.finish_weight_update(weight_version)

    async def load_weights(self, directory: str, weight_version: Optional[str] = None) -> None:
        """Weights.load_weights."""
        await asyncio.to_thread(self._weights.load_weights, directory, weight_version)

    async def weights_digest(self) -> str:
        """Weights.weights_digest."""
        return await asyncio.to_thread(self._weights.weights_digest)

    async def reset_prefix_cache(self) -> bool:
        """Weights.reset_prefix_cache."""
        return await asyncio.to_thread(self._weights.reset_prefix_cache)

    async def sleep(self, level: int = 1) -> None:
        """Weights.sleep."""
        await asyncio.to_thread(self._weights.sleep, level)

    async def wake_up(self, tags: Optional[list[str]] = None) -> None:
        """Weights.wake_up."""
        await asyncio.to_thread(self._weights.wake_up, tags)

    async def is_sleeping(self) -> bool:
        """Weights.is_sleeping."""
        return self._weights.is_sleeping()

    async def collective_rpc(self, method: Any, *_: Any, **__: Any) -> Any:
        """Refused: workers run no Python."""
        return self._weights.collective_rpc(method)

    @property
    def weight_version(self) -> str:
        """The name that update_weights gave the weights."""
        return self._weights.weight_version

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The sampling parameters of the model's files, or those that its family's publisher recommends."""
        return default_params(self.model)

    def shutdown(self) -> None:
        """Ends all requests and gives everything back."""
        if self._thread.is_alive():
            self._tasks.put(None)
            self._thread.join()
        self._session.close()

    # The engine's thread: between steps it does what it was asked for.

    def _do(self, task: Callable[[], None]) -> None:
        self._tasks.put(task)

    async def _done(self, task: Callable[[], Any]) -> Any:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(task())
            except Exception as error:  # it is for whoever asked
                future.set_exception(error)

        self._tasks.put(run)
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        while True:
            idle = self._paused in ("abort", "keep") or not self._answers
            while idle or not self._tasks.empty():
                task = self._tasks.get()
                if task is None:
                    return self._abort(self._all())
                task()
                idle = False
            if self._answers and self._paused not in ("abort", "keep"):
                self._step()

    def _step(self) -> None:
        try:
            updates = self._session.step()
        except Exception as error:  # the engine can do no more for these
            for live in self._all():
                live.tell(0, error)
            self._live.clear()
            self._answers.clear()
            return
        for update in updates:
            self._tell(update)

    def _tell(self, update: Update) -> None:
        if update.id not in self._answers:
            return
        live, answer = self._answers[update.id]
        if update.token is not None:
            return live.tell(answer, update.token)
        del self._answers[update.id]
        if all(one not in self._answers for one in live.ids):
            self._live.pop(live.request_id, None)
        live.tell(answer, RuntimeError(update.error) if update.generation is None else update.generation)

    def _add(self, live: _Live) -> None:
        if self._paused:
            return self._held.append(live)
        try:
            if live.request_id in self._live:
                raise ValueError(f"expected a request_id that is free, found {live.request_id!r}")
            for i, (tokens, options) in enumerate(live.asked.jobs(self._tokenizer.vocab_size, self._logprobs_mode)):
                live.ids.append(self._session.add(tokens, options))
                self._answers[live.ids[-1]] = (live, i)
            self._live[live.request_id] = live
            live.version = self._weights.weight_version
        except Exception as error:
            self._drop(live, tell=False)
            live.tell(0, error)

    def _drop(self, live: _Live, tell: bool) -> None:
        for one in live.ids:
            if self._answers.pop(one, None):
                self._session.cancel(one)
        if self._live.get(live.request_id) is live:
            del self._live[live.request_id]
        self._held = [one for one in self._held if one is not live]
        if tell:
            live.tell(0, None)

    def _all(self) -> list[_Live]:
        return [*self._live.values(), *self._held]

    def _abort(self, some: list[_Live]) -> None:
        for live in some:
            self._drop(live, tell=True)

    def _pause(self, mode: str) -> None:
        if mode == "abort":
            self._abort(list(self._live.values()))
        self._paused = mode

    def _resume(self) -> None:
        self._paused = ""
        held, self._held = self._held, []
        for live in held:
            self._add(live)


async def _outputs(live: _Live, tokenizer: Tokenizer) -> AsyncIterator[RequestOutput]:
    """The output that a request's events show."""
    params = live.asked.params
    is_delta = params.output_kind == RequestOutputKind.DELTA
    shows_tokens = params.output_kind != RequestOutputKind.FINAL_ONLY and params.trace_decode_token_ids is None
    growing = [CompletionOutput(i) for i in range(params.n)]
    shown = ["" for _ in growing]  # of each answer's text
    whole: dict[int, Generation] = {}
    while len(whole) < params.n:
        answer, event = await live.events.get()
        if isinstance(event, Exception):
            raise event
        if event is None:
            for one in growing:
                one.finish_reason = one.finish_reason or "abort"
            yield _snapshot(live, growing, True)
            return
        if isinstance(event, Generation):
            whole[answer] = event
            growing[answer].finish_reason = event.finish_reason
            continue
        growing[answer].token_ids.append(event.id)
        growing[answer].text += event.text
        shown[answer] += event.text
        if shows_tokens:
            yield _snapshot(live, growing, False)
            if is_delta:
                growing[answer] = CompletionOutput(answer)
    final = output_of(live.request_id, live.asked, [whole[i] for i in range(params.n)], tokenizer, live.version)
    if is_delta:  # its tokens were shown, its text but for what could have become a stop text
        for one in final.outputs:
            one.text, one.token_ids = one.text[len(shown[one.index]):], []
    yield final


def _snapshot(live: _Live, growing: list[CompletionOutput], finished: bool) -> RequestOutput:
    outputs = [CompletionOutput(one.index, one.text, list(one.token_ids), finish_reason=one.finish_reason,
                                seed=live.asked.seed) for one in growing]
    return RequestOutput(live.request_id, live.asked.text, live.asked.tokens, None, outputs, finished, live.version)
