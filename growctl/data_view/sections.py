"""Words what a dataset holds as sections, for the terminal and for a page."""

from collections.abc import Iterable, Iterator, Sequence

from growctl.data.export import ExportedSplit
from growctl.data_view.counts import PERCENTILES, LengthRange, Lengths, UsedIds
from growctl.data_view.document import DataShowDocument, SplitEntry
from growctl.report.chart import Axis, Chart, Mark, Series
from growctl.text.formatting import byte_count, short_count
from growctl.text.section import Cell, Column, Paragraph, Rows, Section, Table
from stages.counted import counted, plural
from stages.data.packing import Cuts

_BAR = 24
"""Width of the longest bar of the histogram in the terminal."""
_LENGTH = Axis("tokens", "document length, tokens", is_log=True)


def data_sections(document: DataShowDocument, *, with_bars: bool = False) -> list[Section]:
    """The sections on a dataset; `with_bars` adds the histogram's bars, for terminals, which show no chart."""
    return [
        Section("dataset", f"Dataset {document.path}", (_splits(document), *_sources(document), *_facts(document))),
        Section("lengths", "Lengths of documents", tuple(_length_parts(document, with_bars))),
        *([Section("epochs", "Epochs", tuple(_passes(document)))] if document.passes else []),
    ]


def length_chart(document: DataShowDocument) -> Chart:
    """The histogram of the documents' lengths, of both splits."""
    named = {name: split for name, split in document.splits.items() if split.num_documents}
    return Chart(
        key="document-lengths",
        title="Lengths of documents",
        summary="; ".join(_median(name, split) for name, split in named.items()) or "There are no documents.",
        x_axes=(_LENGTH,),
        y_axis=Axis("share", "share of the split's documents, %"),
        series=tuple(Series(name, tuple(_marks(split)), group=name) for name, split in named.items()),
    )


def _splits(document: DataShowDocument) -> Table:
    entries = list(document.splits.values())
    rows = [
        ("tokens", [_count(split.num_tokens) for split in entries]),
        ("documents", [_count(split.num_documents) for split in entries]),
        ("bytes of text", [_count(split.num_bytes) for split in entries]),
        ("bytes per token", [_ratio(split.bytes_per_token) for split in entries]),
        ("shards", [_count(split.num_shards) for split in entries]),
        ("on the disk", [Cell(byte_count(split.file_bytes), split.file_bytes) for split in entries]),
    ]
    columns = [Column("", is_number=False), *map(Column, document.splits)]
    return Table.of("splits", columns, [(Cell(name), *cells) for name, cells in rows])


def _sources(document: DataShowDocument) -> Iterator[Table]:
    columns = [
        Column("source", is_number=False),
        *(Column(name) for name in ("weight", "share", "train tokens", "validation tokens")),
        Column("epochs at most", drop=1),
    ]
    rows = [
        (
            Cell(each.name),
            Cell(f"{each.weight:g}", each.weight),
            Cell(f"{each.share:.1%}", each.share),
            _count(each.train_tokens),
            _count(each.validation_tokens),
            _ratio(each.epochs_at_most),
        )
        for each in document.sources
    ]
    if rows:
        yield Table.of("sources", columns, rows, "Shares of the training samples, unless a stage has its own weights.")


def _facts(document: DataShowDocument) -> Iterator[Paragraph]:
    """What tells the dataset from others."""
    include = "" if document.include == "**/*" else f", files that match {document.include}"
    if document.sources:
        yield Paragraph("A mixture of datasets: its text and tokens are theirs")
    else:
        yield Paragraph(f"Source: {document.source}{include}")
    tokenizer = document.tokenizer or f"trained on {'all its sources' if document.sources else 'the text'}"
    yield Paragraph(
        f"Tokenizer: {tokenizer}, {counted(document.tokenizer_size, 'entry', 'entries')}, {document.token_bytes} bytes "
        f"per stored token; {documents_ending(document.splits.values())} in {document.end_of_text} "
        f"(id {document.end_of_text_id})"
    )
    if document.ids:
        yield from _ids(document.ids, document.tokenizer_size)
    else:
        yield Paragraph("Ids that occur: not counted; --count-ids reads all tokens for them", "note")
    if document.skipped.total:
        yield Paragraph(f"Left out: {document.skipped}")
    hashes = {
        "Fingerprint": document.fingerprint,
        **({} if document.sources else {"Source sha256": document.source_sha256}),
        "Tokenizer sha256": document.tokenizer_sha256,
        **{f"Text hash of {name}": split.text_hash for name, split in document.splits.items()},
    }
    for name, value in hashes.items():
        yield Paragraph(f"{name}: {f'{value[:16]}...' if value else 'not known'}", "note")


