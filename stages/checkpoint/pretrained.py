"""A finished checkpoint in memory: its model, its tokenizer and what else it needs to read and write text.

Loads one, and saves a model that was made or trained outside growctl's runs.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import nn

from model.errors import UserError
from model.language_model import LanguageModel, bare_model
from model.shapes import num_parameters
from stages.checkpoint.directory import finish_directory, whole_directory
from stages.checkpoint.files import link_or_copy
from stages.checkpoint.lineage import ImportRecord
from stages.checkpoint.manifest import CheckpointError, Manifest, TextFacts, imported_manifest, read_file, read_manifest
from stages.checkpoint.parameters import load_model, write_parameters
from stages.stage_dir import TOKENIZER_NAME


class Pretrained(NamedTuple):
    """A checkpoint, ready to generate and to be evaluated."""

    directory: Path
    manifest: Manifest
    model: LanguageModel
    """In eval mode."""

    own_tokenizer: Tokenizer | None
    """Without truncation and padding; None for a model of images."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises UserError for a model of images."""
        if self.own_tokenizer is None:
            raise UserError(f"{self.directory} is a model of images, which neither reads nor writes text")
        return self.own_tokenizer

    @property
    def text(self) -> TextFacts:
        """What the checkpoint knows about its text."""
        return self.manifest.text

    @property
    def num_token_ids(self) -> int:
        """The ids that text can have: the embedding's rows without padding rows."""
        rows = self.manifest.model.vocab_size
        return min(rows, self.text.tokenizer_vocab_size or rows)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, after the beginning of text if the model has one and `text` does not begin with it."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        begin = self.text.begin_of_text_id
        return ids if begin is None or ids[:1] == [begin] else [begin, *ids]


def load_pretrained(
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    tokenizer: Path | None = None,
) -> Pretrained:
    """Loads a finished, expanded or imported checkpoint with its tokenizer, or with the file `tokenizer` instead.

    Raises CheckpointError if the checkpoint is missing or broken, or if no tokenizer fits it.
    """
    directory = Path(path)
    manifest = read_manifest(directory)
    is_text = manifest.model.image is None
    loaded = load_tokenizer(directory, manifest, tokenizer) if is_text else None  # before the model: it takes longer
    if loaded and tokenizer is not None:
        manifest = manifest.model_copy(update={"text": text_facts(loaded, manifest.text)})
    return Pretrained(directory, manifest, load_model(directory, device, dtype), loaded)


def save_model(model: nn.Module, directory: str | Path, *, text_of: str | Path) -> Manifest:
    """Writes `model` as the finished checkpoint `directory`, without moments, and returns its manifest.

    The tokenizer and the facts about its text, or the names of its classes, are those of the checkpoint `text_of`.
    growctl treats the result as imported: its history starts with its tensors, at unknown cost. Checkpoints hold
    float32: float64 values are rounded. `model` may be wrapped, by `torch.compile` for example.

    Raises UserError if `model` is not a growctl model (`model.language_model.bare_model`), CheckpointError if
    `directory` exists, or if `text_of` is not a checkpoint, its tokenizer is damaged, or has ids that the model lacks,
    or another number of classes, and DiskFull. Partial output is deleted.
    """
    directory, text_of = Path(directory), Path(text_of)
    source, model = read_manifest(text_of), bare_model(model)
    num_classes = model.config.vocab_size if model.config.image else 0
    if len(source.classes) != num_classes:
        raise CheckpointError(f"{text_of} has {len(source.classes)} classes of images, but the model has {num_classes}")
    has_tokenizer = TOKENIZER_NAME in source.files
    if has_tokenizer:
        load_tokenizer(text_of, source.model_copy(update={"model": model.config}))  # raises if it does not fit
    num_bytes = 4 * num_parameters(model.config)
    with whole_directory(directory, num_bytes) as staging:
        files = write_parameters(staging, model.named_parameters())
        if has_tokenizer:
            link_or_copy(text_of / TOKENIZER_NAME, staging / TOKENIZER_NAME)
            files[TOKENIZER_NAME] = source.files[TOKENIZER_NAME]
        record = ImportRecord(layout="model in memory")
        manifest = imported_manifest(model.balanced(model.config), files, source.text, record)
        return finish_directory(directory, manifest.model_copy(update={"classes": source.classes}))


def load_tokenizer(directory: Path, manifest: Manifest, given: Path | None = None) -> Tokenizer:
    """The tokenizer in the checkpoint `directory`, or in the file `given`, without truncation and padding.

    Raises CheckpointError if there is none, it is damaged, or the model lacks some of its ids.
    """
    path = given or directory / TOKENIZER_NAME
    if given is None and TOKENIZER_NAME not in manifest.files:
        raise CheckpointError(f"{directory} has no tokenizer; give one with --tokenizer FILE, a {TOKENIZER_NAME}")
    try:
        data = given.read_bytes() if given else read_file(directory, manifest, TOKENIZER_NAME)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    tokenizer = parse_tokenizer(data, path)
    if (num_ids := num_token_ids(tokenizer)) > manifest.model.vocab_size:
        raise CheckpointError(
            f"{path} has {num_ids:,} token ids, but the model of {directory} has only {manifest.model.vocab_size:,}"
        )
    return tokenizer


def parse_tokenizer(data: bytes, path: Path) -> Tokenizer:
    """The tokenizer of the document `data`, the content of `path`, without truncation and padding."""
    try:
        tokenizer = Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises plain Exceptions
        raise CheckpointError(f"{path} is not a {TOKENIZER_NAME}: {str(error).splitlines()[0]}") from error
    if num_token_ids(tokenizer) == 0:
        raise CheckpointError(f"{path} has no tokens")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def num_token_ids(tokenizer: Tokenizer) -> int:
    """One more than the tokenizer's largest id."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def text_facts(tokenizer: Tokenizer, known: TextFacts) -> TextFacts:
    """`known` with the facts that depend on the tokenizer replaced. Tokens that it lacks are left out."""
    begin, end = known.begin_of_text, known.end_of_text or "<|endoftext|>"
    begin_id, end_id = (token and tokenizer.token_to_id(token) for token in (begin, end))
    return known.model_copy(
        update={
            "tokenizer_vocab_size": num_token_ids(tokenizer),
            "begin_of_text": None if begin_id is None else begin,
            "begin_of_text_id": begin_id,
            "end_of_text": None if end_id is None else end,
            "end_of_text_id": end_id,
        }
    )
