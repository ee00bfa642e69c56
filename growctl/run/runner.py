"""The runner, which alone decides from the files on disk what a run does next: a ladder, then its controls."""

import math
from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

from growctl.ladder.conditions import comparison_conditions, data_conditions
from growctl.ladder.datasets import counted_in
from growctl.ladder.load import counted_on
from growctl.ladder.stage_plans import StagePlan, plan_release, plan_run, plan_stages
from growctl.ladder.warnings import decays, misfits
from growctl.launch.resolve import machines_of
from growctl.ledger.entries import RunEntry, ScoreEntry, StageEntry
from growctl.ledger.file import BrokenLedger, move_aside
from growctl.ledger.ledger import Ledger
from growctl.ledger.lines import read_lines
from growctl.run.dataset import RunDataset, check_control, recorded_ladder
from growctl.run.requests import LadderRequest, RunFailed, RunRequest, check_space, check_time, schedule_yaml
from growctl.run.screen import Screen
from growctl.run.stage_run import Execution, StageRun
from growctl.run.start import Start
from growctl.runs.directory import loss_at_end, steps_done
from growctl.runs.lock import hold
from growctl.runs_dir import RunPaths
from stages.checkpoint.files import write_file
from stages.images.either import AnyManifest, read_any_manifest


def run(request: LadderRequest, screen: Screen, only: str | None = None, last_stage: int | None = None) -> None:
    """Runs a ladder, up to its `last_stage`, and then its controls, or resumes them.

    `only`: the name of the ladder or of the control to run alone, up to its stage with the index `last_stage`. Raises
    RunError (or another UserError) before anything is written, RunFailed if a stage fails.
    """
    machines = machines_of(request.ladder.schedule)
    asked = [part for part in request.checked(machines) if only in (None, part.name)]
    last_stage = last_stage if only else request.last_stage
    check_time(asked, request.runs_dir, machines.on_each, request.sources, last_stage)
    check_space(asked, request.runs_dir, machines.on_each, last_stage)
    machines.check(request.runs_dir)
    request = _documents_counted(request, screen)
    if only in (None, request.ladder.name):
        controls = [] if only else [request.directory(control) for control in request.controls()]
        ladder = _Runner(request.ladder, request.runs_dir, machines, screen, controls, request.sources)
        ladder.run(last_stage, None if only else request.record_choices)
    for name in [control.name for control in request.controls()]:
        if only in (None, name):
            control = request.control(name)  # at the peak that those before it have tuned
            try:
                _Runner(control, request.runs_dir, machines, screen, sources=request.sources).run(last_stage)
            except RunFailed as failure:
                if not control.tunes or loss_at_end(RunPaths(request.directory(control))) != math.inf:
                    raise
                screen.message(f"{name} diverged, so that its peak does not win: {failure}")


def _documents_counted(request: LadderRequest, screen: Screen) -> LadderRequest:
    """`request` with `data.attended_tokens`, on which the budgets of its controls depend; prepares the dataset."""
    schedule = request.ladder.schedule
    if not schedule.data.document_mask or schedule.data.attended_tokens:
        return request
    dataset = RunDataset(schedule, request.runs_dir, screen).prepared()
    return replace(request, ladder=replace(request.ladder, schedule=counted_on(schedule, dataset)))


