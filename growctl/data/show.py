"""What a dataset holds, for `growctl data show`: counted in bounded memory and exactly, and shown as sections."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from growctl.data.export import ExportedSplit
from growctl.data.samples import SampleEntry
from growctl.data.target import StagePasses, Target
from growctl.ladder.datasets import MixturePart
from growctl.report.chart import Axis, Chart, Mark, Series
from growctl.schedule.blocks import longest_context
from growctl.text.formatting import byte_count, short_count
from growctl.text.progress import Advance
from growctl.text.section import Cell, Column, Paragraph, Rows, Section, Table
from stages.counted import counted, plural
from stages.data.dataset import HASHED_BYTES, DatasetManifest, DatasetSplit, data_parts, read_dataset_manifest
from stages.data.documents import DocumentEnds
from stages.data.packing import Cuts, count_cuts
from stages.data.spec import SPLITS, SplitName
from stages.data.tokens import Int64Array, TokenSplit, chunks

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
DENSE = 1 << 20
"""Below this length, documents are counted by length; the few longer ones are listed. N tokens hold at most N / DENSE
of those, so that memory stays small for any dataset."""
_BAR = 24
"""Width of the longest bar of the histogram in the terminal."""
_LENGTH = Axis("tokens", "document length, tokens", is_log=True)


@dataclass(frozen=True)
class LengthRange:
    """The documents of a range of lengths."""

    shortest: int
    """In tokens; a power of two."""
    longest: int
    """The last length of the range."""
    num_documents: int
    num_tokens: int

    def __str__(self) -> str:
        return f"{self.shortest:,} to {self.longest:,}" if self.longest > self.shortest else f"{self.shortest:,}"


@dataclass(frozen=True)
class Lengths:
    """How long the documents of a split are, in tokens with ends of text. All numbers are exact."""

    shortest: int
    longest: int
    mean: float
    percentiles: dict[int, int]
    """By percent: the smallest length that at least so many % of the documents do not exceed."""
    histogram: tuple[LengthRange, ...]
    """From the range of the shortest to that of the longest, without gaps."""


@dataclass(frozen=True)
class UsedIds:
    """Which token ids occur in the train split."""

    num_used: int
    """Different ids that occur, of the tokenizer's."""
    share_used: float
    """Of the tokenizer's ids, between 0 and 1."""
    vocab_size: int
    """Rows of the model's embedding: of the schedule's, or else as many as the tokenizer needs."""
    num_beyond: int
    """Tokens whose id has no row in the embedding. A model cannot train on them."""
    largest: int
    """The largest id that occurs."""


@dataclass(frozen=True)
class DataShowDocument:
    """What a dataset holds, and what training reads of it."""

    path: Path
    manifest: DatasetManifest
    """Its manifest.json. The splits of a mixture are the sums of its sources'."""
    sources: dict[str, DatasetManifest]
    """Those of a mixture's sources, by name; empty for a dataset that is not one."""
    lengths: dict[SplitName, Lengths]
    """By split with documents; empty if only samples were asked for."""
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


def describe(
    target: Target,
    on_progress: Advance,
    *,
    count_ids: bool | None = None,
    samples: tuple[SampleEntry, ...] = (),
    sequence_length: int | None = None,
) -> DataShowDocument:
    """Everything about the dataset. With `samples`, its documents and ids are not read.

    `count_ids`: whether to read all tokens of train for the ids; by default of datasets up to `HASHED_BYTES`.
    `sequence_length`: of training, if no schedule says it. Raises DataError for a damaged file.
    """
    length = longest_context(target.schedule) if target.schedule else sequence_length
    paths = [path for _, path in data_parts(target.directory)]
    manifests = [read_dataset_manifest(path) for path in paths]
    if count_ids is None:
        count_ids = sum(manifest.num_file_bytes for manifest in manifests) <= HASHED_BYTES
    filled: list[SplitName] = [split for split in SPLITS if target.manifest.splits[split].num_documents and not samples]
    return DataShowDocument(
        path=target.directory,
        manifest=target.manifest,
        sources={entry.name: manifest for entry, manifest in zip(target.manifest.sources, manifests, strict=False)},
        lengths={split: count_lengths(_lengths(target, paths, split, on_progress)) for split in filled},
        ids=_used_ids(target, paths, on_progress) if count_ids and not samples else None,
        passes=target.passes(),
        mixture=target.mixture_parts(),
        cuts=_cuts(paths, length) if length and not samples else None,
        samples=samples,
    )


def _lengths(target: Target, paths: Iterable[Path], split: SplitName, on_progress: Advance) -> Iterator[Int64Array]:
    done, total = 0, target.manifest.splits[split].num_documents
    for path in paths:
        for part in DocumentEnds(path, split).lengths():
            yield part
            done += len(part)
            on_progress(done, total, f"reading the documents of {split}")


