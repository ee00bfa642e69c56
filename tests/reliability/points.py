"""Where runs are killed, and who is: one line a point, for the tests and the soak alike."""

from dataclasses import dataclass, field
from typing import Any

RANK_VICTIMS = ("one rank", "all ranks", "runner", "everybody", "runner SIGTERM", "runner SIGINT")
RUNNER_VICTIMS = ("runner", "runner SIGTERM", "runner SIGINT")
SIGNALS = {"runner SIGTERM": ("SIGTERM", "runner"), "runner SIGINT": ("SIGINT", "runner")}
SIGNALS |= {"one rank": ("SIGKILL", "self"), "all ranks": ("SIGKILL", "ranks")}
SIGNALS |= {"runner": ("SIGKILL", "runner"), "everybody": ("SIGKILL", "everybody")}


@dataclass(frozen=True)
class Point:
    """A place in a run's life, in the words of faults/sitecustomize.py."""

    name: str
    at: str
    process: str
    matching: str = ""
    """{step} stands for any checkpoint's directory, {stage} for a stage's."""
    side: str = "before"
    most: int = 1
    """How often it comes by in one life of a process, at least: a random `nth` is drawn up to here."""
    stages: tuple[str, ...] = ("small", "middle", "large")
    """Stages that have it; none: it belongs to the run."""
    further: dict[str, Any] = field(default_factory=dict)

    @property
    def victims(self) -> tuple[str, ...]:
        """Who may be killed there, by whom it is that gets there."""
        return RANK_VICTIMS if self.process == "rank" else RUNNER_VICTIMS

    def fault(self, name: str, victim: str, stage: str | None = None, nth: int = 1, **further: Any) -> dict[str, Any]:
        """The fault that kills `victim` here. Without a `stage`, in whichever comes first."""
        do, to = SIGNALS[victim]
        fault: dict[str, Any] = {"name": name, "at": self.at, "side": self.side, "nth": nth, "do": do, "to": to}
        fault |= {"process": self.process, "matching": self.matching.replace("{stage}", f"-{stage}/" if stage else "")}
        if stage and self.process == "rank":
            fault["command"] = f"-{stage}/"
        return fault | self.further | further


STEP = r"/\.?step_\d+"
FINAL = r"/\.?final"
INITIAL = r"{stage}\.?initial"
GROWN = ("middle", "large")
RUN = ()
SLOW = {"seconds": 0.5}

POINTS = (
    Point("data: tokenizer written", "os:replace", "runner", r"tokenizer\.json$", stages=RUN),
    Point("data: a shard half written", "os:rename", "runner", r"_unshuffled\.ds$", stages=RUN, most=2),
    Point("data: before its rename", "os:rename", "runner", r"\.incomplete-", stages=RUN),
    Point("data: after its rename", "os:rename", "runner", r"\.incomplete-", "after", stages=RUN),
    Point("schedule.yaml: before its rename", "os:replace", "runner", r"schedule\.yaml$", stages=RUN),
    Point("schedule.yaml: after its rename", "os:replace", "runner", r"schedule\.yaml$", "after", stages=RUN),
    Point("ledger: no table yet", "growctl.ledger:Ledger._recognise", "runner", stages=RUN),
    Point("ledger: no run in it yet", "growctl.ledger:Ledger.record_run", "runner", stages=RUN),
    Point("ledger: within the first entry", "growctl.ledger:Ledger._append", "runner", "^stage$", most=3, stages=RUN),
    Point("expand: initial/ half written", "stages.checkpoint:write_parameter", "runner", INITIAL, "after", 10, GROWN),
    Point("expand: before its rename", "stages.manifest:finish_directory", "runner", INITIAL, stages=GROWN),
    Point("expand: while renamed", "os:rename", "runner", INITIAL, stages=GROWN, further=SLOW),
    Point("expand: after its rename", "os:rename", "runner", INITIAL, "after", stages=GROWN),
    Point("spec.json: before its rename", "os:replace", "runner", r"{stage}spec\.json$"),
    Point("spec.json: after its rename", "os:replace", "runner", r"{stage}spec\.json$", "after"),
    Point("workers: started", "stages.engine:start_distributed", "rank"),
    Point("workers: before the engine", "stages.train:Worker.start_engine", "rank"),
    Point("workers: engine loaded", "stages.train:Worker.start_engine", "rank", side="after"),
    Point("step: before it", "stages.train:Worker.train_step", "rank", most=6),
    Point("step: gradients there, no update", "deepspeed.runtime.engine:DeepSpeedEngine.backward", "rank", "", "after", 6),
    Point("checkpoint: a file half written", "torch:save", "rank", STEP, "after", 2, further={"tear": True}),
    Point("checkpoint: all files, no manifest", "stages.manifest:finish_directory", "rank", STEP, most=2),
    Point("checkpoint: before its rename", "os:rename", "rank", STEP, most=2),
    Point("checkpoint: while renamed", "os:rename", "rank", STEP, "after", 2, further=SLOW),
    Point("checkpoint: renamed, not yet told", "os:rename", "rank", STEP, "after", 2),
    Point("checkpoint: told, not yet in the ledger", "growctl.ledger:Ledger._append", "runner", "^work$", most=3, stages=RUN),
    Point("checkpoint: in the ledger", "growctl.ledger:Ledger._append", "runner", "^work$", "after", 3, RUN),
    Point("checkpoint: an old one half removed", "os:unlink", "rank", r"\.pt$", "after"),
    Point("evaluation: before it", "stages.evaluate:evaluate", "rank", most=3),
    Point("evaluation: within it", "stages.data:EvaluationWindows.batch", "rank", most=6),
    Point("final: a parameter written", "stages.checkpoint:write_parameter", "rank", FINAL, "after", 10),
    Point("final: before its rename", "stages.manifest:finish_directory", "rank", FINAL),
    Point("final: while renamed", "os:rename", "rank", FINAL, "after", further=SLOW),
    Point("final: after its rename", "os:rename", "rank", FINAL, "after"),
    Point("any change of a file by the runner", "files", "runner", "{runs}", most=60, stages=RUN),
    Point("any change of a file by a rank", "files", "rank", "{runs}", most=40),
)
BY_NAME = {point.name: point for point in POINTS}
