"""All that a report says, topic by topic, in the order in which a reader wants it."""

from collections.abc import Sequence

from growctl.content.section import Section
from growctl.report import (
    anomalies,
    bits_per_byte,
    charts,
    commands,
    cost_by_stage,
    environment,
    equal_loss_sections,
    growths,
    headline,
    ladders,
    method,
    over_seeds,
    samples,
    savings,
    schedules,
    scores,
    stages,
    sweep,
    warnings,
)
from growctl.report.grouping import BY_SCHEDULE, Grouping
from growctl.report.read import RunReport
from growctl.report.results import results


def report_sections(
    runs: Sequence[RunReport], grouping: Grouping = BY_SCHEDULE, command: Sequence[str] = ()
) -> list[Section]:
    """The sections of the report on `runs` that `command` makes, the most important first."""
    found = results(runs, grouping)
    topics = (
        headline.section(found.headlines),
        warnings.section(runs),
        savings.section(runs),
        charts.section(runs),
        over_seeds.section(found.seeds),
        sweep.section(found.sweeps),
        ladders.section(found.ladders),
        equal_loss_sections.section(runs),
        equal_loss_sections.section_of_other_costs(runs),
        bits_per_byte.section(runs),
        stages.section(runs),
        cost_by_stage.section(runs),
        anomalies.section(runs),
        growths.section(runs),
        scores.section(runs),
        samples.section(runs),
        environment.section(runs),
        schedules.section(runs),
        commands.section(runs, command),
        method.section(),
    )
    return [section for section in topics if section]
