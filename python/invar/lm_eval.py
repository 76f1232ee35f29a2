"""EleutherAI's lm-evaluation-harness on Invar: the model `invar`, whose results no batch size changes.

    python -m invar.lm_eval --model invar --model_args pretrained=DIRECTORY --tasks TASK

is `lm_eval` with that model known, and with `invar-completions`: the harness's local-completions, of a server of `invar serve`.
The results of both carry under "config" by which arithmetic and weights they are, and hashes of all answers and scores.
Needs the package lm-eval.
"""
from __future__ import annotations

import hashlib
import json
import struct
import urllib.request
from typing import Any, Optional

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.openai_completions import LocalCompletionsAPI

from .llm import LLM
from .params import SamplingParams


class _Proof:
    """Hashes of what was said, in whatever order and batches: equal for equal requests."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.scores: list[str] = []

    def add_scores(self, log_probabilities: Any) -> None:
        """Takes the log-probabilities of a text's tokens, as f32."""
        numbers = [0.0 if one is None or one != one else float(one) for one in log_probabilities]
        self.scores.append(hashlib.sha256(struct.pack(f"<{len(numbers)}f", *numbers)).hexdigest())

    def info(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, hashes in (("logits_hashes", self.answers), ("score_hashes", self.scores)):
            if hashes:
                found["invar_" + name] = {"count": len(hashes), "sha256": hashlib.sha256("\n".join(sorted(hashes)).encode()).hexdigest()}
        return found


@register_model("invar")
class InvarLM(TemplateLM):
    """Log-likelihoods and greedy or sampled answers by batches of `batch_size` requests; "auto": all at once.

    pretrained: what LLM takes as its model; other arguments are LLM's, but for the device: invar_device, since the harness
    says device=cuda:0 where nobody does. max_gen_toks: the length of an answer where a task does not say it.
    """

    def __init__(self, pretrained: str, batch_size: Any = "auto", max_batch_size: Any = None, max_gen_toks: int = 256,
                 device: Optional[str] = None, invar_device: str = "cpu", **engine_args: Any) -> None:
        super().__init__()
        self._llm = LLM(pretrained, device=invar_device, **engine_args)
        self.tokenizer = self._llm.get_tokenizer()
        self._size = 1 << 30 if str(batch_size).startswith("auto") else int(batch_size)
        self.max_gen_toks = int(max_gen_toks)
        self._proof = _Proof()

    def get_model_info(self) -> dict[str, Any]:
        """The harness puts it beside the results."""
        return {"invar_identity": self._llm.identity, "invar_weights": self._llm.weights_digest(), **self._proof.info()}

    @property
    def eot_token_id(self) -> int:
        """The token before texts that begin with nothing."""
        ids = (self.tokenizer.eos_token_id, self.tokenizer.bos_token_id)
        return next((token for token in ids if token is not None), 0)

    @property
    def tokenizer_name(self) -> str:
        """For the cache of chats."""
        return self.tokenizer.name_or_path.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: Optional[bool] = None, **_: Any) -> list[int]:
        """Token ids; the special tokens that the tokenizer adds unless told not to."""
        return self.tokenizer.encode(string, add_special_tokens is not False)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text of a conversation."""
        return self.tokenizer.render_chat(chat_history, add_generation_prompt=add_generation_prompt,
                                          continue_final_message=not add_generation_prompt)

    def _loglikelihood_tokens(self, requests: list[Any], disable_tqdm: bool = False,
                              **_: Any) -> list[tuple[float, bool]]:
        longest = self._llm.max_model_len - 1
        pairs = [((context + continuation)[-longest:], len(continuation)) for _, context, continuation in requests]
        return self._scores(pairs)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """ln p of whole texts, in windows of the context, each token once."""
        results = []
        for request in requests:
            ids = [self.prefix_token_id, *self.tok_encode(request.args[0], add_special_tokens=False)]
            step = self._llm.max_model_len - 2
            windows = [(ids[begin:begin + step + 1], len(ids[begin + 1:begin + step + 1])) for begin in
                       range(0, max(len(ids) - 1, 1), step)]
            results.append(sum(score for score, _ in self._scores([w for w in windows if w[1] > 0])))
        return results

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers up to the first of the texts that end them."""
        asked: list[tuple[list[int], SamplingParams]] = []
        for request in requests:
            context, options = request.args
            options = dict(options)
            until = options.pop("until", None) or []
            length = int(options.pop("max_gen_toks", self.max_gen_toks))
            temperature = float(options.pop("temperature", 0.0)) if options.pop("do_sample", False) else 0.0
            ids = self.tok_encode(context)[-(self._llm.max_model_len - length):]
            params = SamplingParams(max_tokens=length, temperature=temperature, stop=until, top_p=options.pop("top_p", 1.0),
                                    top_k=options.pop("top_k", 0) or 0, seed=int(options.pop("seed", 0)))
            asked.append((ids, params))
        outputs: list[str] = []
        for begin in range(0, len(asked), self._size):
            batch = asked[begin:begin + self._size]
            answers = self._llm.generate([{"prompt_token_ids": ids} for ids, _ in batch], [params for _, params in batch],
                                         use_tqdm=False)
            outputs += [answer.outputs[0].text for answer in answers]
            self._proof.answers += [answer.outputs[0].logits_hash for answer in answers]
        return outputs

    def _scores(self, pairs: list[tuple[list[int], int]]) -> list[tuple[float, bool]]:
        """(ln p of the last `count` tokens, whether each is the likeliest) of each (tokens, count)."""
        params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, logprobs_mode="raw_logprobs").options(self._llm.vocab_size)
        scores: list[tuple[float, bool]] = []
        for begin in range(0, len(pairs), self._size):
            batch = pairs[begin:begin + self._size]
            for (_, count), g in zip(batch, self._llm.session.generate([ids for ids, _ in batch], [params] * len(batch), None)):
                self._proof.add_scores(g.prompt_logprobs)
                scores.append((sum(g.prompt_logprobs[-count:]), all(rank == 1 for rank in g.prompt_ranks[-count:])))
        return scores


