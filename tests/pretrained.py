"""A tiny finished checkpoint with a tokenizer, as a stage leaves it."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from model.shapes import ModelConfig
from model.tokenformer_config import TokenformerConfig
from stages.checkpoint.directory import finish_directory
from stages.checkpoint.files import write_file
from stages.checkpoint.manifest import Manifest, TextFacts
from stages.stage_dir import MANIFEST_NAME, TOKENIZER_NAME, staging_directory
from tests.stages.checkpoints import small_config, write_checkpoint

END_OF_TEXT = "<|endoftext|>"
MERGES = [("Ġ", "t"), ("h", "e"), ("i", "n"), ("Ġt", "he")]


@cache
def byte_tokenizer() -> Tokenizer:
    """A byte-level BPE of 257 + 4 ids, which encodes any text without loss."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [END_OF_TEXT, *alphabet, *(a + b for a, b in MERGES)]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def adding_tokenizer(begin: str = END_OF_TEXT) -> Tokenizer:
    """`byte_tokenizer` with a post-processor that puts the token `begin` before every text, as a Llama's does."""
    tokenizer = Tokenizer.from_str(byte_tokenizer().to_str())
    special = [(begin, tokenizer.token_to_id(begin))]
    tokenizer.post_processor = processors.TemplateProcessing(f"{begin} $A", special_tokens=special)
    return tokenizer


def text_config(vocab_size: int = 261, **changes: Any) -> TokenformerConfig:
    """A tiny Tokenformer with an embedding row for each id of `byte_tokenizer`."""
    return small_config(**changes).model_copy(update={"vocab_size": vocab_size})


def write_pretrained(
    directory: Path,
    config: ModelConfig | None = None,
    *,
    context_length: int | None = 32,
    tokenizer: Tokenizer | None = None,
    begin_of_text: str | None = None,
    **changes: Any,
) -> Manifest:
    """A whole checkpoint in `directory` with `byte_tokenizer`, or with a `tokenizer` that has the same 261 ids.

    Embedding rows beyond these ids are padding.
    """
    content = (tokenizer or byte_tokenizer()).to_str().encode()
    facts = TextFacts(
        context_length=context_length,
        begin_of_text=begin_of_text,
        begin_of_text_id=byte_tokenizer().token_to_id(begin_of_text) if begin_of_text else None,
        end_of_text=END_OF_TEXT,
        end_of_text_id=0,
        tokenizer_vocab_size=byte_tokenizer().get_vocab_size(),
        source="tests",
    )
    sha256 = hashlib.sha256(content).hexdigest()
    manifest = write_checkpoint(directory, config or text_config(), tokenizer_sha256=sha256, text=facts, **changes)
    entry = write_file(directory / TOKENIZER_NAME, content)
    (directory / MANIFEST_NAME).unlink()
    directory.rename(staging_directory(directory))
    return finish_directory(directory, manifest.model_copy(update={"files": manifest.files | {TOKENIZER_NAME: entry}}))
