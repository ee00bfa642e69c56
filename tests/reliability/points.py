"""The points at which tests and the soak kill runs, and which process each point kills."""

from dataclasses import dataclass, field
from typing import Any

RUNNER_VICTIMS = ("runner", "runner SIGTERM", "runner SIGINT")
RANK_VICTIMS = ("one rank", "all ranks", "everybody", *RUNNER_VICTIMS)
CONVERTER_VICTIMS = ("converter", "everybody", *RUNNER_VICTIMS)
VICTIMS = {"runner": RUNNER_VICTIMS, "rank": RANK_VICTIMS, "converter": CONVERTER_VICTIMS}
ACTIONS = {
    "one rank": ("SIGKILL", "self"),
    "converter": ("SIGKILL", "self"),
    "all ranks": ("SIGKILL", "ranks"),
    "runner": ("SIGKILL", "runner"),
    "everybody": ("SIGKILL", "everybody"),
    "runner SIGTERM": ("SIGTERM", "runner"),
    "runner SIGINT": ("SIGINT", "runner"),
    "ENOSPC": ("ENOSPC", "self"),
    "EIO": ("EIO", "self"),
}
"""By victim, a signal or an error that the call raises, and its target."""


@dataclass(frozen=True)
class Point:
    """A place in a run's life, in the words of faults/sitecustomize.py."""

    name: str
    at: str
    process: str
    matching: str = ""
    """Pattern for the call's arguments. {stage} stands for the stage's directory, {runs} for the runs directory."""
    side: str = "before"
    most: int = 1
    """Each process reaches the point at least this often, so a random `nth` is drawn from 1 to it."""
    stages: tuple[str, ...] = ("small", "middle", "middle/release", "large")
    """Stages, and releases, that reach the point; empty: it belongs to the run."""
    both: bool = False
    """Whether every rank reaches the point, not only the first."""
    victims: tuple[str, ...] = ()
    """By default every kill that makes sense for the process that reaches the point."""
    further: dict[str, Any] = field(default_factory=dict)
    along: tuple[dict[str, Any], ...] = ()
    """Other faults that are needed to reach the point."""

    @property
    def possible(self) -> tuple[str, ...]:
        """The victims."""
        return self.victims or VICTIMS[self.process]

    def faults(self, name: str, victim: str, stage: str | None = None, **further: Any) -> list[dict[str, Any]]:
        """The fault that kills `victim` here, with the other faults that it needs."""
        fault = self.fault(name, victim, stage, **further)
        shared = {"command": fault["command"]} if "command" in fault else {}
        return [*({"name": f"{name}+{i}"} | other | shared for i, other in enumerate(self.along)), fault]

    def fault(self, name: str, victim: str, stage: str | None = None, nth: int = 1, **further: Any) -> dict[str, Any]:
        """The fault that kills `victim` here; without a `stage`, in the first stage that reaches the point."""
        do, to = ACTIONS[victim]
        fault: dict[str, Any] = {"name": name, "at": self.at, "side": self.side, "nth": nth, "do": do, "to": to}
        fault |= {"process": self.process, "matching": self.matching.replace("{stage}", f"-{stage}/" if stage else "")}
        fault |= {"command": f"-{stage}/"} if stage and self.process == "rank" else {}
        return fault | self.further | further


STEP = r"/\.?step_\d+"
FINAL = r"/\.?final"
NOT_DUE = r"/\.?step_0+(1|2|4|5|8|10|11)\b"
INITIAL = r"{stage}\.?initial"
GROWN = ("middle", "large")
RUN = ()
SLOW = {"seconds": 0.5}
UPDATE = "deepspeed.runtime.engine:DeepSpeedEngine.backward"
WRITE = "stages.checkpoint.parameters:write_parameter"
FINISH = "stages.checkpoint.directory:finish_directory"
BOOK = "growctl.ledger.books:StageBooks.sync"
ROWS = "growctl.ledger.books:StageBooks._book"
STOPPED = (
    {"at": "stages.train.worker:Worker.train_step", "process": "rank", "do": "sleep", "seconds": 1.1, "always": True},
    {"at": UPDATE, "process": "rank", "nth": 4, "do": "SIGTERM", "to": "runner"},
)
"""Slow steps, so that there is time to save, and a signal that asks for a save."""

