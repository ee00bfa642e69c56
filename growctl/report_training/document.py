"""How the stages of a run trained, as values for scripts."""

from dataclasses import dataclass

from growctl.analysis.runs import RunReport
from growctl.report_training.recovery import Recovery, recoveries
from growctl.report_training.time_spent import TimeSpent, time_spent
from growctl.report_training.training import TrainingFigures, training_figures


@dataclass(frozen=True)
class StageTraining:
    """How a stage, or its release, trained."""

    stage: str
    training: TrainingFigures | None
    """None if the stage has no log lines here."""
    recovery: Recovery | None
    """The loss around the growth that the stage begins with; None without one, and if it is not known."""
    time: TimeSpent
    """Device-seconds by what the devices did."""


def stages_trained(run: RunReport) -> tuple[StageTraining, ...]:
    """How each stage of a run trained; a stage's release follows it."""
    growths = {growth.stage: growth for growth in recoveries(run)}
    return tuple(
        StageTraining(part.name, training_figures(run, part), growths.get(part.name), time_spent(run, part))
        for part in run.parts
    )