def count_lengths(parts: Iterable[Int64Array]) -> Lengths:
    """The lengths of documents that come in `parts`: (N,) each, all at least 1, and not all empty."""
    dense, long_lengths = np.zeros(DENSE, np.int64), [np.empty(0, np.int64)]
    for part in parts:
        counts = np.bincount(part[part < DENSE])
        dense[: len(counts)] += counts
        long_lengths.append(part[part >= DENSE])
    short = np.flatnonzero(dense)
    more, times = np.unique(np.concatenate(long_lengths), return_counts=True)
    values, counts = np.concatenate([short, more]), np.concatenate([dense[short], times])
    upto = np.cumsum(counts)
    ranks = [-(-percent * int(upto[-1]) // 100) for percent in PERCENTILES]
    return Lengths(
        shortest=int(values[0]),
        longest=int(values[-1]),
        mean=int(values @ counts) / int(upto[-1]),
        percentiles=dict(zip(PERCENTILES, values[np.searchsorted(upto, ranks)].tolist(), strict=True)),
        histogram=tuple(_histogram(values, counts)),
    )


def _histogram(values: Int64Array, counts: Int64Array) -> Iterator[LengthRange]:
    for power in range(int(values[0]).bit_length(), int(values[-1]).bit_length() + 1):
        low, high = 1 << (power - 1), (1 << power) - 1
        here = slice(*np.searchsorted(values, [low, high + 1]))
        yield LengthRange(low, high, int(counts[here].sum()), int(values[here] @ counts[here]))


def _used_ids(target: Target, paths: Iterable[Path], on_progress: Advance) -> UsedIds:
    def parts() -> Iterator[Int64Array]:
        done, total = 0, target.manifest.splits["train"].num_tokens
        for path in paths:
            tokens = TokenSplit(path, "train")
            for start, stop in chunks(tokens.num_tokens):
                yield tokens.read(start, stop - start)
                done += stop - start
                on_progress(done, total, "counting the ids of train")

    return count_ids_of(parts(), target.manifest.vocab_size, target.vocab_size)


def count_ids_of(parts: Iterable[Int64Array], tokenizer_size: int, vocab_size: int) -> UsedIds:
    """Counts the ids in `parts`: (N,) each, N at least 1."""
    occurs, num_beyond, largest = np.zeros(tokenizer_size, bool), 0, 0
    for ids in parts:
        largest = max(largest, int(ids.max()))
        num_beyond += int(np.count_nonzero(ids >= vocab_size))
        occurs[ids[ids < tokenizer_size]] = True
    num_used = int(np.count_nonzero(occurs))
    return UsedIds(num_used, num_used / tokenizer_size, vocab_size, num_beyond, largest)


def _cuts(paths: Iterable[Path], sequence_length: int) -> Cuts:
    """The documents that sequences cut; of a mixture, those of all its sources."""
    cuts = Cuts(sequence_length)
    for path in paths:
        part = count_cuts(DocumentEnds(path, "train").lengths(), sequence_length)
        cuts.num_longer += part.num_longer
        cuts.concatenated += part.concatenated
        cuts.packed += part.packed
    return cuts


def data_sections(document: DataShowDocument, *, with_bars: bool = False) -> list[Section]:
    """The sections on a dataset; `with_bars` adds the histogram's bars, for terminals, which show no chart."""
    return [
        Section("dataset", f"Dataset {document.path}", (_splits(document), *_sources(document), *_facts(document))),
        Section("lengths", "Lengths of documents", tuple(_length_parts(document, with_bars))),
        *([Section("epochs", "Epochs", tuple(_passes(document)))] if document.passes else []),
    ]


def _splits(document: DataShowDocument) -> Table:
    manifest = document.manifest
    splits = [manifest.splits[name] for name in SPLITS]
    files = [
        [file for part in document.sources.values() or [manifest] for file in part.splits[name].files]
        for name in SPLITS
    ]
    num_shards = [sum(file.name.endswith(".ds") for file in part) for part in files]
    sizes = [sum(file.bytes for file in part) for part in files]
    ratios = [split.num_bytes / split.num_tokens if split.num_tokens else None for split in splits]
    rows = [
        ("tokens", [_count(split.num_tokens) for split in splits]),
        ("documents", [_count(split.num_documents) for split in splits]),
        ("bytes of text", [_count(split.num_bytes) for split in splits]),
        ("bytes per token", [_ratio(ratio) for ratio in ratios]),
        ("shards", [_count(number) for number in num_shards]),
        ("on the disk", [Cell(byte_count(size), size) for size in sizes]),
    ]
    columns = [Column("", is_number=False), *map(Column, SPLITS)]
    return Table.of("splits", columns, [(Cell(name), *cells) for name, cells in rows])


def _sources(document: DataShowDocument) -> Iterator[Table]:
    entries = document.manifest.sources
    total = sum(entry.weight for entry in entries)
    columns = [
        Column("source", is_number=False),
        *(Column(name) for name in ("weight", "share", "train tokens", "validation tokens")),
        Column("epochs at most", drop=1),
    ]
    rows = [
        (
            Cell(entry.name),
            Cell(f"{entry.weight:g}", entry.weight),
            Cell(f"{entry.weight / total:.1%}", entry.weight / total),
            *(_count(document.sources[entry.name].splits[split].num_tokens) for split in SPLITS),
            _ratio(entry.epochs_at_most),
        )
        for entry in entries
    ]
    if rows:
        yield Table.of("sources", columns, rows, "Shares of the training samples, unless a stage has its own weights.")


def _facts(document: DataShowDocument) -> Iterator[Paragraph]:
    """What tells the dataset from others."""
    manifest, spec = document.manifest, document.manifest.spec
    include = "" if spec.include == "**/*" else f", files that match {spec.include}"
    if manifest.sources:
        yield Paragraph("A mixture of datasets: its text and tokens are theirs")
    else:
        yield Paragraph(f"Source: {spec.source}{include}")
    tokenizer = spec.tokenizer or f"trained on {'all its sources' if manifest.sources else 'the text'}"
    yield Paragraph(
        f"Tokenizer: {tokenizer}, {counted(manifest.vocab_size, 'entry', 'entries')}, {manifest.token_bytes} bytes "
        f"per stored token; {documents_ending(manifest.splits.values())} in {spec.end_of_text} "
        f"(id {manifest.end_of_text_id})"
    )
    if document.ids:
        yield from _ids(document.ids, manifest.vocab_size)
    else:
        yield Paragraph("Ids that occur: not counted; --count-ids reads all tokens for them", "note")
    if manifest.skipped.total:
        yield Paragraph(f"Left out: {manifest.skipped}")
    hashes = {
        "Fingerprint": manifest.fingerprint,
        **({} if manifest.sources else {"Source sha256": manifest.source_sha256}),
        "Tokenizer sha256": manifest.tokenizer_sha256,
        **{f"Text hash of {name}": split.text_hash for name, split in manifest.splits.items()},
    }
    for name, value in hashes.items():
        yield Paragraph(f"{name}: {f'{value[:16]}...' if value else 'not known'}", "note")


def documents_ending(splits: Iterable[DatasetSplit | ExportedSplit]) -> str:
    """How many documents of the splits end, as the beginning of a sentence that goes on with the end of text."""
    counts = [(split.num_documents, split.num_unended_documents) for split in splits]
    total, unended = (sum(numbers) for numbers in zip(*counts, strict=True))
    return f"{total - unended:,} of {total:,} documents end" if unended else "each document ends"


def _ids(ids: UsedIds, tokenizer_size: int) -> Iterator[Paragraph]:
    yield Paragraph(
        f"Ids that occur in train: {ids.num_used:,} of {tokenizer_size:,} ({ids.share_used:.1%}); the largest is "
        f"{ids.largest:,}"
    )
    if ids.num_beyond:
        beyond = f"{counted(ids.num_beyond, 'token')} of train have ids beyond the "
        if ids.largest < tokenizer_size:
            fix = f"model's {ids.vocab_size:,} rows: set model.vocab_size to {tokenizer_size} or more"
        else:
            fix = (
                f"tokenizer's {tokenizer_size:,} entries: the tokens were made with another one; prepare the text again"
            )
        yield Paragraph(f"{beyond}{fix}.", "warning")


def _length_parts(document: DataShowDocument, with_bars: bool) -> Iterator[Paragraph | Table | Chart]:
    lengths, splits = document.lengths, document.manifest.splits
    if not lengths:
        yield Paragraph("There are no documents.")
        return
    rows = {
        "mean": [_ratio(each.mean) for each in lengths.values()],
        "shortest": [_count(each.shortest) for each in lengths.values()],
    }
    for percent in PERCENTILES:
        name = "median" if percent == 50 else f"{percent} %"
        rows[name] = [_count(each.percentiles[percent]) for each in lengths.values()]
    rows["longest"] = [_count(each.longest) for each in lengths.values()]
    yield Table.of(
        "percentiles",
        [Column("tokens", is_number=False), *map(Column, lengths)],
        [(Cell(name), *cells) for name, cells in rows.items()],
        "N %: this share of the documents is no longer. Ends of text count.",
    )
    columns = (
        Column("tokens", is_number=False),
        Column("documents"),
        Column("of documents", drop=1),
        Column("of tokens", drop=1),
        *([Column("", is_number=False)] if with_bars else []),
    )
    bars = [Rows(tuple(_rows(each, splits[name], with_bars)), name) for name, each in lengths.items()]
    yield Table("histogram", columns, tuple(bars))
    if document.cuts:
        yield Paragraph(_cut_documents(document.cuts, splits["train"].num_documents))
    yield length_chart(document)


def _rows(lengths: Lengths, split: DatasetSplit, with_bars: bool) -> Iterator[tuple[Cell, ...]]:
    most = max(each.num_documents for each in lengths.histogram)
    for each in lengths.histogram:
        share, of_tokens = each.num_documents / split.num_documents, each.num_tokens / split.num_tokens
        bar = "█" * (_BAR * each.num_documents // most) or ("▏" if each.num_documents else "")
        yield (
            Cell(str(each), each.shortest),
            _count(each.num_documents),
            Cell(f"{share:.1%}", share),
            Cell(f"{of_tokens:.1%}", of_tokens),
            *([Cell(bar)] if with_bars else []),
        )


def _cut_documents(cuts: Cuts, num_documents: int) -> str:
    shorter = num_documents - cuts.num_longer
    return (
        f"Sequences of {counted(cuts.sequence_length, 'token')}: {counted(cuts.num_longer, 'document')} of train "
        f"{plural(cuts.num_longer, 'is', 'are')} longer, so that {plural(cuts.num_longer, 'it is', 'they are')} cut in "
        f"any case. Of the other {shorter:,}, data.packing: concatenate cuts {cuts.concatenated:,.0f} "
        f"({cuts.concatenated / max(1, shorter):.1%}), best_fit {cuts.packed:,} ({cuts.packed / max(1, shorter):.1%})."
    )


def length_chart(document: DataShowDocument) -> Chart:
    """The histogram of the documents' lengths, of both splits."""
    splits = document.manifest.splits
    medians = [
        f"{name}: {counted(splits[name].num_documents, 'document')} of {each.shortest:,} to {each.longest:,} tokens, "
        f"half of at most {each.percentiles[50]:,}"
        for name, each in document.lengths.items()
    ]
    return Chart(
        key="document-lengths",
        title="Lengths of documents",
        summary="; ".join(medians) or "There are no documents.",
        x_axes=(_LENGTH,),
        y_axis=Axis("share", "share of the split's documents, %"),
        series=tuple(
            Series(name, tuple(_mark(part, splits[name].num_documents) for part in each.histogram), group=name)
            for name, each in document.lengths.items()
        ),
    )


def _mark(part: LengthRange, num_documents: int) -> Mark:
    facts = (("tokens", str(part)), ("documents", f"{part.num_documents:,}"))
    return Mark({_LENGTH.key: (part.shortest * part.longest) ** 0.5}, 100 * part.num_documents / num_documents, facts)


def _passes(document: DataShowDocument) -> Iterator[Table]:
    several = len({each.sequence_length for each in document.passes}) > 1
    columns = [
        Column("stage", is_number=False),
        *([Column("context")] if several else []),
        *map(Column, ("tokens", "first sample", "samples", "epochs", "epochs at its end")),
    ]
    rows = [
        (
            Cell(each.name),
            *([_count(each.sequence_length)] if several else []),
            Cell(short_count(each.num_tokens), each.num_tokens),
            _count(each.first_sample),
            _count(each.num_samples),
            _ratio(each.epochs),
            _ratio(each.epochs_at_end),
        )
        for each in document.passes
    ]
    read = "the source that is read most often" if document.mixture else "train"
    unit = " Samples are sequences of the stage's context." if several else ""
    yield Table.of("epochs", columns, rows, f"An epoch is one pass over {read}.{unit}")
    if document.mixture:
        names = [Column(name, is_number=False) for name in ("stage", "source")]
        columns = [*names, *map(Column, ("share", "tokens", "epochs at its end"))]
        yield Table.of("mixture", columns, list(map(_mixture_row, document.mixture)))


def _mixture_row(part: MixturePart) -> tuple[Cell, ...]:
    tokens = Cell(short_count(part.budget_tokens), part.budget_tokens)
    return Cell(part.stage), Cell(part.source), Cell(f"{part.share:.1%}", part.share), tokens, _ratio(part.epochs)


def _count(value: int) -> Cell:
    return Cell(f"{value:,}", value)


def _ratio(value: float | None) -> Cell:
    return Cell("-" if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}", value)
