"""All that a report says, topic by topic, in the order in which a reader wants it."""

from collections.abc import Sequence

from growctl.analysis.runs import RunReport
from growctl.loss_costs import cost_by_stage
from growctl.loss_costs import sections as equal_loss_sections
from growctl.published import figures as published_figures
from growctl.published.overlays import Published
from growctl.report import anomalies, bits_per_byte, charts, method, samples, savings, scores, sources, stages, warnings
from growctl.report_setup import commands, environment, growths, schedules
from growctl.report_training import by_position, recovery, time_spent, training
from growctl.seeds import headline, ladders, over_seeds, sweep
from growctl.seeds.grouping import BY_SCHEDULE, Grouping
from growctl.seeds.results import results
from growctl.text.section import Section


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
        sources.section(runs),
        cost_by_stage.section(runs),
        *training.sections(runs, grouping),
        recovery.section(runs, grouping),
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
