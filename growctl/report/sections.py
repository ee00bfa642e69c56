"""All that a report says, topic by topic, in the order in which a reader wants it."""

from collections.abc import Sequence

from growctl.content.section import Section
from growctl.report import (
    anomalies,
    cost_by_stage,
    equal_loss_sections,
    headline,
    ladders,
    over_seeds,
    published_figures,
    samples,
    savings,
    scores,
    stages,
    sweep,
    validation,
)
from growctl.report.grouping import BY_SCHEDULE, Grouping
from growctl.report.overlays import Published
from growctl.report.read import RunReport
from growctl.report.results import results


def report_sections(
    runs: Sequence[RunReport], grouping: Grouping = BY_SCHEDULE, overlays: Sequence[Published] = ()
) -> list[Section]:
    """The sections of the report on `runs`, the most important first. `overlays`: published figures to show apart."""
    found = results(runs, grouping)
    topics = (
        headline.section(found.headlines),
        validation.section(runs),
        savings.section(runs),
        over_seeds.section(found.seeds),
        sweep.section(found.sweeps),
        ladders.section(found.ladders),
        equal_loss_sections.section(runs),
        equal_loss_sections.section_of_other_costs(runs),
        stages.section(runs),
        cost_by_stage.section(runs),
        anomalies.section(runs),
        scores.section(runs),
        published_figures.section(overlays),
        samples.section(runs),
    )
    return [section for section in topics if section]
