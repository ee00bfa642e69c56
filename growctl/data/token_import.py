"""Makes datasets of the token files of other programs.

A file whose tokens have the dataset's width becomes a shard as it is: a hard link, or a copy on another file system. If
the last documents of a file are for validation, they are copied, and the manifest says how many tokens of the linked
file belong to train.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from stages.checkpoint.directory import publish_directory, whole_directory
from stages.checkpoint.disk_full import raise_when_full
from stages.checkpoint.files import hash_files, link_or_copy, sync_path, write_file
from stages.corpus.location import download_tokenizer, local_tokenizer
from stages.corpus.tasks import OnProgress, Progress
from stages.corpus.token_files import RawType, TokenFile, open_token_files
from stages.corpus.tokenizer import read_tokenizer
from stages.counted import counted
from stages.data.dataset import DatasetFile, DatasetManifest, DatasetSplit, dataset_fingerprint, dataset_manifest_bytes
from stages.data.errors import DataError
from stages.data.spec import SPLITS, DataSpec, SplitName
from stages.data.tokens import Int64Array, chunks
from stages.stage_dir import MANIFEST_NAME, TOKENIZER_NAME


@dataclass(frozen=True)
class DataImportDocument:
    """A dataset that was made of token files."""

    path: Path
    manifest: DatasetManifest
    """The content of its manifest.json."""

    linked_files: tuple[Path, ...]
    """Its files that are hard links to those of the source, so that they take no space."""


class Piece(NamedTuple):
    """Consecutive documents of a token file that belong to one split: tokens `start` to `stop`."""

    file: TokenFile
    start: int
    stop: int

    @property
    def ends(self) -> Int64Array:
        """Where its documents end, in tokens from the start of the file."""
        ends = self.file.ends
        return ends[(ends > self.start) & (ends <= self.stop)]


def import_tokens(
    sources: Sequence[Path],
    output: Path,
    tokenizer: str,
    *,
    end_of_text: str,
    begin_of_text: str | None = None,
    dtype: RawType | None = None,
    validation: Sequence[Path] = (),
    validation_fraction: float = 0.01,
    on_progress: OnProgress | None = None,
) -> DataImportDocument:
    """Makes the dataset `output` of the token files called `sources` (`open_token_files`; with `dtype`, raw tokens).

    Validation is the files called `validation` or, if there are none, the last documents of each source: a share of
    `validation_fraction`. All tokens are read once. Raises DataError for files or a tokenizer that cannot be used,
    CheckpointError if `output` exists, DiskFull if it does not fit. Nothing incomplete remains.
    """
    progress = Progress(on_progress=on_progress)
    local = local_tokenizer(tokenizer)
    file = local or download_tokenizer(tokenizer, "--tokenizer")
    special = {"--end-of-text": end_of_text, "--begin-of-text": begin_of_text}
    loaded = read_tokenizer(file, "--tokenizer", special)
    vocab_size = max(loaded.get_vocab().values()) + 1
    end_of_text_id = loaded.token_to_id(end_of_text)
    begin_of_text_id = loaded.token_to_id(begin_of_text) if begin_of_text else None
    assert end_of_text_id is not None  # read_tokenizer rejects a tokenizer without it
    progress.say("checking indices")
    train, held_out = (
        [opened for path in paths for opened in open_token_files(path, dtype, end_of_text_id)]
        for paths in (sources, validation)
    )
    splits = _split_pieces(train, held_out, validation_fraction)
    pieces = [piece for split in SPLITS for piece in splits[split]]
    if begin_of_text_id is not None:
        for piece in pieces:
            _require_first(piece, begin_of_text_id)
    advance = progress.meter("reading tokens", sum(piece.stop - piece.start for piece in pieces)).advance
    counts = {
        split: [_examine(piece, loaded, vocab_size, end_of_text_id, advance) for piece in splits[split]]
        for split in SPLITS
    }
    progress.say("writing the dataset")
    widths = {piece.file.tokens.itemsize for piece in pieces}  # files that all have one need no copy
    token_bytes: Literal[2, 4] = 2 if widths == {2} or (widths != {4} and vocab_size <= 2**16) else 4
    with raise_when_full(output), whole_directory(output) as staging:
        tokenizer_sha256 = write_file(staging / TOKENIZER_NAME, file.read_bytes()).sha256
        described = {}
        for split in SPLITS:
            num_bytes, num_documents, num_unended, num_inner = np.sum(counts[split], axis=0).tolist()
            described[split] = DatasetSplit(
                num_tokens=sum(piece.stop - piece.start for piece in splits[split]),
                num_bytes=num_bytes,
                num_documents=num_documents,
                num_unended_documents=num_unended,
                num_inner_ends=num_inner,
                files=_write_files(staging, split, splits[split], token_bytes),
            )
        num_documents = sum(split.num_documents for split in described.values())
        share = described["validation"].num_documents / num_documents if validation else validation_fraction
        manifest = DatasetManifest(
            spec=DataSpec(
                source=", ".join(str(path.absolute()) for path in sources),
                tokenizer=str(local.absolute()) if local else tokenizer,
                end_of_text=end_of_text,
                begin_of_text=begin_of_text,
                validation_fraction=share,
            ),
            vocab_size=vocab_size,
            token_bytes=token_bytes,
            tokenizer_sha256=tokenizer_sha256,
            begin_of_text_id=begin_of_text_id,
            end_of_text_id=end_of_text_id,
            splits=described,
            fingerprint=dataset_fingerprint(tokenizer_sha256, described),
        )
        write_file(staging / MANIFEST_NAME, dataset_manifest_bytes(manifest))
        publish_directory(output)
    shards = sorted(output.glob("*/*.ds"))
    return DataImportDocument(output, manifest, tuple(path for path in shards if path.stat().st_nlink > 1))


def _split_pieces(
    train: Sequence[TokenFile], validation: Sequence[TokenFile], validation_fraction: float
) -> dict[SplitName, list[Piece]]:
    """The documents of each split: all of the files given for it or, if none are given for validation, the last
    documents of every file. Raises DataError if a file is given twice or a split gets no tokens.
    """
    paths = [file.path.resolve() for file in (*train, *validation)]
    if twice := [path for path in paths if paths.count(path) > 1]:
        raise DataError(f"{twice[0]} is given twice; name each file once, for training or for validation")
    pieces: dict[SplitName, list[Piece]] = {
        "train": [],
        "validation": [Piece(file, 0, len(file.tokens)) for file in validation],
    }
    for file in train:
        left = len(file.ends) - (0 if validation else round(len(file.ends) * validation_fraction))
        cut = int(file.ends[left - 1]) if left else 0
        pieces["train"].append(Piece(file, 0, cut))
        pieces["validation"].append(Piece(file, cut, len(file.tokens)))
    splits = {name: [piece for piece in pieces[name] if piece.start < piece.stop] for name in SPLITS}
    for name in SPLITS:
        if not splits[name]:
            num_documents = sum(len(file.ends) for file in train)
            raise DataError(
                f"--validation-fraction {validation_fraction} of {counted(num_documents, 'document')} leaves no tokens"
                f" for {name}; choose another, or name other files"
            )
    return splits


def _require_first(piece: Piece, token_id: int) -> None:
    """Raises DataError unless each document begins with the token."""
    firsts = piece.file.tokens[np.array([piece.start, *piece.ends[:-1]])]
    if num_others := int(np.count_nonzero(firsts != token_id)):
        raise DataError(
            f"--begin-of-text: {counted(num_others, 'document')} of {piece.file.path} begin without it; leave it out,"
            " or put it before each text and tokenize again"
        )


def _examine(
    piece: Piece, tokenizer: Tokenizer, vocab_size: int, end_of_text_id: int, on_tokens: Callable[[int], None]
) -> tuple[int, int, int, int]:
    """Reads all tokens of `piece` once. Raises DataError for an id that the tokenizer does not have.

    Returns the UTF-8 bytes of the text, the number of documents, of those that do not end in the end of text, and of
    ends of text before the end of their document.
    """
    lengths, tokens, ends = _bytes_by_token(tokenizer, vocab_size), piece.file.tokens, piece.ends
    num_bytes = num_ends = 0
    for start, stop in chunks(piece.stop, piece.start):
        ids = tokens[start:stop].astype(np.int64)
        wrong = (ids < 0) | (ids >= vocab_size)
        if wrong.any():
            position = int(wrong.argmax())
            raise DataError(
                f"{piece.file.path}: token {start + position:,} is {ids[position]:,}, but the tokenizer's ids go"
                f" from 0 to {vocab_size - 1:,}; give the tokenizer that wrote these files with --tokenizer"
            )
        num_bytes += 0 if lengths is None else int(lengths[ids].sum())
        num_ends += int(np.count_nonzero(ids == end_of_text_id))
        on_tokens(stop - start)
    num_unended = int(np.count_nonzero(tokens[ends - 1] != end_of_text_id))
    if lengths is None:
        for start, stop in pairwise([piece.start, *ends.tolist()]):
            num_bytes += len(tokenizer.decode(tokens[start:stop].tolist()).encode())
    return num_bytes, len(ends), num_unended, num_ends - (len(ends) - num_unended)


def _bytes_by_token(tokenizer: Tokenizer, vocab_size: int) -> Int64Array | None:
    """The UTF-8 bytes that each id decodes to: (vocab_size,), special tokens 0. None unless it is a byte-level
    tokenizer, whose tokens have the same bytes everywhere."""
    decoder = json.loads(tokenizer.to_str())["decoder"] or {}
    if "ByteLevel" not in [decoder.get("type"), *(step.get("type") for step in decoder.get("decoders", []))]:
        return None
    lengths = np.zeros(vocab_size, np.int64)
    for text, number in tokenizer.get_vocab(with_added_tokens=False).items():
        lengths[number] = len(text)  # each character stands for one byte
    for number, added in tokenizer.get_added_tokens_decoder().items():
        lengths[number] = 0 if added.special else len(added.content.encode())
    return lengths


def _write_files(staging: Path, split: SplitName, pieces: Sequence[Piece], token_bytes: int) -> tuple[DatasetFile, ...]:
    """Writes a shard for each piece: the token file itself where possible, which a later piece may share."""
    (staging / split).mkdir()
    lengths: dict[str, int | None] = {}
    """By file, the tokens of a shard that belong to the split; None for all."""
    for number, (file, start, stop) in enumerate(pieces):
        name = f"{split}/{number:05d}.ds"
        if start or file.has_header or file.tokens.itemsize != token_bytes:
            with (staging / name).open("wb") as shard:
                for first, last in chunks(stop, start):
                    shard.write(file.tokens[first:last].astype(f"<u{token_bytes}").tobytes())
            sync_path(staging / name)
        else:
            link_or_copy(file.path.resolve(), staging / name)  # os.link would link a symbolic link itself
        whole = (staging / name).stat().st_size == (stop - start) * token_bytes
        lengths[name] = None if whole else stop - start
        write_file(staging / f"{name}.index", (pieces[number].ends - start).astype("<u8").tobytes())
        lengths[f"{name}.index"] = None
    hashes = hash_files(staging / name for name in lengths)
    return tuple(
        DatasetFile(name=name, bytes=(staging / name).stat().st_size, sha256=sha256, num_tokens=length)
        for (name, length), sha256 in zip(lengths.items(), hashes, strict=True)
    )
