"""What `growctl verify` finds: what is damaged below a path, and how two checkpoints differ as functions."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
from growctl.runs.directory import RunError, own_schedule
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.text.formatting import growth_words, short_count
from growctl.text.section import Cell, Column, Facts, Paragraph, Section, Table, figure
from model.config import PATTENTIONS
from model.errors import UserError
from stages.checkpoint.files import OnBytes
from stages.checkpoint.manifest import CheckpointError, verify_checkpoint
from stages.counted import counted
from stages.data.dataset import MixtureEntry, files_here, read_dataset_manifest, verify_dataset
from stages.data.errors import DataError
from stages.data.remote import CACHE_NAME
from stages.data.spec import SPLITS
from stages.grow.comparison import Comparison, Descent, GenerationGradients
from stages.stage_dir import MANIFEST_NAME, is_checkpoint_name, is_set_aside, is_unfinished

Kind = Literal["checkpoint", "dataset", "ledger", "schedule", "set aside", "unfinished"]

LEDGER = RunPaths(Path()).ledger.name
DATASETS = RunsPaths(Path()).datasets.name


@dataclass(frozen=True)
class CheckedFile:
    """A file or directory to check, and what the check found once it was done."""

    path: Path
    kind: Kind
    whole: bool | None = None
    """None: not checked, because files that are set aside or unfinished may be damaged."""

    problem: str | None = None
    """What is damaged; None if nothing is."""

    num_files: int = 1
    bytes: int = 0
    """The size of its files."""

    num_sources: int = 0
    """The datasets that a mixture is made of, each of which is checked by itself."""

    def line(self) -> str:
        """The result as a line for the screen."""
        if self.whole is None:
            why = "broken, and moved here" if self.kind == "set aside" else "never finished"
            return f"{self.path}: {self.kind} ({why}), not checked"
        if not self.whole:
            return self.problem or f"{self.path} is broken"
        whole = f"{counted(self.num_files, 'file')}, {counted(self.bytes, 'byte')}"
        if self.num_sources:
            whole = f"a mixture of {counted(self.num_sources, 'dataset')}"
        return f"{self.path}: OK, {whole if self.kind in ('checkpoint', 'dataset') else self.kind}"


@dataclass(frozen=True)
class VerifyDocument:
    """What was verified."""

    integrity: tuple[CheckedFile, ...] | None
    """Every file or directory that was re-read; null without --integrity."""

    comparison: Comparison | None
    """null without NEW, and if --integrity found damage."""


def find_targets(path: Path) -> list[CheckedFile]:
    """The targets at `path`: a checkpoint, a dataset, a ledger, or everything below a run or runs directory.

    Raises UserError if there are none.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist")
    if path.is_file():
        if path.suffix != ".db":
            raise UserError(f"{path} is not a checkpoint, dataset, {LEDGER}, run or runs directory")
        return [CheckedFile(path, "ledger")]
    # A path that the user gives is always checked, even if its name marks it as set aside or unfinished.
    if (path / MANIFEST_NAME).is_file():
        return (
            [CheckedFile(path, "checkpoint")]
            if not _is_dataset(path)
            else [CheckedFile(path, "dataset"), *_sources(path)]
        )
    if found := list(_below(path)):
        return found
    raise UserError(
        f"{path} holds no checkpoint, dataset, ledger or run: there is no {MANIFEST_NAME} or {LEDGER} in or below it"
    )


def check(target: CheckedFile, on_bytes: OnBytes | None = None) -> CheckedFile:
    """Reads all of `target` and checks its hashes; calls `on_bytes` with the bytes as they are read."""
    path, kind = target.path, target.kind
    try:
        if kind == "checkpoint":
            checkpoint = verify_checkpoint(path, on_bytes=on_bytes)
            return _whole(target, [file.bytes for file in checkpoint.files.values()])
        if kind == "dataset":
            manifest = read_dataset_manifest(path)
            verify_dataset(path, hashes=not manifest.sources, on_bytes=on_bytes)  # sources are targets of their own
            return _whole(target, [file.bytes for file in files_here(path, manifest)], len(manifest.sources))
        if kind == "ledger":
            with Ledger.open(path, read_only=True) as ledger:
                ledger.stages()
            return _whole(target, [path.stat().st_size])
        if kind == "schedule":
            own_schedule(path)
            return _whole(target, [path.stat().st_size])
    except (CheckpointError, DataError, LedgerError, RunError) as error:
        problem = str(error)
        return replace(target, whole=False, problem=problem if str(path) in problem else f"{path}: {problem}")
    except OSError as error:
        return replace(target, whole=False, problem=f"{error.filename or path} cannot be read: {error.strerror}")
    return target


def _whole(target: CheckedFile, sizes: list[int], num_sources: int = 0) -> CheckedFile:
    return replace(target, whole=True, num_files=len(sizes), bytes=sum(sizes), num_sources=num_sources)


def _below(folder: Path) -> Iterator[CheckedFile]:
    """All targets below `folder`, by name; does not follow links."""
    run = RunPaths(folder)
    if run.schedule.is_file():
        yield CheckedFile(run.schedule, "schedule")
    if run.ledger.is_file() or _has_trained(run):
        yield CheckedFile(run.ledger, "ledger")
    for child in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        if is_set_aside(child):
            yield CheckedFile(child, "set aside")
        elif is_unfinished(child):
            yield CheckedFile(child, "unfinished")
        elif folder.name == DATASETS and child.name != CACHE_NAME:
            yield CheckedFile(child, "dataset")
            yield from (source for source in _sources(child) if source.path.parent.resolve() != folder.resolve())
        elif is_checkpoint_name(child.name):
            yield CheckedFile(child, "checkpoint")
        elif (child / MANIFEST_NAME).is_file():
            yield CheckedFile(child, "dataset" if _is_dataset(child) else "checkpoint")
        else:
            yield from _below(child)


