"""Texts and figures that several trackers show: the schedule, and the report's table."""

import yaml

from growctl.trackers.protocol import TrackedRun

COLUMNS = (
    *("stage", "num_parameters", "train_tokens", "cumulative_flops", "device_seconds"),
    *("validation_loss", "perplexity", "bits_per_byte"),
)
"""The columns of stages.csv that a summary shows."""


def schedule_yaml(run: TrackedRun) -> str:
    """The resolved schedule."""
    return yaml.safe_dump(run.schedule, sort_keys=False, allow_unicode=True)


def markdown(table: list[dict[str, str]]) -> str:
    """The report's table in Markdown; empty without rows."""
    if not table:
        return ""
    rows = [COLUMNS, ["---"] * len(COLUMNS), *([row.get(name, "") for name in COLUMNS] for row in table)]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)


def figures(table: list[dict[str, str]]) -> dict[str, float]:
    """The numbers of the report's table, as `table/STAGE/COLUMN`."""
    found = {}
    for row in table:
        for name in COLUMNS[1:]:
            if text := row.get(name):
                found[f"table/{row['stage']}/{name}"] = float(text)
    return found
