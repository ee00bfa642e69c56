"""Loads a growth schedule from a YAML file and overrides.

Its schema is in growctl/schedule/blocks.py.

hydra composes the files, OmegaConf resolves references, and pydantic validates. One message lists all unknown keys,
wrong types and bad combinations before any work starts.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from growctl.ladder.checks import check_combinations
from growctl.ladder.controls import plan_controls
from growctl.ladder.datasets import DatasetSizes, exhausted, known_sizes
from growctl.runs_dir import NAME_ALLOWED, RUN_NAME, RunPaths, RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.schedule.data_block import DataBlock
from growctl.schedule.errors import ScheduleError, describe, problem_line, several
from growctl.schedule.files import fill_in_corpora, find_schedule
from growctl.schedule.sources import given_vocabulary, missing_data
from growctl.schedule.start_block import StartBlock, describe_start
from model.errors import UserError
from stages.corpus.prepared import prepared_datasets
from stages.data.dataset import DatasetPart, dataset_parts
from stages.data.errors import DataError


def load_schedule(
    reference: str, overrides: Sequence[str] = (), *, runs_dir: Path = Path("runs"), run: str | None = None
) -> Schedule:
    """Loads the schedule at a path or with a shipped name, and applies hydra overrides (`stages.0.train_tokens=200k`).

    Fills in the schedule's name, and what growctl must know of its start checkpoint and its dataset. The run called
    `run`, by default as the schedule is, keeps what it has begun with. Relative paths become absolute. Raises
    ScheduleError with everything that is wrong with the schedule or its controls.
    """
    from growctl.schedule.compose import composed

    path = find_schedule(reference, runs_dir)
    name = _folder_name(path, runs_dir) if run is None else None
    data = composed(path, [f'name="{name}"', *overrides] if name else overrides, reference)
    begun = _begun(RunsPaths(runs_dir).run(str(run or data.get("name") or path.stem)))
    with _naming(reference):
        fill_in_corpora(data, path.parent)
        _fill_in_base(data, runs_dir, begun)
        _fill_in_vocabulary(data, runs_dir, begun)
    schedule = parse_schedule(data, label=reference, default_name=path.stem)
    with _naming(reference):
        schedule = _with_attended_tokens(schedule, runs_dir, begun)
    if lines := list(_invalid_controls(schedule)):
        raise ScheduleError(f"{reference}: {several(lines)}")
    return schedule


def _invalid_controls(schedule: Schedule) -> Iterator[str]:
    """A line per control whose generated schedule is invalid. A run that has such a control stays readable."""
    for index, block in enumerate(schedule.controls):
        try:
            controls = plan_controls(schedule.model_copy(update={"controls": [block]}))
            reasons = [reason for control in controls for reason in check_combinations(control.schedule)]
        except UserError as error:
            reasons = [str(error)]
        if reasons:
            allowed = f"cannot be run for this ladder, leave it out: {reasons[0]}"
            yield problem_line(["controls", index, "kind"], block.kind, allowed)


def _folder_name(path: Path, runs_dir: Path) -> str | None:
    """The name of a run whose own schedule is at `path`: its folder's, which may have been renamed or copied since."""
    folder = path.absolute().parent
    run = RunPaths(folder)
    is_run = run.ledger.exists() or run.run_id.exists() or folder.parent == runs_dir.absolute()
    if path.name != run.schedule.name or not is_run:
        return None
    if error := folder_name_error(folder):
        raise ScheduleError(error)
    return folder.name


def folder_name_error(folder: Path) -> str | None:
    """Why the `folder` of a run cannot name the run; None if it can."""
    name = folder.absolute().name
    if RUN_NAME.fullmatch(name):
        return None
    return f"{folder}: a run is named as its folder, and {name!r} is not allowed: {NAME_ALLOWED}; rename it"


def _begun(run: RunPaths) -> Schedule | None:
    """The schedule that `run` has begun with. It keeps what the schedule says of its start checkpoint and dataset."""
    with suppress(UserError, OSError):  # the runner reports a schedule that cannot be read
        if run.has_begun() and run.schedule.is_file():
            return load_resolved(run.schedule)
    return None


def _fill_in_base(data: dict[str, Any], runs_dir: Path, begun: Schedule | None) -> None:
    """Adds `start.base` if there is a `start`; leaves an invalid block to the schema.

    Raises UserError if there is no such checkpoint.
    """
    if not isinstance(block := data.get("start"), dict):
        return
    block.pop("base", None)
    with suppress(ValidationError):
        start, own = StartBlock.model_validate(block), begun and begun.start
        same = own and (own.checkpoint, own.run, own.stage) == (start.checkpoint, start.run, start.stage)
        base = own.base if own and same else None
        block["base"] = (base or describe_start(start, runs_dir)).model_dump(mode="json")


def _fill_in_vocabulary(data: dict[str, Any], runs_dir: Path, begun: Schedule | None) -> None:
    """Adds `data.tokenizer_vocab_size` if the sources are prepared datasets; leaves an invalid block to the schema.

    Raises DataError for a key that is not as a dataset was made.
    """
    if not isinstance(block := data.get("data"), dict):
        return
    block.pop("tokenizer_vocab_size", None)
    with suppress(ValidationError):
        texts = DataBlock.model_validate(block)
        if texts.source or texts.mixture:
            entries = given_vocabulary(texts, RunsPaths(runs_dir).datasets)
            if begun and [spec.source for spec in begun.data.specs] == [spec.source for spec in texts.specs]:
                entries = begun.data.tokenizer_vocab_size or entries
            block |= {"tokenizer_vocab_size": entries} if entries else {}