POINTS = (
    Point("data: tokenizer written", "os:replace", "runner", r"tokenizer\.json$", stages=RUN),
    Point("data: a shard not yet in place", "os:rename", "runner", r"/(train|validation)/\d+\.ds$", stages=RUN, most=2),
    Point("data: before its rename", "os:rename", "runner", r"\.datasets/\.[^/]*\.incomplete$", stages=RUN),
    Point("data: after its rename", "os:rename", "runner", r"\.datasets/\.[^/]*\.incomplete$", "after", stages=RUN),
    Point("schedule.yaml: before its rename", "os:replace", "runner", r"schedule\.yaml$", stages=RUN),
    Point("schedule.yaml: after its rename", "os:replace", "runner", r"schedule\.yaml$", "after", stages=RUN),
    Point("ledger: before it is made", "growctl.ledger.ledger:Ledger.__init__", "runner", stages=RUN),
    Point("ledger: no run in it yet", "growctl.ledger.ledger:Ledger.record_run", "runner", stages=RUN),
    Point("ledger: first entries, not committed", "growctl.ledger.ledger:Ledger.run", "runner", stages=RUN),
    Point("expand: initial/ half written", WRITE, "runner", INITIAL, "after", 10, GROWN),
    Point("expand: before its manifest", FINISH, "runner", INITIAL, stages=GROWN),
    Point("expand: a slow rename", "os:rename", "runner", INITIAL, "after", stages=GROWN, further=SLOW),
    Point("expand: after its rename", "os:rename", "runner", INITIAL, "after", stages=GROWN),
    Point("release: about to branch off", "os:mkdir", "runner", r"-middle/release$", stages=RUN),
    Point("release: branched off", "os:mkdir", "runner", r"-middle/release$", "after", stages=RUN),
    Point("spec.json: before its rename", "os:replace", "runner", r"{stage}spec\.json$"),
    Point("spec.json: after its rename", "os:replace", "runner", r"{stage}spec\.json$", "after"),
    Point("workers: about to meet", "stages.engine.rank_process:start_distributed", "rank", both=True),
    Point("workers: before the engine", "stages.train.worker:Worker.start_engine", "rank", both=True),
    Point("workers: engine loaded", "stages.train.worker:Worker.start_engine", "rank", side="after", both=True),
    Point("step: before it", "stages.train.worker:Worker.train_step", "rank", most=6, both=True),
    Point("step: gradients there, no update", UPDATE, "rank", "", "after", 6, both=True),
    Point("checkpoint: a file half written", "torch:save", "rank", STEP, "after", 2, further={"tear": True}, both=True),
    Point("checkpoint: all files, no manifest", FINISH, "rank", STEP, most=2),
    Point("checkpoint: before its rename", "os:rename", "rank", STEP, most=2),
    Point("checkpoint: a slow rename", "os:rename", "rank", STEP, "after", 2, further=SLOW),
    Point("checkpoint: renamed, not yet told", "os:rename", "rank", STEP, "after", 2),
    Point("checkpoint: told, not yet in the ledger", BOOK, "runner", most=12, stages=RUN),
    Point("checkpoint: rows written, not committed", ROWS, "runner", "", "after", 12, RUN),
    Point("checkpoint: in the ledger", BOOK, "runner", "", "after", 12, RUN),
    Point("checkpoint: an old one half removed", "os:unlink", "rank", r"\.pt$", "after"),
    Point("checkpoint: half written, as asked to stop", "torch:save", "rank", NOT_DUE, "after", along=STOPPED),
    Point("checkpoint: renamed, as asked to stop", "os:rename", "rank", NOT_DUE, "after", along=STOPPED),
    Point("evaluation: before it", "stages.train.text_data:evaluate", "rank", most=3, both=True),
    Point("evaluation: within it", "stages.data.evaluation_windows:EvaluationWindows.batch", "rank", most=6, both=True),
    Point("final: a parameter written", WRITE, "rank", FINAL, "after", 10),
    Point("final: before its manifest", FINISH, "rank", FINAL),
    Point("final: a slow rename", "os:rename", "rank", FINAL, "after", further=SLOW),
    Point("final: after its rename", "os:rename", "rank", FINAL, "after"),
    Point("any change of a file, runner", "files", "runner", "{runs}", most=60, stages=RUN),
    Point("any change of a file, rank", "files", "rank", "{runs}", most=40),
    Point("disk error, runner", "os:fsync", "runner", "{runs}", most=40, stages=RUN, victims=("ENOSPC", "EIO")),
    Point("disk error, rank", "os:fsync", "rank", "{runs}", most=40, victims=("ENOSPC", "EIO")),
)
CONVERSIONS = (
    Point("conversion: before it", "stages.process.lifeline:end_with_runner", "converter", side="after", stages=RUN),
    Point("conversion: shards taken apart", "torch:save", "converter", "", "after", 40, RUN, further={"tear": True}),
    Point("conversion: a parameter written", WRITE, "converter", "converted_", "after", 10, RUN),
    Point("conversion: before its manifest", FINISH, "converter", "converted_", stages=RUN),
    Point("conversion: before its rename", "os:rename", "converter", r"/converted_\d+$", stages=RUN),
    Point("conversion: after its rename", "os:rename", "converter", r"/converted_\d+$", "after", stages=RUN),
)
"""In runs that change their ranks within a stage."""

REUSES = (
    Point("reuse: before a link", "stages.checkpoint.files:link_or_copy", "runner", most=60, stages=RUN),
    Point("reuse: linked, not recorded", "growctl.run.reuse:_record", "runner", most=4, stages=RUN),
    Point("reuse: recorded, not in place", "growctl.run.reuse:_record", "runner", "", "after", 4, RUN),
    Point("reuse: before its rename", "os:rename", "runner", FINAL, most=4, stages=RUN),
    Point("reuse: in place, not in the ledger", "growctl.run.reuse:take_over", "runner", "", "after", 4, RUN),
)
"""In runs that take over every stage from another run."""

BY_NAME = {point.name: point for point in (*POINTS, *CONVERSIONS, *REUSES)}

WEATHER = (
    {"at": "os:rename", "matching": "{runs}", "side": "after", "do": "sleep", "seconds": 2.0, "always": True},
    {"at": BOOK, "process": "runner", "nth": 5, "do": "clock", "seconds": 3600.0},
    {"at": UPDATE, "process": "rank", "nth": 3, "do": "clock", "seconds": 3600.0},
)
"""Disturbances that no result may depend on: renames that take 2 s, clocks that jump back by an hour."""
