"""The files of an export that hold the tokenizer and the defaults of text generation."""

import json
from typing import Any

from stages.checkpoint.pretrained import Pretrained


def special_ids(pretrained: Pretrained) -> dict[str, int | None]:
    """The special ids, for `config.json`. Batches are padded with the end of text."""
    end = pretrained.text.end_of_text_id
    return {"bos_token_id": None, "eos_token_id": end, "pad_token_id": end}


def text_files(pretrained: Pretrained, context_length: int) -> dict[str, str]:
    """The content of each file, by name. Transformers 5 keeps the special tokens in `tokenizer_config.json`."""
    return {
        "tokenizer.json": pretrained.tokenizer.to_str(pretty=True),
        "tokenizer_config.json": as_json(_tokenizer_config(pretrained.text.end_of_text, context_length)),
        "generation_config.json": as_json(_generation_config(pretrained)),
    }


def _tokenizer_config(end_of_text: str | None, context_length: int) -> dict[str, Any]:
    special = {"eos_token": end_of_text, "pad_token": end_of_text} if end_of_text else {}
    return {
        "tokenizer_class": "TokenizersBackend",
        "model_max_length": context_length,
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
        **special,
    }


def _generation_config(pretrained: Pretrained) -> dict[str, Any]:
    """Greedy by default. Ids that no token has are suppressed here: the model's logits for them stay what they are."""
    ids = {name: value for name, value in special_ids(pretrained).items() if value is not None}
    unused = list(range(pretrained.num_token_ids, pretrained.manifest.model.vocab_size))
    return {"do_sample": False, **ids, **({"suppress_tokens": unused} if unused else {})}


def as_json(document: dict[str, Any]) -> str:
    """`document` as the content of a JSON file."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
