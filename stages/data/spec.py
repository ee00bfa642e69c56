"""The `data:` block of a spec: which text, and how it is tokenised. Imports nothing slow."""

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import ConfigDict, Field, PositiveInt, model_validator
from pydantic.json_schema import SkipJsonSchema

from model.strict import Strict
from stages.counted import counted

DEFAULT_VOCAB_SIZE = 8192
DEFAULT_CACHE_BYTES = 50 * 10**9
DEFAULT_RETRY_SECONDS = 300
NOT_CONTENT = ("workers", "cache_bytes", "cache_dir", "retry_seconds")
"""The keys of a data block that change no token."""

SourceName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$")]
"""The name of a source in a mixture."""
SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, ...] = ("train", "validation")

BadRecordPolicy = Literal["stop", "skip"]
BadRecordKind = Literal["not JSON", "no text", "null", "not UTF-8", "no image", "no class"]
"""A line that is no JSON; a record without a text under `data.text_key`; null there; bytes that are not UTF-8. Bytes
that are no image; a sample of images without a class."""
BAD_RECORDS: tuple[BadRecordKind, ...] = get_args(BadRecordKind)


class SkippedRecords(Strict):
    """The records of a source that held no document and were skipped (`data.on_bad_record: skip`)."""

    counts: dict[BadRecordKind, Annotated[int, Field(ge=1, lt=2**63)]] = {}
    """How many there are of each kind that occurs."""

    first: tuple[str, ...] = ()
    """The places of the first few, in the order of the source: file and line, row or member, and the kind."""

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.counts.values())

    def __str__(self) -> str:
        kinds = ", ".join(f"{self.counts[kind]:,} {kind}" for kind in BAD_RECORDS if kind in self.counts)
        more = ", ..." if self.total > len(self.first) else ""
        return f"{counted(self.total, 'bad record')} ({kinds}): {', '.join(self.first)}{more}"


def require_skip(spec: Any) -> Any:
    """Returns a data block. Raises ValueError if it limits bad records, but skips none."""
    if spec.most_bad_records is not None and spec.on_bad_record == "stop":
        raise ValueError(
            f"most_bad_records ({spec.most_bad_records}) limits on_bad_record: skip, but on_bad_record is stop: set"
            " it to skip, or leave out most_bad_records"
        )
    return spec


class SourceSpec(Strict):
    """A text, and how it is read."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    source: str = Field(min_length=1, examples=["/data/books/"])
    """A file, folder, glob or prepared dataset, as a local path or fsspec URL (`s3://`, `gs://`, `hf://`), or
    `python-stdlib` (Python's standard library). A file's extension decides how it is read (docs/your-data.md)."""

    include: str = Field("**/*", min_length=1, examples=["**/*.jsonl.zst"])
    """Glob, relative to the source folder, of the files to read."""

    document_separator: str | None = Field(None, min_length=1, examples=["====="])
    """Text between two documents of a plain text file; it belongs to neither. By default a file is one
    document or, if long, several."""

    text_key: str = Field("text", min_length=1, examples=["content"])
    """JSON key or Parquet column that holds the text of a document."""

    on_bad_record: BadRecordPolicy = Field("stop", examples=["skip"])
    """What to do with bad records: lines that are not JSON, missing or null texts under `text_key`, and bytes that are
    not UTF-8. stop: end with an error that names the record. skip: leave it out and count it."""

    most_bad_records: PositiveInt | None = Field(None, examples=[1000], json_schema_extra={"unit": "records"})
    """Maximum number of records left out with `on_bad_record: skip`; 100 by default."""

    _limit_needs_skip = model_validator(mode="after")(require_skip)


class DataSpec(SourceSpec):
    """The `data:` block of a schedule: the text, and how it is tokenised."""

    tokenizer: str | None = Field(None, min_length=1, examples=["EleutherAI/gpt-neox-20b"])
    """A `tokenizer.json`, a folder that contains one, or a name on the Hugging Face hub. By default growctl uses a
    prepared dataset's own, or else trains a byte-level BPE on the train split."""

    vocab_size: int | None = Field(None, ge=257, le=2**20)
    """Entries of the BPE to train; 8192 by default, and at least the 256 bytes and the end of text. A small source may
    give fewer. Not allowed with `tokenizer`, which has its own size."""

    end_of_text: str = Field("<|endoftext|>", min_length=1, examples=["</s>"])
    """The special token after each document. `tokenizer`, if set, must have it."""

    begin_of_text: str | None = Field(None, min_length=1, examples=["<s>"])
    """The special token before each document. Set it if `tokenizer` puts one there, as Llama's does. `growctl show`
    prints a checkpoint's token."""

    validation_fraction: float = Field(
        0.01, gt=0, lt=1, examples=[0.05], json_schema_extra={"unit": "share of the documents"}
    )
    """Share of the documents held out for validation. A hash of the text decides a document's split, so equal documents
    share a split on every machine."""

    shuffle_seed: int | None = Field(None, ge=0, lt=2**32, examples=[1], json_schema_extra={"unit": "pure number"})
    """Seed for shuffling the training documents of all files; by default they keep the source's order. Windows
    are always read in random order."""

    workers: PositiveInt | None = Field(None, examples=[4], json_schema_extra={"unit": "processes"})
    """Processes that tokenise; by default one per core. With `prepare --executor slurm` or `ray`, the maximum
    number of jobs or tasks at a time."""

    cache_bytes: PositiveInt = Field(DEFAULT_CACHE_BYTES, examples=[200 * 10**9], json_schema_extra={"unit": "bytes"})
    """For a prepared dataset at a URL: the most that this machine caches on disk, for all its processes. Shards opened
    least recently are deleted first."""

    cache_dir: str | None = Field(None, min_length=1, examples=["/local/growctl-cache"])
    """For a prepared dataset at a URL: the folder of the cache, best on a local disk. By default `.datasets/.shards` in
    the runs directory."""

    retry_seconds: PositiveInt = Field(DEFAULT_RETRY_SECONDS, examples=[900], json_schema_extra={"unit": "seconds"})
    """For a prepared dataset at a URL: how long growctl retries after a network fault before training stops with an
    error. It does not retry if access is denied."""

    shared_tokenizer: SkipJsonSchema[str | None] = Field(None, exclude_if=lambda texts: texts is None)
    """For a source of a mixture without a `tokenizer`: the `texts_hash` of all its sources, which share one that is
    trained on them. growctl writes it; leave it out."""

    @model_validator(mode="after")
    def _one_source_of_tokens(self) -> Self:
        if self.tokenizer is not None and self.vocab_size is not None:
            raise ValueError(
                f"vocab_size ({self.vocab_size}) is the size of a tokenizer to train, but tokenizer"
                f" {self.tokenizer!r} is set: leave out one of the two"
            )
        if self.begin_of_text is not None and self.tokenizer is None:
            raise ValueError(
                f"begin_of_text ({self.begin_of_text!r}) is a token of a given tokenizer: set tokenizer too, or leave"
                " out begin_of_text"
            )
        return self
