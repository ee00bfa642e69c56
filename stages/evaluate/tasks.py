"""Runs benchmark tasks through lm-evaluation-harness. Imports lm_eval, which is installed with the extra `eval`."""

import contextlib
import difflib
import fnmatch
import logging
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from lm_eval.api.model import LM
from lm_eval.defaults import DEFAULT_OTHER_SEED
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from model.errors import UserError
from stages.counted import plural
from stages.data.errors import reason

BOOTSTRAP_ITERATIONS = 1000
"""Samples for the standard error of metrics without a formula, such as the perplexity of LAMBADA."""

NEAREST = 3

OFFLINE = (
    "Without a network: run the same command once where there is one, copy its cache (HF_HOME, by default "
    "~/.cache/huggingface) to this machine, and set HF_HUB_OFFLINE=1"
)


class TaskScore(NamedTuple):
    """One metric of one task."""

    task: str
    metric: str
    """As lm_eval names it: `acc`, `acc_norm`, `perplexity`, `word_perplexity`, ..."""

    filter: str
    """How answers were extracted; `none` for tasks that compare probabilities."""

    value: float
    standard_error: float | None
    num_samples: int | None
    """Examples evaluated; None for a group of tasks."""

    num_shots: int | None
    """Solved examples in the prompt."""

    version: str
    """The version of the task in lm_eval."""


class TaskResults(NamedTuple):
    """The scores of all tasks of a command."""

    scores: tuple[TaskScore, ...]
    lm_eval: str
    """The version of lm-evaluation-harness."""

    document: dict[str, Any]
    """Everything that lm_eval reports."""


def find_tasks(names: Sequence[str], include_path: Path | None) -> tuple[TaskManager, list[str]]:
    """The tasks, groups and tags that `names` are or match, and the manager that knows them.

    The tasks in `include_path` are enough if they have all of `names`; otherwise lm_eval's own are added. Raises
    UserError if one is unknown: it names the nearest known tasks, or a YAML file in `include_path` that is broken.
    """
    if include_path is not None and not include_path.is_dir():
        raise UserError(f"--include-path {include_path}: there is no such folder")
    for include_defaults in (False, True) if include_path else (True,):
        manager = TaskManager(include_path=include_path, include_defaults=include_defaults)
        found, unknown = _matched(names, manager.all_tasks)
        if not unknown:
            return manager, found
    if include_path is not None:
        _require_readable(include_path)
    nearest = difflib.get_close_matches(unknown[0], manager.all_tasks, n=NEAREST)
    near = f"; the nearest {plural(len(nearest), 'is', 'are')} {', '.join(nearest)}" if nearest else ""
    raise UserError(f"--tasks {unknown[0]}: lm_eval {version('lm_eval')} has no such task{near}")


def _require_readable(folder: Path) -> None:
    """Raises UserError if lm_eval skips a YAML file in `folder` because it cannot parse it."""
    for path in sorted(folder.rglob("*.yaml")):
        try:
            load_yaml(path, resolve_func=False)
        except Exception as error:  # of the YAML library, or of a file that it includes
            raise UserError(f"--include-path {folder}: {path.name} cannot be read ({_said(error)})") from error


def _matched(names: Sequence[str], known: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names that `names` are or match, with `*` for any text, and those of `names` that match nothing."""
    matches = {name: [name] if name in known else sorted(_glob(name, known)) for name in names}
    found = dict.fromkeys(match for some in matches.values() for match in some)
    return list(found), [name for name, some in matches.items() if not some]


def _glob(pattern: str, known: Sequence[str]) -> list[str]:
    return fnmatch.filter(known, pattern) if "*" in pattern else []


def run_tasks(lm: LM, manager: TaskManager, names: list[str], limit: int | None) -> TaskResults:
    """The scores of `lm` on the tasks `names`, on the first `limit` examples of each (None: all).

    Raises UserError if a task or its data cannot be loaded.
    """
    with _on_standard_error():
        try:
            tasks = manager.load(names)
        except Exception as error:  # of datasets, of the hub's client, or of a task's own code
            way_out = f". {OFFLINE}" if _needs_network(error) else ""
            raise UserError(f"--tasks {','.join(names)} cannot be loaded ({_said(error)}){way_out}") from error
        for task in tasks["tasks"].values():  # the defaults of lm_eval's own command
            if task.get_config("num_fewshot") is None:
                task.set_config(key="num_fewshot", value=0)
            task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
        document = evaluate(lm, tasks, limit=limit, bootstrap_iters=BOOTSTRAP_ITERATIONS, log_samples=False)
    assert document is not None  # only ranks other than the first get None
    return TaskResults(tuple(_scores(document)), version("lm_eval"), dict(document))


def _said(error: Exception) -> str:
    """What an error says; its class too if that is a word or two, such as a missing key."""
    text = reason(error)
    return text if " " in text else f"{type(error).__name__}: {text}"


def _needs_network(error: BaseException | None) -> bool:
    """Whether `error`, or what it came from, is about a connection. Each library has its own classes for that."""
    while error is not None:
        names = {base.__name__ for base in type(error).__mro__}
        if names & {"ConnectionError", "ConnectError", "TimeoutError", "TimeoutException", "OfflineModeIsEnabled"}:
            return True
        error = error.__cause__ or error.__context__
    return False


def _scores(document: Any) -> Iterator[TaskScore]:
    for task, values in document["results"].items():
        samples = document.get("n-samples", {}).get(task, {}).get("effective")
        for key, value in values.items():
            metric, comma, filter_name = key.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            error = values.get(f"{metric}_stderr,{filter_name}")
            yield TaskScore(
                task,
                metric,
                filter_name,
                float(value),
                float(error) if isinstance(error, int | float) else None,
                samples,
                document.get("n-shot", {}).get(task),
                str(document.get("versions", {}).get(task, "")),
            )


@contextlib.contextmanager
def _on_standard_error() -> Iterator[None]:
    """Keeps standard output free of what lm_eval and its tasks print, and silences their information."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        logger.setLevel(level)
