"""What a dataset holds, for `growctl data show`: found by its directory, its URL or a schedule, and counted exactly."""

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from growctl.ladder.datasets import mixture_spans
from growctl.ladder.load import load_schedule
from growctl.ladder.stage_plans import plan_stages, stage_positions
from growctl.runs_dir import RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.schedule.sources import prepared_data
from growctl.text.formatting import byte_count
from growctl.text.section import Cell, Column, Paragraph, Section, Table, figure
from model.errors import UserError
from stages.corpus.prepared import remote_dataset
from stages.corpus.tasks import Progress
from stages.corpus.tokenizer import open_tokenizer
from stages.counted import counted
from stages.data.dataset import DatasetManifest, dataset_parts
from stages.data.documents import document_lengths
from stages.data.samples import TrainingSamples
from stages.data.spec import SPLITS, DataSpec, SplitName
from stages.data.tokens import Int64Array
from stages.images.either import verify_any_dataset
from stages.stage_dir import TOKENIZER_NAME

PERCENTILES = {"shortest": 0, "5 %": 5, "25 %": 25, "median": 50, "75 %": 75, "95 %": 95, "longest": 100}


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
    ids: tuple[int, ...]
    text: str
    """The ids decoded, with ends of text. A character that is cut at an end of the sample becomes a replacement
    character."""


@dataclass(frozen=True)
class DataShowDocument:
    """What a dataset holds."""

    path: Path
    manifest: DatasetManifest
    """Its manifest.json. The splits of a mixture are the sums of its sources'."""
    sources: dict[str, DatasetManifest]
    """Those of a mixture's sources, by name; empty for a dataset that is not one."""
    lengths: dict[SplitName, dict[str, float]]
    """By split, the lengths of its documents in tokens with ends of text: `mean`, `shortest`, `median`, `longest`, and
    by `N %` the smallest length that this share of the documents does not exceed. Empty if a sample was asked for."""
    sample: SampleEntry | None
    """The one that --sample asks for."""


def show_dataset(reference: str, overrides: Sequence[str], runs_dir: Path, sample: int | None) -> DataShowDocument:
    """The dataset in the directory or at the URL `reference`, or else the newest prepared for that schedule.

    `sample`: the index of the sample of the schedule to show, in place of the lengths of documents. Raises DataError if
    it is no dataset or damaged, UserError if it is not prepared or has no such sample.
    """
    directory, schedule = _find(reference, overrides, RunsPaths(runs_dir))
    manifest = verify_any_dataset(directory, hashes=False)
    if not isinstance(manifest, DatasetManifest):
        raise UserError(f"{directory} has images; data show reads datasets of text")
    if sample is not None and schedule is None:
        raise UserError(
            f"--sample {sample}: which sample that is depends on a schedule; give one, with data.source={reference} to"
            " read this dataset"
        )
    parts = dataset_parts(directory)
    sources = {part.name: part.manifest for part in parts if part.name}
    if schedule and sample is not None:
        entry = sample_of(schedule, directory, manifest, sample, RunsPaths(runs_dir).directory)
        return DataShowDocument(directory, manifest, sources, {}, entry)
    lengths = {
        split: count_lengths(chain.from_iterable(document_lengths(part.directory, split) for part in parts))
        for split in SPLITS
    }
    return DataShowDocument(directory, manifest, sources, lengths, None)


def sample_of(schedule: Schedule, dataset: Path, manifest: DatasetManifest, index: int, runs_dir: Path) -> SampleEntry:
    """The sample that `schedule` reads at `index`: a window of its longest context.

    A stage that ends early, by its slope or after a rollback, makes a run read others than planned of a mixture.
    """
    begin = 0
    if schedule.base is not None:
        from growctl.run.start import Start  # slow

        begin = Start(schedule, schedule.base, runs_dir).position(manifest)[0]
    plans, longest = plan_stages(schedule), schedule.longest_context
    positions = stage_positions([plan.batch for plan in plans], [plan.num_steps for plan in plans], begin)
    spans = mixture_spans(schedule, positions, schedule.base.mixture if schedule.base and begin else ())
    data = schedule.data
    samples = TrainingSamples(dataset, longest, schedule.seed, spans, data.when_exhausted, data.packing)
    return read_sample(dataset, samples, index)


def read_sample(dataset: Path, samples: TrainingSamples, index: int) -> SampleEntry:
    """A sample of those opened from `dataset`. Raises DataError for damage."""
    ids, (source, epoch, pieces) = samples[index].tolist(), samples.origin(index)
    text = open_tokenizer(dataset / TOKENIZER_NAME).decode(ids, skip_special_tokens=False)
    return SampleEntry(index, dataset_parts(dataset)[source].name, epoch, pieces[0][0], tuple(ids), text)


def sample_lines(sample: SampleEntry) -> list[str]:
    """A sample for people, in lines."""
    place = f"epoch {sample.epoch + 1:,}{f' of {sample.source}' if sample.source else ''}"
    fact = f"sample {sample.index:,}: {place}, {len(sample.ids)} tokens from token {sample.position:,} of train"
    return [fact, sample.text]