class _Runner(Execution):
    """Drives one execution of one run."""

    def run(self, last_stage: int | None = None, record: Callable[[], None] | None = None) -> None:
        """Prepares the data, then trains each stage up to index `last_stage` to its `final/`, growing in between.

        Calls `record` once it holds the run.

        A release is trained right after its stage, before the next one grows: the finished model is there as early as
        possible, and on the stage's own machines.
        """
        if self.start and not self.stage(self.plans[0]).initial.exists():
            self.start.check()
        self.screen.run_started(self.request.name, self.request.control, plan_run(self.schedule), self.schedule)
        data = RunDataset(self.schedule, self.runs_dir, self.screen, with_controls=bool(self.controls))
        dataset = ladder = None
        if self.request.control_of:
            directory = self.runs_dir / self.request.control_of
            ladder = recorded_ladder(directory)
            check_control(self.paths.directory, ladder)
            dataset = data.of_ladder(ladder, directory)
        elif not self.paths.has_begun():
            dataset = data.prepared()
        with hold(self.paths.directory):
            # Write the schedule first: this file marks the directory as a run.
            write_file(self.paths.schedule, schedule_yaml(self.schedule).encode())
            if record:
                record()
            with self._open_ledger() as self.ledger:
                self.dataset = dataset or data.known(self.ledger, self.paths.directory)
                data.pack(self.dataset)
                self._record_run(ladder)
                for control in self.controls:
                    check_control(control, recorded_ladder(self.paths.directory))
                with self.tracking:
                    self._stages(len(self.plans) if last_stage is None else last_stage + 1)
        if last_stage is None or last_stage + 1 == len(self.plans):
            self.screen.run_finished()

    def _stages(self, number: int) -> None:
        """Trains the first `number` stages, each followed by its release."""
        for index in range(number):
            StageRun(self, self.plans[index]).finish()
            done = steps_done(self.schedule, self.paths.directory)
            self.plans = plan_stages(self.schedule, done[: index + 1])
            self.screen.ladder.plan_again(plan_run(self.schedule, done[: index + 1]))
            if release := plan_release(self.schedule, self.plans[index]):
                StageRun(self, release).finish()

    def _open_ledger(self) -> Ledger:
        """The run's ledger. A broken one is set aside and rebuilt from the metrics.jsonl of each stage."""
        path = self.paths.ledger
        try:
            return Ledger(path)
        except BrokenLedger as error:
            aside = move_aside(path).name
            self.screen.message(f"{path} is broken: {error.why}; moved to {aside}, rebuilding it from metrics.jsonl")
            return Ledger(path)

    def _record_run(self, ladder: RunEntry | None) -> None:
        """Records the run, its stages and their scores in the ledger. `ladder`: that of a control."""
        manifest = read_any_manifest(self.dataset)
        entry = run_entry(self.request, self._run_id(), str(self.dataset), manifest, ladder, self.start)
        plans = plan_run(self.schedule)
        self.ledger.record_run(entry, [stage_entry(plan) for plan in plans])
        files = [self.stage(plan).scores for plan in plans]
        self.ledger.record_scores(score for path in files for score in read_lines(path, ScoreEntry))

    def _run_id(self) -> str:
        """The run's id, created at the run's first start. It is a file of its own, so that it outlives the ledger."""
        path = self.paths.run_id
        if not path.exists():
            write_file(path, uuid4().hex.encode())
        return path.read_text(errors="replace")


def run_entry(
    request: RunRequest, run_id: str, dataset: str, manifest: AnyManifest, ladder: RunEntry | None, start: Start | None
) -> RunEntry:
    """The run. `manifest` is that of the `dataset`; `ladder` is that of a control."""
    schedule, run_set = request.schedule, request.run_set
    return RunEntry(
        name=request.name,
        schedule=request.label,
        control=request.control,
        control_of=request.control_of,
        seed=schedule.seed,
        dataset=dataset,
        dataset_fingerprint=manifest.fingerprint,
        conditions=comparison_conditions(schedule) | data_conditions(manifest),
        run_id=run_id,
        ladder_id=ladder.run_id if ladder else None,
        decays=decays(schedule),
        caveats=misfits(schedule) if ladder else [],
        base=start.entry(manifest) if start else None,
        **counted_in(schedule, manifest),
        group=run_set.group if run_set else None,
        overrides=run_set.overrides if run_set else {},
    )


def stage_entry(plan: StagePlan) -> StageEntry:
    """A stage or a release."""
    same = ("name", "num_parameters", "num_embedding_parameters", "num_read_parameters", "budget_tokens", "num_steps")
    costs = ("step_flops", "evaluation_flops_per_token", "own_evaluation_flops_per_token")
    return StageEntry(
        **{name: getattr(plan, name) for name in (*same, *costs, "branch_of")},
        tokens_per_step=plan.batch.tokens,
        sequence_length=plan.batch.sequence_length,
        num_layers=plan.model.num_layers,
        decayed=plan.has_decayed,
    )
