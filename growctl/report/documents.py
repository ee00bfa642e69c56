"""Formats the report as JSON and as CSV."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from growctl.report.compare import Comparison, compare
from growctl.report.family import Family, compare_family, price
from growctl.report.read import RunReport
from growctl.report.validation import validation_warning
from growctl.report.verdict import verdict
from growctl.text.escaping import visible

_STAGE_KEYS = (
    *("name", "num_parameters", "train_tokens", "flops", "cumulative_flops", "wall_seconds", "validation_loss"),
    *("perplexity", "loss_before_growth", "loss_after_growth", "device_seconds", "replayed_flops"),
    *("replayed_device_seconds", "bits_per_byte", "finished", "reused_flops", "reused_from", "branch_of"),
)
_FORMULA = ("=", "+", "-", "@", "\t")
"""Characters that make a spreadsheet read a cell as a formula, or that it skips before one."""


def to_json(runs: Sequence[RunReport]) -> list[dict[str, Any]]:
    """`runs` as JSON values, in FLOPs, seconds and nats per token. Unknown and non-finite values are null.

    A stage's release follows it in `stages`, with the stage's name as `branch_of`.
    """
    documents = []
    for run in runs:
        document: dict[str, Any] = {"name": run.name, "schedule": run.schedule, "control": run.control}
        document["base"] = asdict(run.base) if run.base else None
        document["stages"] = [{key: _finite(getattr(stage, key)) for key in _STAGE_KEYS} for stage in run.parts]
        document["samples"] = [
            {"stage": stage.name} | sample.model_dump() for stage in run.parts for sample in stage.samples
        ]
        document["scores"] = [asdict(score) for stage in run.parts for score in stage.scores]
        document["anomalies"] = [
            {"stage": stage} | {key: _finite(value) for key, value in asdict(anomaly).items()}
            for stage, anomaly in run.anomalies
        ]
        document["notes"] = list(run.notes)
        known = run.validation_documents is not None
        sizes = {"num_documents": run.validation_documents, "num_tokens": run.validation_tokens}
        document["validation"] = sizes if known else None
        document["warnings"] = [warning for warning in [validation_warning(run)] if warning]
        if run.control is None:
            document["comparisons"] = [_comparison(comparison) for comparison in compare(run, runs)]
            document["family"] = _family(compare_family(run, runs))
        documents.append(document)
    return documents


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "control": comparison.control,
        "num_parameters": comparison.num_parameters,
        "control_runs": list(comparison.control_runs),
        "flops_to_equal_loss": comparison.flops_to_equal_loss,
        "saving": comparison.saving,
        "equal_flops": asdict(comparison.equal_flops) if comparison.equal_flops else None,
        "verdict": list(verdict(comparison)),
    }


def _family(family: Family | None) -> dict[str, Any] | None:
    if family is None:
        return None
    return {
        "flops": family.flops,
        "flops_from_scratch": family.flops_from_scratch,
        "saving": family.saving,
        "models": [{"stage": model.ladder.stages[-1].name} | _comparison(model) for model in family.models],
        "verdict": list(price(family)),
    }


def stages_csv(runs: Sequence[RunReport]) -> str:
    """A line for each stage of each run, in the units of `to_json`; unknown values are empty.

    `base_flops`, the cost of the run's start checkpoint, is part of `cumulative_flops`, and 0 without one.

    Text that a spreadsheet would read as a formula gets an apostrophe in front.
    """
    rows = [
        {"run": run["name"], "schedule": run["schedule"], "control": run["control"], "stage": stage.pop("name")}
        | stage
        | {"base_flops": run["base"]["flops"] if run["base"] else 0.0}
        for run in to_json(runs)
        for stage in run["stages"]
    ]
    buffer = io.StringIO()
    if rows:
        writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _no_formula(value) for key, value in row.items()} for row in rows)
    return buffer.getvalue()


def _no_formula(value: Any) -> Any:
    if isinstance(value, list):
        value = " ".join(value)
    if not isinstance(value, str):
        return value
    text = visible(value)  # a bare carriage return would start a new line
    return f"'{text}" if text.startswith(_FORMULA) else text


def _finite(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