def _find(reference: str, overrides: Sequence[str], runs: RunsPaths) -> tuple[Path, Schedule | None]:
    """The directory of the dataset, and the schedule that it was prepared for if the user named that."""
    if (is_url := "://" in reference) or os.path.isdir(reference):
        if overrides:
            raise UserError(f"{overrides[0]}: {reference} is a dataset; only schedules take overrides")
        if not is_url:
            return Path(reference), None
        if found := remote_dataset(DataSpec(source=reference), runs.datasets, Progress()):
            return found, None
        raise UserError(f"{reference}: there is no prepared dataset, or it cannot be reached")
    schedule = load_schedule(reference, overrides, runs_dir=runs.directory)
    prepared = next((path for path, _ in prepared_data(schedule.data, runs.datasets)), None)
    if prepared is None:
        where = [] if runs.directory == Path("runs") else ["--runs-dir", str(runs.directory)]
        command = shlex.join(["growctl", "prepare", reference, *overrides, *where])
        raise UserError(f"{reference}: its dataset is not in {runs.datasets}; to prepare it: {command}")
    return prepared, schedule


def count_lengths(parts: Iterable[Int64Array]) -> dict[str, float]:
    """The mean and the PERCENTILES of the lengths that come in `parts`: (N,) each, and not all empty. All are exact."""
    lengths = np.sort(np.concatenate(list(parts)))
    ranks = [-(-percent * len(lengths) // 100) for percent in PERCENTILES.values()]
    percentiles = {name: int(lengths[max(0, rank - 1)]) for name, rank in zip(PERCENTILES, ranks, strict=True)}
    return {"mean": int(lengths.sum()) / len(lengths), **percentiles}


def data_section(document: DataShowDocument) -> Section:
    """What the dataset holds, as tables and facts."""
    manifest, spec = document.manifest, document.manifest.spec
    splits = manifest.splits.values()
    total, unended = sum(s.num_documents for s in splits), sum(s.num_unended_documents for s in splits)
    ending = f"{total - unended:,} of {total:,} documents end" if unended else "each document ends"
    tokenizer = spec.tokenizer or f"trained on {'all its sources' if manifest.sources else 'the text'}"
    facts = [
        f"Source: {'a mixture of datasets' if manifest.sources else spec.source}"
        + ("" if spec.include == "**/*" else f", files that match {spec.include}"),
        f"Tokenizer: {tokenizer}, {counted(manifest.vocab_size, 'entry', 'entries')}, {manifest.token_bytes} bytes per "
        f"stored token; {ending} in {spec.end_of_text} (id {manifest.end_of_text_id})"
        + (f" and begins with {spec.begin_of_text} (id {manifest.begin_of_text_id})" if spec.begin_of_text else ""),
        *([f"Left out: {manifest.skipped}"] if manifest.skipped.total else []),
        f"Fingerprint: {manifest.fingerprint}",
    ]
    return Section(
        "dataset", f"Dataset {document.path}", (_splits(document), *_sources(document), *map(Paragraph, facts))
    )


def _splits(document: DataShowDocument) -> Table:
    parts = document.sources.values() or [document.manifest]
    files = {name: [file for part in parts for file in part.splits[name].files] for name in SPLITS}
    splits = {name: document.manifest.splits[name] for name in SPLITS}
    rows = {
        "tokens": [figure(split.num_tokens, "{:,}") for split in splits.values()],
        "documents": [figure(split.num_documents, "{:,}") for split in splits.values()],
        "bytes of text": [figure(split.num_bytes, "{:,}") for split in splits.values()],
        "bytes per token": [figure(split.num_bytes / max(1, split.num_tokens), "{:.2f}") for split in splits.values()],
        "on the disk": [figure(sum(file.bytes for file in part), byte_count) for part in files.values()],
    }
    for name in ("mean", *PERCENTILES) if document.lengths else ():
        rows[f"{name} length"] = [figure(document.lengths[split][name], "{:,.0f}") for split in SPLITS]
    columns = [Column("", is_number=False), *map(Column, SPLITS)]
    caption = "Lengths are the documents', in tokens. N %: this share of the documents is no longer."
    return Table.of("splits", columns, [(Cell(name), *cells) for name, cells in rows.items()], caption)


def _sources(document: DataShowDocument) -> Iterator[Table]:
    entries = document.manifest.sources
    columns = [Column("source", is_number=False), *(Column(f"{split} tokens") for split in SPLITS)]
    columns += [Column("weight"), Column("share"), Column("epochs at most", drop=1)]
    rows = [
        (
            Cell(entry.name),
            *(figure(document.sources[entry.name].splits[split].num_tokens, "{:,}") for split in SPLITS),
            figure(entry.weight, "{:g}"),
            figure(entry.weight / sum(each.weight for each in entries), "{:.1%}"),
            figure(entry.epochs_at_most, "{:g}"),
        )
        for entry in entries
    ]
    if rows:
        yield Table.of("sources", columns, rows, "Shares of the training samples, unless a stage has its own weights.")
