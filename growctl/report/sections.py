"""All that a report says, topic by topic, in the order in which a reader wants it."""

from collections.abc import Sequence

from growctl.content.section import Section
from growctl.report import anomalies, cost_by_stage, equal_loss_sections, samples, savings, scores, stages, validation
from growctl.report.read import RunReport


def report_sections(runs: Sequence[RunReport]) -> list[Section]:
    """The sections of the report on `runs`, the most important first."""
    topics = (
        validation.section(runs),
        savings.section(runs),
        equal_loss_sections.section(runs),
        equal_loss_sections.section_of_other_costs(runs),
        stages.section(runs),
        cost_by_stage.section(runs),
        anomalies.section(runs),
        scores.section(runs),
        samples.section(runs),
    )
    return [section for section in topics if section]
