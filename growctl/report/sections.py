"""All that a report says, topic by topic, in the order in which a reader wants it."""

from collections.abc import Sequence

from growctl.content.section import Section
from growctl.report import (
    anomalies,
    bits_per_byte,
    by_position,
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
    published_figures,
    recovery,
    samples,
    savings,
    schedules,
    scores,
    stages,
    sweep,
    time_spent,
    training,
    warnings,
)
from growctl.report.grouping import BY_SCHEDULE, Grouping
from growctl.report.overlays import Published
from growctl.report.read import RunReport
from growctl.report.results import results


def report_sections(
    runs: Sequence[RunReport],
    grouping: Grouping = BY_SCHEDULE,
    command: Sequence[str] = (),
    overlays: Sequence[Published] = (),
) -> list[Section]:
    """The sections of the report on `runs` that `command` makes, the most important first.

    `overlays`: published figures, which are shown apart and change nothing else.
    """
    found = results(runs, grouping)
    topics = (
        headline.section(found.headlines),
        warnings.section(runs),
        charts.section(runs, grouping, overlays),
        over_seeds.section(found.seeds, found.swept),
        sweep.section(found.sweeps),
        ladders.section(found.ladders),
        bits_per_byte.section(runs),
        savings.section(runs, found.with_several_seeds, found.cautions),
        savings.section_by_seed(runs, found.with_several_seeds),
        equal_loss_sections.section(runs),
        equal_loss_sections.section_of_other_costs(runs),
        stages.section(runs),
        cost_by_stage.section(runs),
        training.section(runs),
        recovery.section(runs),
        time_spent.section(runs),
        anomalies.section(runs),
        growths.section(runs),
        scores.section(runs),
        published_figures.section(overlays),
        by_position.section(runs),
        samples.section(runs),
        environment.section(runs),
        schedules.section(runs),
        commands.section(runs, command),
        method.section(),
    )
    return [section for section in topics if section]