def documents_ending(splits: Iterable[SplitEntry | ExportedSplit]) -> str:
    """How many documents of the splits end, as the beginning of a sentence that goes on with the end of text."""
    found = list(splits)
    total, unended = sum(each.num_documents for each in found), sum(each.num_unended_documents for each in found)
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
    measured = {name: split.lengths for name, split in document.splits.items() if split.lengths}
    found = {name: lengths for name, lengths in measured.items() if lengths.longest is not None}
    if not found:
        yield Paragraph("There are no documents.")
        return
    yield Table.of(
        "percentiles",
        [Column("tokens", is_number=False), *map(Column, found)],
        [(Cell(name), *cells) for name, cells in _percentiles(list(found.values()))],
        "N %: this share of the documents is no longer. Ends of text count.",
    )
    yield Table(
        "histogram",
        (
            Column("tokens", is_number=False),
            Column("documents"),
            Column("of documents", drop=1),
            Column("of tokens", drop=1),
            *([Column("", is_number=False)] if with_bars else []),
        ),
        tuple(Rows(tuple(_histogram(document.splits[name], with_bars)), name) for name in found),
    )
    if document.cuts:
        yield Paragraph(_cuts(document.cuts, document.splits["train"].num_documents))
    yield length_chart(document)


def _cuts(cuts: Cuts, num_documents: int) -> str:
    shorter = num_documents - cuts.num_longer
    return (
        f"Sequences of {counted(cuts.sequence_length, 'token')}: {counted(cuts.num_longer, 'document')} of train "
        f"{plural(cuts.num_longer, 'is', 'are')} longer, so that {plural(cuts.num_longer, 'it is', 'they are')} cut in "
        f"any case. Of the other {shorter:,}, data.packing: concatenate cuts {cuts.concatenated:,.0f} "
        f"({cuts.concatenated / max(1, shorter):.1%}), best_fit {cuts.packed:,} ({cuts.packed / max(1, shorter):.1%})."
    )


def _percentiles(found: Sequence[Lengths]) -> Iterator[tuple[str, list[Cell]]]:
    yield "mean", [_ratio(lengths.mean) for lengths in found]
    yield "shortest", [_count(lengths.shortest or 0) for lengths in found]
    for number, percent in enumerate(PERCENTILES):
        name = "median" if percent == 50 else f"{percent} %"
        yield name, [_count(lengths.percentiles[number].num_tokens) for lengths in found]
    yield "longest", [_count(lengths.longest or 0) for lengths in found]


def _histogram(split: SplitEntry, with_bars: bool) -> Iterator[tuple[Cell, ...]]:
    assert split.lengths
    most = max(each.num_documents for each in split.lengths.histogram)
    for each in split.lengths.histogram:
        share, of_tokens = each.num_documents / split.num_documents, each.num_tokens / split.num_tokens
        bar = "█" * (_BAR * each.num_documents // most) or ("▏" if each.num_documents else "")
        yield (
            Cell(_range(each), each.shortest),
            _count(each.num_documents),
            Cell(f"{share:.1%}", share),
            Cell(f"{of_tokens:.1%}", of_tokens),
            *([Cell(bar)] if with_bars else []),
        )


def _marks(split: SplitEntry) -> Iterator[Mark]:
    for each in split.lengths.histogram if split.lengths else ():
        yield Mark(
            {_LENGTH.key: (each.shortest * each.longest) ** 0.5},
            100 * each.num_documents / split.num_documents,
            (("tokens", _range(each)), ("documents", f"{each.num_documents:,}")),
        )


def _passes(document: DataShowDocument) -> Iterator[Table]:
    several = len({each.sequence_length for each in document.passes}) > 1
    columns = [
        Column("stage", is_number=False),
        *([Column("context")] if several else []),
        *(Column(name) for name in ("tokens", "first sample", "samples", "epochs")),
        Column("epochs at its end"),
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
    of = "the source that is read most often" if document.mixture else "train"
    unit = " Samples are sequences of the stage's context." if several else ""
    yield Table.of("epochs", columns, rows, f"An epoch is one pass over {of}.{unit}")
    if document.mixture:
        yield _mixture(document)


def _mixture(document: DataShowDocument) -> Table:
    columns = [
        *(Column(name, is_number=False) for name in ("stage", "source")),
        *(Column(name) for name in ("share", "tokens", "epochs at its end")),
    ]
    rows = [
        (
            Cell(part.stage),
            Cell(part.source),
            Cell(f"{part.share:.1%}", part.share),
            Cell(short_count(part.budget_tokens), part.budget_tokens),
            _ratio(part.epochs),
        )
        for part in document.mixture
    ]
    return Table.of("mixture", columns, rows)


def _median(name: str, split: SplitEntry) -> str:
    lengths = split.lengths
    assert lengths
    median = next(each.num_tokens for each in lengths.percentiles if each.percent == 50)
    documents = counted(split.num_documents, "document")
    return f"{name}: {documents} of {lengths.shortest:,} to {lengths.longest:,} tokens, half of at most {median:,}"


def _range(each: LengthRange) -> str:
    return f"{each.shortest:,} to {each.longest:,}" if each.longest > each.shortest else f"{each.shortest:,}"


def _count(value: int) -> Cell:
    return Cell(f"{value:,}", value)


def _ratio(value: float | None) -> Cell:
    return Cell("-" if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}", value)
