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
    """`python-stdlib`, or a text file, a folder or a glob: a local path or any fsspec URL (`s3://`, `gs://`,
    `hf://`, `memory://`). Links in a local folder are followed. Files named `.jsonl` (also `.jsonl.gz`,
    `.jsonl.zst`, `.json.gz`) hold one JSON document per line, `.parquet` one per row, `.tar` (also `.tar.gz`,
    `.tar.zst`) the samples of a WebDataset. All other files are UTF-8 text: each file of a folder is a document; a
    single file is cut into pieces of whole lines, about 16 KiB each. Or a prepared dataset: its directory, or a URL of
    one, whose tokens are read on use."""

    include: str = Field("**/*", min_length=1, examples=["**/*.jsonl.zst"])
    """Which files of a folder to read: a glob relative to the folder, for example `**/*.jsonl.zst`. By default all
    that are not hidden; the README of a repository on the Hugging Face hub is a text like any other."""

    document_separator: str | None = Field(None, min_length=1, examples=["====="])
    """The text between two documents of a plain text file; it belongs to neither. It applies to every such
    file."""

    text_key: str = Field("text", min_length=1, examples=["content"])
    """The key that holds the text of a JSON document, or the column of a Parquet file."""

    on_bad_record: BadRecordPolicy = Field("stop", examples=["skip"])
    """What a record without a document does: a line that is not JSON, a record without a text under `text_key`, null
    there, bytes that are not UTF-8. `stop` ends with an error that names it; `skip` leaves it out and counts it."""

    most_bad_records: PositiveInt | None = Field(None, examples=[1000], json_schema_extra={"unit": "records"})
    """How many bad records `on_bad_record: skip` leaves out before it stops after all; 100 by default."""

    _limit_needs_skip = model_validator(mode="after")(require_skip)


class DataSpec(SourceSpec):
    """The `data:` block of a schedule: the text, and how it is tokenised."""

    tokenizer: str | None = Field(None, min_length=1, examples=["EleutherAI/gpt-neox-20b"])
    """A `tokenizer.json`, a folder that contains one, or a name on the Hugging Face hub. Without it, a byte-level BPE
    is trained on the train split."""

    vocab_size: int | None = Field(None, ge=257, le=2**20)
    """Entries of the BPE to train; 8192 by default, and at least the 256 bytes and the end of text. A small source may
    give fewer. Not allowed with `tokenizer`, which has its own size."""

    end_of_text: str = Field("<|endoftext|>", min_length=1, examples=["</s>"])
    """The special token after each document. A tokenizer set by `tokenizer` must have it."""

    begin_of_text: str | None = Field(None, min_length=1, examples=["<s>"])
    """The special token before each document, for a model whose `tokenizer` puts it there, as Llama's does. `growctl
    show` names that of a checkpoint. By default nothing."""

    validation_fraction: float = Field(
        0.01, gt=0, lt=1, examples=[0.05], json_schema_extra={"unit": "share of the documents"}
    )
    """Share of the documents held out for validation. A hash of their texts selects them, so the split is the same on
    every machine, and documents with the same text are always in the same split."""

    shuffle_seed: int | None = Field(None, ge=0, lt=2**32, examples=[1], json_schema_extra={"unit": "pure number"})
    """The seed of a random order of the train documents, across all files; null keeps the order of the source.
    Training reads windows in random order anyway; this also mixes the documents that share a window."""

    workers: PositiveInt | None = Field(None, examples=[4], json_schema_extra={"unit": "processes"})
    """Processes that tokenise, each some files at a time; by default one per core. With `prepare --executor slurm` or
    `ray`, tasks at once. This changes only the time."""

    cache_bytes: PositiveInt = Field(DEFAULT_CACHE_BYTES, examples=[200 * 10**9], json_schema_extra={"unit": "bytes"})
    """For a prepared dataset at a URL: how much of it this machine keeps at most. All processes on a machine share the
    cache, and the shards opened least recently go first."""

    cache_dir: str | None = Field(None, min_length=1, examples=["/local/growctl-cache"])
    """For a prepared dataset at a URL: the folder of the cache, best on a local disk. By default `.shards` beside the
    datasets of the runs directory."""

    retry_seconds: PositiveInt = Field(DEFAULT_RETRY_SECONDS, examples=[900], json_schema_extra={"unit": "seconds"})
    """For a prepared dataset at a URL: how long a fault of the network is retried before training stops with an error.
    A server that denies access is not asked again."""

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