@register_model("invar-completions")
class InvarServer(LocalCompletionsAPI):
    """local-completions of a server of `invar serve`, whose results say what made them. base_url: .../v1/completions."""

    _proof = _Proof()

    def __init__(self, *args: Any, **options: Any) -> None:
        type(self)._proof = _Proof()
        super().__init__(*args, **options)

    def get_model_info(self) -> dict[str, Any]:
        """The harness puts it beside the results."""
        with urllib.request.urlopen(self.base_url.replace("/v1/completions", "/version")) as reply:
            said = json.loads(reply.read())
        return {"invar_identity": said.get("identity"), "invar_weights": said.get("weights"), **self._proof.info()}

    def _create_payload(self, *args: Any, generate: bool = False, **options: Any) -> dict[str, Any]:
        payload: dict[str, Any] = super()._create_payload(*args, generate=generate, **options)
        return {**payload, "logits_hash": True} if generate else payload

    @staticmethod
    def parse_logprobs(outputs: Any, *args: Any, **options: Any) -> Any:
        for out in outputs if isinstance(outputs, list) else [outputs]:
            for choice in out["choices"]:
                InvarServer._proof.add_scores(choice["logprobs"]["token_logprobs"][1:-1])
        return LocalCompletionsAPI.parse_logprobs(outputs, *args, **options)

    @staticmethod
    def parse_generations(outputs: Any, **options: Any) -> Any:
        for out in outputs if isinstance(outputs, list) else [outputs]:
            InvarServer._proof.answers += [choice["logits_hash"] for choice in out["choices"]]
        return LocalCompletionsAPI.parse_generations(outputs, **options)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