def _has_trained(run: RunPaths) -> bool:
    """Whether a run has trained. Such a run must have a ledger."""
    return any(stage.metrics.exists() for _, _, stage in run.stages_found())


def _is_dataset(directory: Path) -> bool:
    has_tokens = any((directory / split).is_dir() for split in SPLITS)
    return directory.parent.name == DATASETS or has_tokens or bool(_entries(directory))


def _sources(dataset: Path) -> list[CheckedFile]:
    """The datasets of a mixture that are there. Checking the mixture reports the others."""
    paths = (entry.dataset(dataset) for entry in _entries(dataset))
    return [CheckedFile(path, "dataset") for path in paths if (path / MANIFEST_NAME).is_file()]


def _entries(directory: Path) -> tuple[MixtureEntry, ...]:
    """The sources of the mixture in `directory`; empty if it is none."""
    try:
        return read_dataset_manifest(directory).sources
    except DataError:
        return ()


def section(comparison: Comparison) -> Section:
    """A comparison for people."""
    has_shares = comparison.new_score_shares is not None
    title = "residual stream after each block" + ("; share of the score mass on new tokens" if has_shares else "")
    promise = "; NEW breaks its policy's promise" if comparison.breaks_promise else ""
    share, limit = f"{comparison.relative_difference:.1e}", f"{comparison.tolerance:.0e}"
    verdict = (
        f"{comparison.verdict}: the largest difference is {share} of the largest logit, the limit in "
        f"{comparison.dtype} is {limit}{promise}"
    )
    parts = (Facts(_facts(comparison)), Paragraph(title, "heading"), _layers(comparison), Paragraph(verdict, "strong"))
    return Section("comparison", "", parts)


def _facts(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    old, new = comparison.old, comparison.new
    logits = f"differ by at most {comparison.largest_difference:.1e}, {comparison.mean_difference:.1e} on average"
    by_source = zip((old.by_source or {}).items(), (new.by_source or {}).values(), strict=True)
    text = f"{comparison.num_sequences} x {counted(comparison.context, 'token')} of {comparison.dataset.name}"
    return (
        ("OLD", f"{old.path} ({short_count(old.num_parameters)} parameters)"),
        ("NEW", f"{new.path} ({short_count(new.num_parameters)} parameters)"),
        ("lineage", _descent_words(comparison.lineage)),
        ("text", text),
        ("logits", f"{logits}; OLD's largest is {comparison.largest_logit:.3g}"),
        ("loss", f"{old.loss:.5f} -> {new.loss:.5f} nats per token, a jump of {comparison.jump:+.1e}"),
        *((f"loss on {name}", f"{before:.5f} -> {after:.5f}") for (name, before), after in by_source),
        *_gradient_rows(comparison),
    )


def _descent_words(descent: Descent) -> str:
    shared = f"{descent.num_shared_files} of OLD's {descent.num_old_files} files are in NEW"
    if descent.operation is None:
        return f"NEW does not name OLD as its parent; {shared}"
    made = {"train": "trained", "expand": "expanded", "shrink": "shrunk", "import": "imported"}[descent.operation]
    if descent.growth is None:
        return f"NEW was {made} from OLD; {shared}"
    promise = "preserves" if descent.growth.preserves else "may change"
    return f"NEW was {made} from OLD, which {promise} the function; {growth_words(descent.growth)}; {shared}"


def _gradient_rows(comparison: Comparison) -> list[tuple[str, str]]:
    words = [_gradient_words(counts) for counts in comparison.gradients or ()]
    if not words:
        return []
    labels = ["no gradient", *[""] * (len(words) - 1)]
    if comparison.gradient_ramp is not None:
        words[-1] += f" (with ramps raised from 0 to {comparison.gradient_ramp:g}: at 0 there is no gradient)"
    return list(zip(labels, words, strict=True))


def _gradient_words(counts: GenerationGradients) -> str:
    words = f"generation {counts.generation}: {counts.without_gradient:,} of {counted(counts.num_tokens, 'token')}"
    if not counts.waiting:
        return words
    which = "all" if counts.waiting == counts.without_gradient else f"{counts.waiting:,}"
    return f"{words}, {which} of them in new layers, as expected: from the second step on they have one"


def _layers(comparison: Comparison) -> Table:
    """One row per layer, then the means of the shares over all layers of NEW. A layer that moved has two positions."""
    old, new, shares = comparison.old.block_rms, comparison.new.block_rms, comparison.new_score_shares
    moved = any(None not in (layer.old, layer.new) and layer.old != layer.new for layer in comparison.layers)
    names = PATTENTIONS if shares else ()
    rows = []
    for layer in comparison.layers:
        positions = [layer.old, layer.new] if moved else [layer.old if layer.new is None else layer.new]
        rms = (None if layer.old is None else old[layer.old], None if layer.new is None else new[layer.new])
        share = shares[layer.new] if shares and layer.new is not None else {}
        figures = [*(figure(value, "{:.5g}") for value in rms), *(figure(share.get(name), "{:.1%}") for name in names)]
        rows.append([*(figure(place, str) for place in positions), *figures])
    if shares:
        means = [sum(share[name] for share in shares) / len(shares) for name in names]
        rows.append([Cell("mean"), *[Cell("")] * (moved + 2), *(figure(mean, "{:.1%}") for mean in means)])
    headings = [*(["layer OLD", "layer NEW"] if moved else ["layer"]), "RMS OLD", "RMS NEW", *names]
    return Table.of("layers", [Column(heading, is_number=number > 0) for number, heading in enumerate(headings)], rows)
