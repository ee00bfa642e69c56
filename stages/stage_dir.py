"""Defines the file names in a stage's directory, and the names of unfinished directories.

Imports nothing of growctl's, and no torch.
"""

import re
from dataclasses import dataclass
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
_STACK_FILE = re.compile(r"attempt-(\d+)-rank-(\d+)\.txt")


@dataclass(frozen=True)
class StagePaths:
    """The paths of everything in a stage's directory."""

    directory: Path

    # Checkpoints.

    @property
    def initial(self) -> Path:
        """The checkpoint that the stage starts from, expanded if it grows. The first stage of a new model has none."""
        return self.directory / "initial"

    @property
    def converted_start(self) -> Path:
        """An engine checkpoint that the run starts from, converted; removed once it is expanded to `initial/`."""
        return self.directory / "start"

    @property
    def final(self) -> Path:
        """The stage's result."""
        return self.directory / "final"

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

    def unfinished_conversions(self) -> list[Path]:
        """Conversions that were interrupted because the process died."""
        return list(self.directory.glob(staging_directory(Path(f"{_CONVERTED}*")).name))

    def manifests(self) -> list[Path]:
        """The manifest files of everything in the directory, sorted by name."""
        return sorted(self.directory.glob(f"*/{MANIFEST_NAME}"))

    def checkpoint_names(self) -> list[str]:
        """The names of the complete checkpoints, sorted."""
        return [path.parent.name for path in self.manifests() if is_checkpoint_name(path.parent.name)]

    # Files that runner and workers exchange, and files for people to read.

    @property
    def spec(self) -> Path:
        """The TrainSpec of the last attempt's workers."""
        return self.directory / "spec.json"

    @property
    def metrics(self) -> Path:
        """The events that the workers report (stages/metrics.py)."""
        return self.directory / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        """The texts that the finished stage's model wrote (stages/generate/text_samples.py)."""
        return self.directory / "samples.json"

    @property
    def scores(self) -> Path:
        """What `growctl eval` found on the stage's checkpoints (growctl/ledger/lines.py)."""
        return self.directory / "scores.jsonl"

    @property
    def log(self) -> Path:
        """The output of the workers."""
        return self.directory / "log.txt"

    @property
    def stacks(self) -> Path:
        """The directory of stack traces, one file per rank, that show where a rank hangs."""
        return self.directory / "stacks"

    def stack_file(self, attempt: int, rank: int) -> Path:
        """The file for the stack traces of a rank."""
        return self.stacks / f"attempt-{attempt}-rank-{rank}.txt"

    def stack_files(self, attempt: int) -> dict[int, Path]:
        """The existing stack files of an attempt, by rank."""
        if not self.stacks.is_dir():
            return {}
        matches = [(_STACK_FILE.fullmatch(path.name), path) for path in self.stacks.iterdir()]
        return {int(match[2]): path for match, path in matches if match and int(match[1]) == attempt}

    def lifeline(self, attempt: int) -> Path:
        """The lifeline of an attempt: workers on other machines stop when the runner no longer keeps it alive."""
        return self.directory / f".lifeline.{attempt}"

    @property
    def hostfile(self) -> Path:
        """The hosts of this stage, for DeepSpeed's runner."""
        return self.directory / "hostfile"

    @property
    def environment(self) -> Path:
        """The environment of the workers on other machines."""
        return self.directory / "environment.json"


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
