"""What charts call runs, and which of them share a colour: the seeds of a ladder, the controls of one kind and size."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from growctl.analysis.groups import groups
from growctl.report.chart import Rule
from growctl.runs.runs import RunReport, StageReport
from growctl.text.formatting import scientific, short_count


@dataclass(frozen=True)
class Legend:
    """Which runs belong together, and what the legend calls them."""

    ladders: Mapping[str, str]
    """By the name of a run: what its ladder and that ladder's seeds are called."""
    members: Mapping[str, Sequence[RunReport]]
    """By group: its runs."""

    @classmethod
    def of(cls, runs: Sequence[RunReport], keys: Sequence[str] = ()) -> "Legend":
        """The legend of charts of `runs`; `keys` keep runs apart as in `groups`."""
        by_ladder = {name: group.name for group in groups(runs, keys) for name in group.names}
        ladders = {run.name: by_ladder.get(run.control_of or run.name, run.control_of or run.name) for run in runs}
        members: dict[str, list[RunReport]] = {}
        for run in runs:
            members.setdefault(_group(run, ladders), []).append(run)
        return cls(ladders, members)

    @property
    def groups(self) -> tuple[str, ...]:
        """All groups, in the order of their colours: ladders first."""
        return tuple(sorted(self.members, key=lambda group: self.members[group][0].control is not None))

    def group(self, run: RunReport) -> str:
        """The group whose colour a run has."""
        return _group(run, self.ladders)

    def entry(self, run: RunReport) -> str:
        """The entry of a run and its seeds in the legend. A run without a point has one, too."""
        group = self.group(run)
        if run.control is None:
            first = run.base or (run.stages[0] if run.stages else None)
            group += f", ladder from {short_count(first.num_parameters)}" if first else ", ladder"
        elif len(set(self.ladders.values())) == 1:
            group = _kind_and_size(run)
        alike = self.members[self.group(run)]
        seeds = len({each.control_of or each.name for each in alike})
        unfinished = sum(not each.finished for each in alike)
        group += f", {seeds} seeds" if seeds > 1 else ""
        return group + (f", {unfinished} of {len(alike)} unfinished" if unfinished else "")

    def growths(self, runs: Sequence[RunReport], place: Callable[[RunReport, StageReport], float]) -> tuple[Rule, ...]:
        """A line at each growth of `runs`, at the `place` where its stage starts; seeds of one ladder share it."""
        rules: dict[tuple[str, str, str], Rule] = {}
        for run in runs:
            for stage in (stage for stage in run.stages if stage.loss_after_growth is not None):
                label, group, x = f"grown to {short_count(stage.num_parameters)}", self.group(run), place(run, stage)
                rules.setdefault((group, label, scientific(x)), Rule(x, label, group))
        return tuple(rules.values())


def _group(run: RunReport, ladders: Mapping[str, str]) -> str:
    return ladders[run.name] if run.control is None else f"{ladders[run.name]}: {_kind_and_size(run)}"


def _kind_and_size(control: RunReport) -> str:
    size = f", {short_count(control.stages[-1].num_parameters)}" if control.stages else ""
    return f"{control.control}{size}"
