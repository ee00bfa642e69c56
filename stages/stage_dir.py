"""Defines the file names in a stage's directory, and the names of unfinished directories.

Imports nothing of growctl's, and no torch.
"""

from pathlib import Path

MANIFEST_NAME = "manifest.json"
"""The manifest of a checkpoint or dataset. It is written last, so a directory that has it is complete."""

TOKENIZER_NAME = "tokenizer.json"
"""The tokenizer of a dataset or of a checkpoint that was trained on one."""

WRITING_MARK = ".writing"
"""The file in a hidden directory that names the process that is writing it (stages/checkpoint/staging.py)."""

MIXTURE_PREFIX = "mixture-"
"""How the name of a mixture of datasets begins."""

_STEP = "step_"
_CONVERTED = "converted_"
_SET_ASIDE = "broken-"
_INCOMPLETE = ".incomplete"
_REMOVED = ".removed"


class StagePaths:
    """The paths of everything in a stage's directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.initial = directory / "initial"
        """The checkpoint that the stage starts from, expanded if it grows. The first stage of a new model has none."""
        self.converted_start = directory / "start"
        """An engine checkpoint that the run starts from, converted; removed once it is expanded to `initial/`."""
        self.final = directory / "final"
        """The stage's result."""

        # Files that runner and workers exchange, and files for people to read.
        self.spec = directory / "spec.json"
        """The TrainSpec of the last attempt's workers."""
        self.metrics = directory / "metrics.jsonl"
        """The events that the workers report (stages/metrics.py)."""
        self.samples = directory / "samples.json"
        """The texts that the finished stage's model wrote (stages/generate/text_samples.py)."""
        self.scores = directory / "scores.jsonl"
        """What `growctl eval` found on the stage's checkpoints (growctl/ledger/lines.py)."""
        self.log = directory / "log.txt"
        """The output of the workers."""
        self.stacks = directory / "stacks"
        """The directory of stack traces, one file per rank, that show where a rank hangs."""
        self.hostfile = directory / "hostfile"
        """The hosts of this stage, for DeepSpeed's runner."""
        self.environment = directory / "environment.json"
        """The environment of the workers on other machines."""

    @property
    def release(self) -> "StagePaths":
        """The stage's release: a branch that starts from `final/`, with all the files of a stage."""
        return StagePaths(self.directory / "release")

    def step(self, step: int) -> Path:
        """The engine checkpoint after `step` steps."""
        return self.directory / f"{_STEP}{step:08d}"

    def checkpoints(self) -> dict[int, Path]:
        """All engine checkpoints by step, oldest first, complete or not."""
        by_step = {path.name.removeprefix(_STEP): path for path in self.directory.glob(f"{_STEP}*") if path.is_dir()}
        return dict(sorted((int(step), path) for step, path in by_step.items() if step.isdecimal()))

    def named_as_checkpoints(self) -> list[Path]:
        """Everything with the name of an engine checkpoint, newest first. Any of it may be broken."""
        return sorted(self.directory.glob(f"{_STEP}*"), reverse=True)

    def conversions(self) -> list[Path]:
        """The engine checkpoints that were converted for another number of ranks, newest first."""
        return sorted(self.directory.glob(f"{_CONVERTED}*"), reverse=True)

    def leftovers(self) -> list[Path]:
        """What a process of the run was writing or removing when it died."""
        steps, conversions = Path(f"{_STEP}*"), Path(f"{_CONVERTED}*")
        written = (steps, conversions, self.initial, self.converted_start, self.final)
        unfinished = (removal_directory(steps), *map(staging_directory, written))
        return [path for pattern in unfinished for path in self.directory.glob(pattern.name)]

    def manifests(self) -> list[Path]:
        """The manifest files of everything in the directory, sorted by name."""
        return sorted(self.directory.glob(f"*/{MANIFEST_NAME}"))

    def stack_file(self, attempt: int, rank: int) -> Path:
        """The file for the stack traces of a rank."""
        return self.stacks / f"attempt-{attempt}-rank-{rank}.txt"

    def stack_files(self, attempt: int) -> dict[int, Path]:
        """The existing stack files of an attempt, by rank."""
        return {int(path.stem.rpartition("-")[2]): path for path in self.stacks.glob(f"attempt-{attempt}-rank-*.txt")}

    def lifeline(self, attempt: int) -> Path:
        """The file that keeps an attempt's workers on other machines alive (stages/process/lifeline.py)."""
        return self.directory / f".lifeline.{attempt}"


def is_checkpoint_name(name: str) -> bool:
    """Whether a stage stores a checkpoint under this name."""
    stage = StagePaths(Path())
    return name in (stage.initial.name, stage.final.name) or name.startswith((_STEP, _CONVERTED))


def converted_directory(checkpoint: Path) -> Path:
    """The directory `converted_N` beside `step_N`, for its conversion to other ranks or another ZeRO stage."""
    return checkpoint.with_name(checkpoint.name.replace(_STEP, _CONVERTED, 1))


def staging_directory(directory: Path) -> Path:
    """The temporary sibling in which `directory` is written until it is complete."""
    return directory.with_name(f".{directory.name}{_INCOMPLETE}")


def removal_directory(directory: Path) -> Path:
    """The hidden sibling to which `directory` is renamed before its files are removed."""
    return directory.with_name(f".{directory.name}{_REMOVED}")


def broken_directory(directory: Path, number: int) -> Path:
    """The sibling to which a broken `directory` is renamed: `broken-<name>`, then `broken-<name>-2` and so on."""
    return directory.with_name(f"{_SET_ASIDE}{directory.name}" + (f"-{number}" if number > 1 else ""))


def preparation_lock(directory: Path) -> Path:
    """The hidden sibling that a process locks while it prepares the dataset `directory`."""
    return directory.with_name(f".{directory.name}.lock")


def is_set_aside(path: Path) -> bool:
    """Whether `path` has the name of a directory that was set aside because it was broken."""
    return path.name.startswith(_SET_ASIDE)


def is_unfinished(path: Path) -> bool:
    """Whether `path` has the name of a directory that was being written or removed when its process died."""
    return path.name.startswith(".") and (_INCOMPLETE in path.name or path.name.endswith(_REMOVED))
