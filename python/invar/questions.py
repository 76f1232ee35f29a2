"""Questions whose answers are numbers: decisions and relevance, as POST /v1/decisions, /v1/rerank and /v1/score answer them."""
from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Optional, Union

from ._invar import Session
from .outputs import ScoringOutput, ScoringRequestOutput

Texts = Union[str, Sequence[str]]


class Questions:
    """An open model answers these questions with numbers. Bodies and answers are the server's (docs/server.md)."""

    session: Session

    def ask(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        """The server's answer to a body of /v1/decisions, /v1/rerank, /v1/score, /v1/embeddings or /pooling."""
        answer: dict[str, Any] = json.loads(self.session.ask(endpoint, json.dumps(body), None))
        return answer

    def decide(self, input: Union[str, list[dict[str, Any]]], questions: list[dict[str, Any]],
               instructions: Optional[str] = None, receipt: bool = False) -> dict[str, Any]:
        """Finds the most likely of the answers that each question allows, under "answers".

        input: a text or the messages of a chat. questions: {"type": "predicate", "question": ...}, or "choice" with
        "choices", or "score" with "levels". receipt: a signed one of the answer (docs/receipts.md), under "receipt".
        """
        body: dict[str, Any] = {"input": input, "questions": questions, "receipt": receipt}
        if instructions is not None:
            body["instructions"] = instructions
        return self.ask("/v1/decisions", body)

    def rerank(self, query: str, documents: list[str], top_n: Optional[int] = None,
               instruction: Optional[str] = None) -> list[dict[str, Any]]:
        """The documents by their relevance to the query, best first: "index", "relevance_score", "document"."""
        body = {"query": query, "documents": documents, "top_n": top_n, "instruction": instruction}
        results: list[dict[str, Any]] = self.ask("/v1/rerank", body)["results"]
        return results

    def _relevance(self, data_1: Texts, data_2: Texts, instruction: Optional[str]) -> list[ScoringRequestOutput]:
        first, second = ([one] if isinstance(one, str) else list(one) for one in (data_1, data_2))
        found = self.ask("/v1/score", {"text_1": first, "text_2": second, "instruction": instruction})
        return [ScoringRequestOutput(f"{found['id']}-{one['index']}", ScoringOutput(one["score"])) for one in found["data"]]
