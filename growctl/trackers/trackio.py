"""trackio: one trackio run per run, in the group of its ladder.

Local, unless TRACKIO_SPACE_ID or TRACKIO_SERVER_URL names where else.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from growctl.trackers.protocol import Place, Status, TrackedRun
from growctl.trackers.tables import COLUMNS, figures

PROJECT = "growctl"


class Trackio:
    """A trackio run. Any value can be the x axis: step, tokens, flops."""

    def __init__(self, run: TrackedRun, store: Path, known: str | None) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(store))
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        import trackio  # after its variables

        self._trackio = trackio
        self._run = trackio.init(
            project=PROJECT,
            name=run.name,
            group=run.group,
            config={"kind": run.kind, "schedule": run.schedule},
            resume="allow" if known else "never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self.id = str(self._run.id)

    def log(self, place: Place, values: Mapping[str, float]) -> None:
        """Adds a row."""
        own = {name: value for name, value in place.values().items() if name != "step"}  # trackio keeps the step itself
        self._run.log({**values, **own}, step=place.step)

    def mark(self, place: Place, event: str, text: str, values: Mapping[str, float]) -> None:
        """Adds an alert, which the dashboard lists, and a row with the event's values."""
        self._run.alert(title=event, text=text, level=self._trackio.AlertLevel.INFO, step=place.step)
        self.log(place, {f"{event}/{name}": value for name, value in values.items()})

    def flush(self) -> None:
        """trackio's own thread writes twice a second."""

    def finish(self, status: Status, table: list[dict[str, str]]) -> None:
        """Adds a row with the report's table and its figures."""
        if table:
            rows = [[row.get(name, "") for name in COLUMNS] for row in table]
            self._run.log({"report": self._trackio.Table(columns=list(COLUMNS), data=rows), **figures(table)})
        self._run.finish()
