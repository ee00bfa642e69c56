"""Weights & Biases: one W&B run per run, in the group of its ladder. Offline unless WANDB_MODE says otherwise."""

import os
from collections.abc import Mapping
from pathlib import Path

from growctl.trackers.protocol import Place, Status, TrackedRun
from growctl.trackers.tables import COLUMNS, figures
from growctl.whole_file import replace_file

os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import wandb  # after its variables

PROJECT = "growctl"
"""Unless WANDB_PROJECT names another one."""


class WeightsAndBiases:
    """A W&B run. Any value can be the x axis: step, tokens, flops."""

    def __init__(self, run: TrackedRun, store: Path, known: str | None) -> None:
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            group=run.group,
            job_type=run.kind,
            name=run.name,
            id=known,
            resume="allow" if known else None,
            dir=str(store),
            config=run.schedule,
            tags=[run.kind],
            settings=wandb.Settings(
                console="off", disable_git=True, save_code=False, disable_code=True, x_disable_stats=True
            ),
        )
        self.id = self._run.id
        self._run.define_metric("*", step_metric="step")
        self._counter = store / f"{self.id}.count"
        # W&B numbers its rows, and offline it starts at 0 again: `wandb sync` would then overwrite the first rows.
        self._rows = int(self._counter.read_text()) if self._counter.exists() else 0

    def log(self, place: Place, values: Mapping[str, float]) -> None:
        """Adds a row."""
        self._run.log({**values, **place.values()}, step=self._rows)
        self._rows += 1

    def mark(self, place: Place, event: str, text: str, values: Mapping[str, float]) -> None:
        """Adds a row with the event's text and values; a growth also adds its stage to the run's tags."""
        row = {f"{event}/{name}": value for name, value in values.items()}
        self._run.log({event: text, **row, **place.values()}, step=self._rows)
        self._rows += 1
        if event == "growth":
            self._run.tags = (*(self._run.tags or ()), f"stage {place.stage}"[:64])

    def flush(self) -> None:
        """Remembers the number of rows. W&B's own process writes the rows themselves."""
        replace_file(self._counter, str(self._rows).encode())

    def finish(self, status: Status, table: list[dict[str, str]]) -> None:
        """Writes the report's table and its figures into the summary."""
        self._run.summary.update({"status": status, **figures(table)})
        if table:
            rows = [[row.get(name, "") for name in COLUMNS] for row in table]
            self._run.log({"report": wandb.Table(columns=list(COLUMNS), data=rows)}, step=self._rows)
            self._rows += 1
            self.flush()
        self._run.finish(exit_code=0 if status == "finished" else 1)
