"""What `growctl verify` finds: what is damaged below a path, and how two checkpoints differ as functions."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from growctl.ledger.ledger import Ledger
from growctl.runs.directory import own_schedule
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.text.formatting import growth_words, short_count
from growctl.text.section import Facts, Paragraph, Section
from model.errors import UserError
from stages.checkpoint.files import OnBytes
from stages.checkpoint.manifest import verify_checkpoint
from stages.counted import counted
from stages.data.remote import CACHE_NAME
from stages.data.spec import SPLITS
from stages.grow.comparison import Comparison, Descent
from stages.images.either import holds_images, verify_any_dataset
from stages.stage_dir import MANIFEST_NAME, MIXTURE_PREFIX, is_checkpoint_name, is_set_aside, is_unfinished

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
    num_files: int = 0
    """Files whose hashes were checked; a mixture's are those of its sources."""
    bytes: int = 0
    """Their size."""

    def line(self) -> str:
        """The result as a line for the screen."""
        if self.whole is None:
            why = "broken, and moved here" if self.kind == "set aside" else "never finished"
            return f"{self.path}: {self.kind} ({why}), not checked"
        if not self.whole:
            return str(self.problem)
        read = f"{counted(self.num_files, 'file')}, {counted(self.bytes, 'byte')}"
        return f"{self.path}: OK, {read if self.num_files else self.kind}"


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
        return [CheckedFile(path, _kind(path))]
    if found := list(_below(path)):
        return found
    raise UserError(
        f"{path} holds no checkpoint, dataset, ledger or run: there is no {MANIFEST_NAME} or {LEDGER} in or below it"
    )


def check(target: CheckedFile, on_bytes: OnBytes = lambda num_bytes: None) -> CheckedFile:
    """Reads all of `target` and checks its hashes; calls `on_bytes` with the bytes as they are read."""
    path, sizes = target.path, list[int]()

    def read(num_bytes: int) -> None:
        sizes.append(num_bytes)
        on_bytes(num_bytes)

    try:
        if target.kind == "checkpoint":
            verify_checkpoint(path, on_bytes=read)
        elif target.kind == "dataset":
            verify_any_dataset(path, on_bytes=read)
        elif target.kind == "ledger":
            Ledger(path, read_only=True).close()
        elif target.kind == "schedule":
            own_schedule(path)
        else:
            return target
    except (UserError, OSError) as error:
        return replace(target, whole=False, problem=str(error) if str(path) in str(error) else f"{path}: {error}")
    return replace(target, whole=True, num_files=len(sizes), bytes=sum(sizes))


def _below(folder: Path) -> Iterator[CheckedFile]:
    """All targets below `folder`, by name; does not follow links."""
    run = RunPaths(folder)
    if run.schedule.is_file():
        yield CheckedFile(run.schedule, "schedule")
    if run.ledger.is_file() or any(stage.metrics.exists() for _, _, stage in run.stages_found()):
        yield CheckedFile(run.ledger, "ledger")
    for child in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
        if is_set_aside(child):
            yield CheckedFile(child, "set aside")
        elif is_unfinished(child):
            yield CheckedFile(child, "unfinished")
        elif folder.name == DATASETS and child.name != CACHE_NAME:
            yield CheckedFile(child, "dataset")
        elif is_checkpoint_name(child.name):
            yield CheckedFile(child, "checkpoint")
        elif (child / MANIFEST_NAME).is_file():
            yield CheckedFile(child, _kind(child))
        else:
            yield from _below(child)


def _kind(directory: Path) -> Literal["checkpoint", "dataset"]:
    has_samples = any((directory / split).is_dir() for split in SPLITS) or holds_images(directory)
    is_dataset = directory.parent.name == DATASETS or has_samples or directory.name.startswith(MIXTURE_PREFIX)
    return "dataset" if is_dataset else "checkpoint"


def section(comparison: Comparison) -> Section:
    """A comparison for people."""
    promise = "; NEW breaks its policy's promise" if comparison.breaks_promise else ""
    share, limit = f"{comparison.relative_difference:.1e}", f"{comparison.tolerance:.0e}"
    verdict = (
        f"{comparison.verdict}: the largest difference is {share} of the largest logit, the limit in "
        f"{comparison.dtype} is {limit}{promise}"
    )
    old, new, context = comparison.old, comparison.new, comparison.context
    kind, size = ("text", f" x {counted(context, 'token')}") if context else ("images", "")
    facts = (
        ("OLD", f"{old.path} ({short_count(old.num_parameters)} parameters)"),
        ("NEW", f"{new.path} ({short_count(new.num_parameters)} parameters)"),
        ("lineage", _descent_words(comparison.lineage)),
        (kind, f"{comparison.num_sequences}{size} of {comparison.dataset.name}"),
        ("loss", f"{old.loss:.5f} -> {new.loss:.5f} nats, a jump of {comparison.jump:+.1e}"),
    )
    return Section("comparison", "", (Facts(facts), Paragraph(verdict, "strong")))


def _descent_words(descent: Descent) -> str:
    shared = f"{descent.num_shared_files} of OLD's {descent.num_old_files} files are in NEW"
    if descent.operation is None:
        return f"NEW does not name OLD as its parent; {shared}"
    how = f" ({growth_words(descent.growth)})" if descent.growth else ""
    return f"NEW was made from OLD by {descent.operation}{how}; {shared}"