def _with_attended_tokens(schedule: Schedule, runs_dir: Path, begun: Schedule | None) -> Schedule:
    """`schedule` with `data.attended_tokens` from its prepared dataset; None without one, or without a document mask.

    Raises DataError if the end of text does not tell apart the documents of that dataset. A run that has begun keeps
    its numbers, because the budgets of its controls follow from them.
    """
    data, tokens = schedule.data, None
    if data.document_mask:
        tokens = begun and begun.data.attended_tokens
        found = [next(prepared_datasets(spec, RunsPaths(runs_dir).datasets), None) for spec in data.specs]
        weights = data.base_weights.values() or [1.0]
        parts = [DatasetPart(None, *each, weight) for each, weight in zip(found, weights, strict=True) if each]
        if not tokens and len(parts) == len(found):
            tokens = _attended_tokens(schedule, parts, packed=False)
    return _with_data(schedule, attended_tokens=tokens)


def counted_on(schedule: Schedule, dataset: Path) -> Schedule:
    """`schedule` with the `data.attended_tokens` of `dataset`.

    Raises DataError if that is damaged, or if the end of text does not tell apart its documents.
    """
    return _with_data(schedule, attended_tokens=_attended_tokens(schedule, dataset_parts(dataset), packed=True))


def _attended_tokens(schedule: Schedule, parts: Sequence[DatasetPart], packed: bool) -> dict[str, float] | None:
    """The tokens attended to by context, in the text or the sources of the mixture.

    Unless they must be `packed`, None if they are not or are damaged: `prepare` sets those aside with a message.
    """
    from stages.data.documents import misplaced_ends
    from stages.data.packing import attended_tokens, known_packing

    lengths, packing = schedule.contexts, schedule.data.packing
    misplaced = tokens = None
    with nullcontext() if packed else suppress(UserError, OSError):
        misplaced = misplaced_ends(parts)
        known = (known_packing(part.directory, length) for part in parts for length in lengths)
        if packed or packing == "concatenate" or all(known):
            tokens = {str(length): attended_tokens(parts, length, packing) for length in lengths}
    if misplaced:
        raise DataError(
            f"data.document_mask = true: {misplaced}; the model tells documents apart by that token alone, so each "
            "must end in it and contain no other. Write the documents in that way and prepare or import them again "
            "(Megatron-LM: --append-eod), or set data.document_mask to false"
        )
    return tokens


def _with_data(schedule: Schedule, **changes: Any) -> Schedule:
    return schedule.model_copy(update={"data": schedule.data.model_copy(update=changes)})


def check_text(schedule: Schedule, label: str, runs_dir: Path) -> DatasetSizes:
    """What is known of the datasets' sizes. Raises ScheduleError for a local text or tokenizer that is missing, or that
    `prepare` would reject. Messages call the schedule `label`.

    A dataset in `runs_dir` that was prepared with the same settings is enough. Also raises it if the sources of a
    mixture are prepared and do not last for the schedule.
    """
    if missing := missing_data(schedule.data, RunsPaths(runs_dir).datasets):
        raise ScheduleError(f"{label}: {missing}")
    sizes = known_sizes(schedule, runs_dir)
    if sizes.is_prepared and (used_up := exhausted(schedule, sizes.sources, with_controls=True)):
        raise ScheduleError(f"{label}: {used_up}")
    if sizes.problem:
        raise ScheduleError(f"{label}: {sizes.problem}")
    return sizes


def load_resolved(path: Path) -> Schedule:
    """Loads the schedule that a run stores in the file `path`, with every default written out.

    The run's name is that of its folder, which may have been renamed or copied since. Raises ScheduleError if the
    schedule is invalid, OSError if it cannot be read.
    """
    from stages.plain_yaml import read_yaml  # slow: omegaconf

    with _naming(str(path)):
        data = read_yaml(path)
    folder = path.absolute().parent.name
    schedule = parse_schedule(data, label=str(path), default_name=folder)
    return schedule.model_copy(update={"name": folder}) if RUN_NAME.fullmatch(folder) else schedule


def parse_schedule(data: Any, *, label: str, default_name: str) -> Schedule:
    """Validates plain data, which messages call `label`. Raises ScheduleError with everything that is wrong with it."""
    if not isinstance(data, dict) or not data.keys() & Schedule.model_fields.keys():
        raise ScheduleError(f"{label}: is not a schedule; a schedule has the keys {', '.join(Schedule.model_fields)}")
    try:
        schedule = Schedule.model_validate(data)
        lines = check_combinations(schedule)
    except ValidationError as error:
        lines = describe(error, Schedule)
    if lines:
        raise ScheduleError(f"{label}: {several(lines)}")
    if schedule.name is None:
        if not RUN_NAME.fullmatch(default_name):
            raise ScheduleError(
                f"{label}: name: is missing, and the file's name {default_name!r} is not allowed: {NAME_ALLOWED}"
            )
        schedule = schedule.model_copy(update={"name": default_name})
    return schedule


@contextmanager
def _naming(label: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise ScheduleError(f"{label}: {error}") from error
