"""What `growctl data show --json` prints."""

from dataclasses import dataclass
from pathlib import Path

from growctl.data_view.counts import Lengths, UsedIds
from growctl.ladder.mixtures import MixturePart
from stages.data.packing import Cuts
from stages.data.spec import SkippedRecords, SplitName


@dataclass(frozen=True)
class SplitEntry:
    """One split of the dataset."""

    num_tokens: int
    """With ends of text."""
    num_documents: int
    num_unended_documents: int
    """Documents that do not end in the end of text, as an imported dataset may have."""
    num_bytes: int
    """UTF-8 bytes of the documents' text."""
    bytes_per_token: float | None
    """How far the tokenizer compresses the text; None without tokens."""
    num_shards: int
    file_bytes: int
    """Size of its files on the disk."""
    text_hash: str | None
    """A hash of the documents' texts, whatever their order and the tokenizer; None if not known."""
    lengths: Lengths | None
    """None if only samples were asked for."""


@dataclass(frozen=True)
class SourceEntry:
    """A source of a mixture."""

    name: str
    path: Path
    """The directory of its dataset."""
    fingerprint: str
    weight: float
    """Its base weight, as `data.mixture` has it."""
    share: float
    """The same as a share of all weights, between 0 and 1."""
    epochs_at_most: float | None
    """How often training may read it; None: as often as needed."""
    train_tokens: int
    train_documents: int
    validation_tokens: int
    validation_documents: int


@dataclass(frozen=True)
class StagePasses:
    """What a stage or a release of the schedule reads."""

    name: str
    branch_of: str | None
    """The stage that a release branches from; None for a stage of the ladder."""
    sequence_length: int
    """Its context, in data tokens."""
    first_sample: int
    """Counted in sequences of its context."""
    num_samples: int
    num_tokens: int
    """Data tokens of the stage."""
    epochs: float
    """Passes over the train split in this stage; of a mixture, over the source that is read most often."""
    epochs_at_end: float
    """Passes from sample 0 to the stage's end, likewise."""


@dataclass(frozen=True)
class Piece:
    """A part of a sample that belongs to one document."""

    document: int
    """The document's number in the split, counted from 0."""
    first_token: int
    """The first token of the piece, counted from 0 in its document."""
    starts_document: bool
    ends_document: bool
    ids: tuple[int, ...]
    text: str
    """The ids decoded on their own. A character that is cut at an end of the sample becomes a replacement character."""


@dataclass(frozen=True)
class SampleEntry:
    """A training sample: the tokens that a model reads, and one more, the target of the last."""

    index: int
    source: str | None
    """The source of a mixture that it is from; None for a dataset that is not a mixture."""
    epoch: int
    """Counted from 0; of a mixture, the source's."""
    position: int
    """Of its first token in the train split; of a mixture, in the source's."""
    num_tokens: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class DataShowDocument:
    """What a dataset holds, and what training reads of it."""

    path: Path
    fingerprint: str
    source: str
    include: str
    """Which files of a folder were read."""
    source_sha256: str | None
    """Over names, sizes and content of the source's files; None if it was not prepared from a source."""
    tokenizer: str | None
    """As the data block names it; None: trained on the train split, or on those of all sources of its mixture."""
    tokenizer_sha256: str
    tokenizer_size: int
    """One more than the tokenizer's largest id."""
    token_bytes: int
    """Size of a stored token."""
    end_of_text: str
    end_of_text_id: int
    skipped: SkippedRecords
    """The bad records of the source that `data.on_bad_record: skip` left out."""
    splits: dict[SplitName, SplitEntry]
    """Those of a mixture are the sums of its sources'."""
    sources: tuple[SourceEntry, ...]
    """Those of a mixture; empty for a dataset that is not one."""
    ids: UsedIds | None
    """None if they were not counted."""
    passes: tuple[StagePasses, ...]
    """By stage of the schedule; empty for a dataset's directory."""
    mixture: tuple[MixturePart, ...]
    """What each of those stages reads of each source of a mixture, if it trains as long as planned."""
    cuts: Cuts | None
    """The documents that training sequences cut; None if their length is not known, or only samples were asked for."""
    samples: tuple[SampleEntry, ...]
    """Those that --sample or --step asks for."""
