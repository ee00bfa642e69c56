"""Makes a dataset of token files that another program wrote, without copying them where that can be avoided.

A file whose tokens have the dataset's width becomes a shard as it is: a hard link, or a copy on another file system. If
the last documents of a file are for validation, they are copied, and the manifest says how many tokens of the linked
file belong to train.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from growctl.data_exchange.pieces import Content, Piece, examine, split_pieces
from model.errors import UserError
from stages.checkpoint.directory import publish_directory, whole_directory
from stages.checkpoint.disk_full import existing_path, raise_when_full, require_space
from stages.checkpoint.files import hash_files, link_or_copy, sync_path, write_file
from stages.data.corpus import SPLITS, DataSpec, SplitName
from stages.data.dataset import (
    FORMAT_VERSION,
    DatasetFile,
    DatasetManifest,
    DatasetSplit,
    dataset_fingerprint,
    dataset_manifest_bytes,
    range_hashes_of,
)
from stages.data.progress import OnProgress, Progress
from stages.data.tokenizer import read_tokenizer
from stages.stage_dir import MANIFEST_NAME, TOKENIZER_NAME
from stages.token_files.files import TokenFiles
from stages.token_files.find import open_token_files
from stages.token_files.mapped import chunks

KEYS = ("--tokenizer", "--end-of-text")


@dataclass(frozen=True)
class DataImportDocument:
    """A dataset that was made of token files."""

    path: Path
    manifest: DatasetManifest
    """The content of its manifest.json."""

    linked_files: tuple[Path, ...]
    """Files that the dataset shares with their source as hard links, so that they take no space."""


def import_tokens(
    sources: Sequence[Path],
    output: Path,
    tokenizer: Path,
    *,
    end_of_text: str,
    validation: Sequence[Path] = (),
    validation_fraction: float = 0.01,
    on_progress: OnProgress | None = None,
) -> DataImportDocument:
    """Makes the dataset `output` of the token files called `sources` (`open_token_files`).

    Validation is the files called `validation` or, if there are none, the last documents of each source: a share of
    `validation_fraction`. All tokens are read once. Raises UserError for files or a tokenizer that cannot be used,
    CheckpointError if `output` exists, DiskFull if it does not fit. Nothing incomplete remains.
    """
    progress = Progress(None, on_progress)
    if not tokenizer.is_file():
        raise UserError(f"--tokenizer: there is no file {str(tokenizer)!r}")
    loaded = read_tokenizer(tokenizer, end_of_text, str(tokenizer), KEYS)
    vocab_size = max(loaded.get_vocab().values()) + 1
    end_of_text_id = loaded.token_to_id(end_of_text)
    assert end_of_text_id is not None  # read_tokenizer rejects a tokenizer without it
    progress.say("checking indices")
    splits = split_pieces(_opened(sources), _opened(validation), validation_fraction)
    pieces = [(split, piece) for split in SPLITS for piece in splits[split]]
    token_bytes = _token_bytes([piece for _, piece in pieces], vocab_size)
    require_space(output, sum(_new_bytes(piece, token_bytes, output) for _, piece in pieces), "")
    advance = progress.meter("reading tokens", sum(piece.num_tokens for _, piece in pieces)).advance
    contents = {
        split: [examine(p, loaded, vocab_size, end_of_text_id, advance) for p in splits[split]] for split in SPLITS
    }
    progress.say("writing the dataset")
    with raise_when_full(output), whole_directory(output) as staging:
        tokenizer_sha256 = write_file(staging / TOKENIZER_NAME, tokenizer.read_bytes()).sha256
        described = {
            split: _write_split(staging, split, splits[split], contents[split], token_bytes) for split in SPLITS
        }
        num_documents = sum(content.num_documents for content in described.values())
        spec = DataSpec(
            source=", ".join(str(path.absolute()) for path in sources),
            tokenizer=str(tokenizer.absolute()),
            end_of_text=end_of_text,
            validation_fraction=described["validation"].num_documents / num_documents
            if validation
            else validation_fraction,
        )
        manifest = DatasetManifest(
            format_version=FORMAT_VERSION,
            spec=spec,
            vocab_size=vocab_size,
            token_bytes=token_bytes,
            tokenizer_sha256=tokenizer_sha256,
            end_of_text_id=end_of_text_id,
            splits=described,
            fingerprint=dataset_fingerprint(tokenizer_sha256, described),
        )
        write_file(staging / MANIFEST_NAME, dataset_manifest_bytes(manifest))
        publish_directory(output)
    linked = tuple(
        path for path in dict.fromkeys(p for _, piece in pieces for p in piece.files.paths) if _is_shared(path, output)
    )
    return DataImportDocument(output, manifest, linked)


def _opened(paths: Sequence[Path]) -> list[TokenFiles]:
    return [files for path in paths for files in open_token_files(path)]


def _token_bytes(pieces: Sequence[Piece], vocab_size: int) -> Literal[2, 4]:
    """The width of the dataset's tokens: that of the files if all have the same, so that none needs a copy."""
    widths = {piece.files.dtype.itemsize for piece in pieces}
    if len(widths) == 1 and widths <= {2, 4}:
        return 2 if widths == {2} else 4
    return 2 if vocab_size <= 2**16 else 4


