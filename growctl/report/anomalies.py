"""What went wrong in training: rejected updates, one sentence each."""

from collections.abc import Sequence

from growctl.analysis.runs import RunReport
from growctl.ledger.ledger import Anomaly
from growctl.text.section import Paragraph, Section
from stages.counted import counted

SHOWN_ANOMALIES = 10


def section(runs: Sequence[RunReport]) -> Section | None:
    """The anomalies of the runs that have any."""
    parts: list[Paragraph] = []
    for run in runs:
        if run.anomalies:
            parts += [Paragraph(run.name, "heading"), *map(Paragraph, anomalies(run))]
    return Section("anomalies", "Training anomalies", tuple(parts)) if parts else None


def anomalies(run: RunReport) -> list[str]:
    """A sentence for each of the last anomalies of a run."""
    lines = [_anomaly(stage, anomaly) for stage, anomaly in run.anomalies[-SHOWN_ANOMALIES:]]
    left_out = len(run.anomalies) - len(lines)
    return [f"{left_out} earlier anomalies are in the JSON report.", *lines] if left_out else lines


def _anomaly(stage: str, anomaly: Anomaly) -> str:
    what = {"non_finite": "a non-finite value", "spike": "a spike"}.get(anomaly.kind, anomaly.kind)
    done = {"skip": "skipped", "rollback": "rolled back", "stop": "stopped"}.get(anomaly.action, anomaly.action)
    held = (
        f", {anomaly.value:.4g} against {anomaly.threshold:.4g}"
        if None not in (anomaly.value, anomaly.threshold)
        else ""
    )
    left_out = ""
    if anomaly.first_step is not None and anomaly.num_steps:
        left_out = f", skipping the data of {counted(anomaly.num_steps, 'step')} from step {anomaly.first_step} on"
    return f"{stage}, attempt {anomaly.attempt}, step {anomaly.step}: {what}{held}; {done}{left_out}."
