"""Records of a source that hold no document: what they are, and how many of them a schedule lets pass.

A reader yields a `BadRecord` in the place of a document. `Skipped` decides what happens to it: by default it stops the
preparation; with `data.on_bad_record: skip`, it is counted, up to `data.most_bad_records`.
"""

from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field

from model.strict import Strict
from stages.counted import counted
from stages.data.source_errors import DataError

Kind = Literal["not JSON", "no text", "null", "not UTF-8"]
KINDS: tuple[Kind, ...] = ("not JSON", "no text", "null", "not UTF-8")
"""A line that is no JSON; a record without a text under `data.text_key`; null there; bytes that are not UTF-8."""
DEFAULT_MOST = 100
"""How many records `data.on_bad_record: skip` lets pass without `data.most_bad_records`."""
NAMED = 5
"""How many skipped records a manifest names."""

Policy = Literal["stop", "skip"]


class BadRecord(NamedTuple):
    """A record that holds no document."""

    kind: Kind
    place: str
    """File and line, row or member."""
    message: str
    """The error for it."""
    cause: Exception | None = None


Record = str | BadRecord
"""What a reader yields: the text of a document, or why there is none."""


class SkippedRecords(Strict):
    """The records of a source that were skipped."""

    counts: dict[Kind, Annotated[int, Field(ge=1, lt=2**63)]] = {}
    """How many there are of each kind that occurs."""

    first: tuple[str, ...] = ()
    """The places of the first few, in the order of the source: file and line, row or member, and the kind."""

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.counts.values())

    def __str__(self) -> str:
        kinds = ", ".join(f"{self.counts[kind]:,} {kind}" for kind in KINDS if kind in self.counts)
        more = ", ..." if self.total > len(self.first) else ""
        return f"{counted(self.total, 'bad record')} ({kinds}): {', '.join(self.first)}{more}"


class Skipped:
    """Counts the bad records of one pass over a source, and raises where the schedule allows no more."""

    def __init__(self, policy: Policy, most: int | None) -> None:
        self._policy = policy
        self._most = DEFAULT_MOST if most is None else most
        self.records = SkippedRecords()

    def add(self, record: BadRecord) -> None:
        """Counts `record`. Raises DataError if the schedule does not let it pass."""
        if self._policy == "stop":
            raise DataError(record.message) from record.cause
        self.join(SkippedRecords(counts={record.kind: 1}, first=(f"{record.place} ({record.kind})",)))

    def join(self, records: SkippedRecords) -> Self:
        """Adds what another pass over later files has skipped. Raises DataError beyond the limit."""
        both = (self.records.counts, records.counts)
        counts = {kind: sum(part.get(kind, 0) for part in both) for kind in KINDS}
        self.records = SkippedRecords(
            counts={kind: count for kind, count in counts.items() if count},
            first=(*self.records.first, *records.first)[:NAMED],
        )
        if self.records.total > self._most:
            raise DataError(
                f"data.most_bad_records: the source has more than {counted(self._most, 'bad record')}, such as"
                f" {', '.join(self.records.first)}. Repair them, or set a higher limit"
            )
        return self