def _is_linkable(piece: Piece, token_bytes: int) -> bool:
    return piece.first == 0 and piece.files.dtype.itemsize == token_bytes


def _new_bytes(piece: Piece, token_bytes: int, output: Path) -> int:
    """About the bytes that a piece takes on the disk of `output`."""
    index = 8 * (piece.stop - piece.first)
    if not _is_linkable(piece, token_bytes):
        return index + piece.num_tokens * token_bytes
    disk = existing_path(output.parent).stat().st_dev
    return index + sum(found.st_size for path in piece.files.paths if (found := path.stat()).st_dev != disk)


def _is_shared(path: Path, output: Path) -> bool:
    with suppress(OSError):
        found = path.stat()
        shards = [shard.stat() for split in SPLITS for shard in (output / split).glob("*.ds")]
        return (found.st_dev, found.st_ino) in [(shard.st_dev, shard.st_ino) for shard in shards]
    return False


def _write_split(
    staging: Path, split: SplitName, pieces: Sequence[Piece], contents: Sequence[Content], token_bytes: int
) -> DatasetSplit:
    """Writes the shards of a split and their indices."""
    (staging / split).mkdir()
    found: list[tuple[str, int | None]] = []
    for piece in pieces:
        write = _link_shards if _is_linkable(piece, token_bytes) else _copy_shard
        found += write(staging, split, piece, token_bytes, len(found))
    files = []
    names = [(name, length) for shard, n in found for name, length in ((shard, n), (f"{shard}.index", None))]
    kept = [(name, length) for name, length in names if (staging / name).exists()]
    for (name, length), sha256 in zip(kept, hash_files(staging / name for name, _ in kept), strict=True):
        num_bytes = (staging / name).stat().st_size
        whole = length is None or length * token_bytes == num_bytes
        files.append(DatasetFile(name=name, bytes=num_bytes, sha256=sha256, num_tokens=None if whole else length))
    files += [range_hashes_of(staging, name) for name, _ in found]
    return DatasetSplit(
        num_tokens=sum(piece.num_tokens for piece in pieces),
        num_bytes=sum(content.num_bytes for content in contents),
        num_documents=sum(content.num_documents for content in contents),
        num_unended_documents=sum(content.num_unended for content in contents),
        num_inner_ends=sum(content.num_inner_ends for content in contents),
        files=tuple(files),
    )


def _link_shards(
    staging: Path, split: SplitName, piece: Piece, token_bytes: int, number: int
) -> list[tuple[str, int | None]]:
    """Links the files of a piece that begins where they begin: {shard: its tokens that belong to the split}."""
    shards: list[tuple[str, int | None]] = []
    start = 0
    for path in piece.files.paths:
        stored = path.stat().st_size // token_bytes
        length = min(stored, piece.stop_token - start)
        if length > 0:
            name = f"{split}/{number + len(shards):05d}.ds"
            link_or_copy(path.resolve(), staging / name)  # os.link would link a symbolic link itself
            _write_index(staging / f"{name}.index", piece, start, start + length)
            shards.append((name, length))
        start += stored
    return shards


def _copy_shard(
    staging: Path, split: SplitName, piece: Piece, token_bytes: int, number: int
) -> list[tuple[str, int | None]]:
    """Writes the tokens of a piece as a shard of its own."""
    name = f"{split}/{number:05d}.ds"
    with (staging / name).open("wb") as file:
        for start, stop in chunks(piece.stop_token, piece.start_token):
            file.write(piece.files.tokens.read(start, stop - start).astype(f"<u{token_bytes}").tobytes())
    sync_path(staging / name)
    _write_index(staging / f"{name}.index", piece, piece.start_token, piece.stop_token)
    return [(name, None)]


def _write_index(path: Path, piece: Piece, start: int, stop: int) -> None:
    """Writes where the documents of `piece` end that end after token `start` and up to `stop`, counted from `start`.

    Leaves out documents without tokens. Writes no file if no document ends there.
    """
    before = piece.start_token
    with path.open("wb") as file:
        for first, last in chunks(piece.stop, piece.first):
            ends = piece.files.ends(first, last)
            filled = ends[ends > np.concatenate([[before], ends[:-1]])]
            file.write((filled[(filled > start) & (filled <= stop)] - start).astype("<u8").tobytes())
            before = int(ends[-1])
    if path.stat().st_size:
        sync_path(path)
    else:
        path.unlink()
