"""The files of an export that hold the tokenizer and the defaults of text generation."""

import json
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer


@dataclass(frozen=True)
class ExportedText:
    """What an export says about text."""

    tokenizer: Tokenizer
    context_length: int
    """Data tokens of a training sequence."""

    end_of_text: str | None
    """The token between documents, which ends a generated text; None if the tokenizer has none."""

    vocab_size: int
    """Rows of the embedding."""

    tokenizer_vocab_size: int
    """Ids from here on are rows of the embedding that no token has."""

    @property
    def end_of_text_id(self) -> int | None:
        """The id of `end_of_text`."""
        found: int | None = self.tokenizer.token_to_id(self.end_of_text) if self.end_of_text else None
        return found

    def ids(self) -> dict[str, int | None]:
        """The special ids, for `config.json`. Batches are padded with the end of text."""
        return {"bos_token_id": None, "eos_token_id": self.end_of_text_id, "pad_token_id": self.end_of_text_id}

    def files(self) -> dict[str, str]:
        """The content of each file, by name."""
        plain = Tokenizer.from_str(self.tokenizer.to_str())
        plain.no_padding()
        plain.no_truncation()
        return {
            "tokenizer.json": plain.to_str(pretty=True),
            "tokenizer_config.json": as_json(self._tokenizer_config()),
            "generation_config.json": as_json(self._generation_config()),
        }

    def _tokenizer_config(self) -> dict[str, Any]:
        special = {"eos_token": self.end_of_text, "pad_token": self.end_of_text} if self.end_of_text else {}
        return {
            "tokenizer_class": "TokenizersBackend",
            "model_max_length": self.context_length,
            "model_input_names": ["input_ids", "attention_mask"],
            "padding_side": "left",
            "clean_up_tokenization_spaces": False,
            **special,
        }

    def _generation_config(self) -> dict[str, Any]:
        """Greedy by default. Ids that no token has are suppressed: in the model, their logits stay what they are."""
        ids = {name: value for name, value in self.ids().items() if value is not None}
        unused = list(range(self.tokenizer_vocab_size, self.vocab_size))
        return {"do_sample": False, **ids, **({"suppress_tokens": unused} if unused else {})}


def as_json(document: dict[str, Any]) -> str:
    """`document` as the JSON of a file."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
