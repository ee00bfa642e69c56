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

from model.errors import UserError
from stages.data.errors import reason
from stages.evaluate.results import Score

BOOTSTRAP_ITERATIONS = 1000
"""Samples for the standard error of metrics without a formula, such as the perplexity of LAMBADA."""


def find_tasks(names: Sequence[str], include_path: Path | None) -> tuple[TaskManager, list[str]]:
    """The tasks, groups and tags that `names` are or match, and the manager that knows them.

    The tasks in `include_path` are enough if they have all of `names`; otherwise lm_eval's own are added. Raises
    UserError if one is unknown: it names the nearest known tasks.
    """
    if include_path is not None and not include_path.is_dir():
        raise UserError(f"--include-path {include_path}: there is no such folder")
    for include_defaults in (False, True) if include_path else (True,):
        manager = TaskManager(include_path=include_path, include_defaults=include_defaults)
        matches = {name: manager.match_tasks([name]) for name in names}
        if all(matches.values()):
            return manager, list(dict.fromkeys(match for some in matches.values() for match in some))
    unknown = next(name for name, some in matches.items() if not some)
    nearest = ", ".join(difflib.get_close_matches(unknown, manager.all_tasks))
    near = f"; did you mean {nearest}?" if nearest else ""
    raise UserError(f"--tasks {unknown}: lm_eval {version('lm_eval')} has no such task{near}")


def task_scores(lm: LM, manager: TaskManager, names: list[str], limit: int | None) -> Iterator[Score]:
    """Yields the scores of `lm` on the tasks `names`, on the first `limit` examples of each (None: all).

    Raises UserError if a task or its data cannot be loaded.
    """
    with _on_standard_error():
        try:
            tasks = manager.load(names)
        except Exception as error:  # of datasets, of the hub's client, or of a task's own code
            raise UserError(
                f"--tasks {','.join(names)} cannot be loaded ({type(error).__name__}: {reason(error)}). Without a "
                "network, copy the cache of a machine that ran the same command (HF_HOME), and set HF_HUB_OFFLINE=1"
            ) from error
        for task in tasks["tasks"].values():  # the defaults of lm_eval's own command
            if task.get_config("num_fewshot") is None:
                task.set_config(key="num_fewshot", value=0)
            task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
        report = evaluate(lm, tasks, limit=limit, bootstrap_iters=BOOTSTRAP_ITERATIONS, log_samples=False)
    yield from _scores(report)


def _scores(report: Any) -> Iterator[Score]:
    for task, values in report["results"].items():
        for key, value in values.items():
            metric, comma, filter_name = key.partition(",")
            if comma and not metric.endswith("_stderr") and isinstance(value, int | float):
                yield Score(
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
