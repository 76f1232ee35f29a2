"""The model's tokenizer, with the names of Hugging Face's."""
from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Optional, Union

from ._invar import Session
from .keywords import refuse_unknown

Message = dict[str, Any]


class Tokenizer:
    """Text to token ids and back. All ids are of the model's vocabulary, [0, len(tokenizer))."""

    def __init__(self, session: Session, name_or_path: str = "") -> None:
        self._session = session
        self.name_or_path = name_or_path
        self.vocab_size = session.vocabulary_size()
        self.model_max_length = session.max_model_len()
        self.bos_token_id = session.bos_token()
        self.eos_token_id = session.eos_token()
        self.pad_token_id = self.eos_token_id

    def __len__(self) -> int:
        return self.vocab_size

    def _name(self, token: Optional[int]) -> Optional[str]:
        return None if token is None else self.convert_ids_to_tokens([token])[0]

    @property
    def bos_token(self) -> Optional[str]:
        """The spelling of the token that begins a text."""
        return self._name(self.bos_token_id)

    @property
    def eos_token(self) -> Optional[str]:
        """The spelling of the token that ends a text."""
        return self._name(self.eos_token_id)

    @property
    def pad_token(self) -> Optional[str]:
        """The same as eos_token."""
        return self.eos_token

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The text's token ids. Raises ValueError for text that cannot be UTF-8."""
        try:
            return self._session.tokenize(text, add_special_tokens)
        except UnicodeEncodeError as error:
            raise ValueError(f"expected text of Unicode characters, found {error.object[error.start]!r}") from None

    def __call__(self, text: Union[str, list[str]], add_special_tokens: bool = True) -> dict[str, Any]:
        """{"input_ids": ids, "attention_mask": ones}; lists of them for a list of texts."""
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens)
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}
        all_ids = [self.encode(one, add_special_tokens) for one in text]
        return {"input_ids": all_ids, "attention_mask": [[1] * len(ids) for ids in all_ids]}

    def decode(self, token_ids: Union[int, Sequence[int]], skip_special_tokens: bool = False) -> str:
        """The text of the ids; bytes that are no UTF-8 become U+FFFD."""
        ids = [token_ids] if isinstance(token_ids, int) else [int(token) for token in token_ids]
        return self._session.detokenize(ids, skip_special_tokens)

    def batch_decode(self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False) -> list[str]:
        """decode of each."""
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """The tokens as the tokenizer's file spells them."""
        return [self._session.token_text(token).decode(errors="replace") for token in ids]

    def convert_tokens_to_ids(self, tokens: Union[str, Sequence[str]]) -> Any:
        """The ids of spellings; None where there is no such token."""
        if isinstance(tokens, str):
            return self._session.token_id(tokens)
        return [self._session.token_id(token) for token in tokens]

    def render_chat(self, messages: list[Message], **options: Any) -> str:
        """The text that the model's chat template makes of a conversation."""
        refuse_unknown("apply_chat_template", options,
                       ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs"))
        body = {name: value for name, value in options.items() if value is not None}
        try:
            return self._session.render_chat(json.dumps({"messages": messages, **body}, ensure_ascii=False))
        except UnicodeEncodeError:
            raise ValueError("expected messages of Unicode characters, found half of a pair of surrogates") from None

    def apply_chat_template(self, conversation: list[Message], tools: Optional[list[dict[str, Any]]] = None,
                            tokenize: bool = True, add_generation_prompt: bool = False,
                            continue_final_message: bool = False, **variables: Any) -> Union[str, list[int]]:
        """The conversation as token ids, or with tokenize=False as text; `variables` are for the template."""
        text = self.render_chat(conversation, tools=tools, add_generation_prompt=add_generation_prompt,
                                continue_final_message=continue_final_message, chat_template_kwargs=variables or None)
        return self.encode(text, add_special_tokens=False) if tokenize else text
