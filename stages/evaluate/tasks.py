"""Runs benchmark tasks through lm-evaluation-harness. Imports lm_eval, which is installed with the extra `eval`."""

import contextlib
import difflib
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lm_eval.api.model import LM
from lm_eval.defaults import DEFAULT_OTHER_SEED
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from model.errors import UserError
from stages.data.errors import reason
from stages.evaluate.results import TaskScore

BOOTSTRAP_ITERATIONS = 1000
"""Samples for the standard error of metrics without a formula, such as the perplexity of LAMBADA."""

OFFLINE = (
    "Without a network: run the same command once where there is one, copy its cache (HF_HOME, by default "
    "~/.cache/huggingface) to this machine, and set HF_HUB_OFFLINE=1"
)


def find_tasks(names: Sequence[str], include_path: Path | None) -> tuple[TaskManager, list[str]]:
    """The tasks, groups and tags that `names` are or match, and the manager that knows them.

    The tasks in `include_path` are enough if they have all of `names`; otherwise lm_eval's own are added. Raises
    UserError if one is unknown: it names the nearest known tasks, or a YAML file in `include_path` that is broken.
    """
    if include_path is not None and not include_path.is_dir():
        raise UserError(f"--include-path {include_path}: there is no such folder")
    for include_defaults in (False, True) if include_path else (True,):
        manager = TaskManager(include_path=include_path, include_defaults=include_defaults)
        matches = {name: manager.match_tasks([name]) for name in names}
        if all(matches.values()):
            return manager, list(dict.fromkeys(match for some in matches.values() for match in some))
    for path in sorted(include_path.rglob("*.yaml")) if include_path else ():
        try:
            load_yaml(path, resolve_func=False)  # lm_eval skips files that it cannot parse
        except Exception as error:  # of the YAML library, or of a file that it includes
            raise UserError(f"--include-path {include_path}: {path.name} cannot be read ({_words(error)})") from error
    unknown = next(name for name, some in matches.items() if not some)
    nearest = ", ".join(difflib.get_close_matches(unknown, manager.all_tasks))
    near = f"; did you mean {nearest}?" if nearest else ""
    raise UserError(f"--tasks {unknown}: lm_eval {version('lm_eval')} has no such task{near}")


def run_tasks(
    lm: LM, manager: TaskManager, names: list[str], limit: int | None
) -> tuple[tuple[TaskScore, ...], dict[str, Any]]:
    """The scores of `lm` on the tasks `names`, on the first `limit` examples of each (None: all), and all that lm_eval
    reports.

    Raises UserError if a task or its data cannot be loaded.
    """
    with _on_standard_error():
        try:
            tasks = manager.load(names)
        except Exception as error:  # of datasets, of the hub's client, or of a task's own code
            way_out = f". {OFFLINE}" if _needs_network(error) else ""
            raise UserError(f"--tasks {','.join(names)} cannot be loaded ({_words(error)}){way_out}") from error
        for task in tasks["tasks"].values():  # the defaults of lm_eval's own command
            if task.get_config("num_fewshot") is None:
                task.set_config(key="num_fewshot", value=0)
            task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
        report = evaluate(lm, tasks, limit=limit, bootstrap_iters=BOOTSTRAP_ITERATIONS, log_samples=False)
    assert report is not None  # only ranks other than the first get None
    return tuple(_scores(report)), dict(report)


def _words(error: Exception) -> str:
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


def _scores(report: Any) -> Iterator[TaskScore]:
    for task, values in report["results"].items():
        for key, value in values.items():
            metric, comma, filter_name = key.partition(",")
            if comma and not metric.endswith("_stderr") and isinstance(value, int | float):
                yield TaskScore(
                    task=task,
                    metric=metric,
                    filter=filter_name,
                    value=_finite(value),
                    standard_error=_finite(values.get(f"{metric}_stderr,{filter_name}")),
                    num_samples=report.get("n-samples", {}).get(task, {}).get("effective"),
                    num_shots=report.get("n-shot", {}).get(task),
                    version=str(report.get("versions", {}).get(task, "")),
                )


def _finite(value: Any) -> float | None:
    """`value` as a number; None for `N/A`, infinity and NaN."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


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
