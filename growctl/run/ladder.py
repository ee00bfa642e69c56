"""Runs a ladder and its controls, one execution after another."""

from dataclasses import replace

from growctl.ladder.load import counted_on
from growctl.launch.resolve import crowded_cores, machines_of, run_devices
from growctl.run.dataset import RunDataset
from growctl.run.requests import LadderRequest, check_space
from growctl.run.runner import Execution
from growctl.run.screen import Screen


def run(request: LadderRequest, screen: Screen) -> None:
    """Runs a ladder, up to its `last_stage`, and then its controls, or resumes them.

    Raises RunError (or another UserError) before anything is written, RunFailed if a stage fails.
    """
    machines = machines_of(request.ladder.schedule)
    devices = run_devices(request.ladder.schedule, machines)
    check_space(request.checked(machines), request.runs_dir, devices, request.last_stage)
    machines.check(request.runs_dir)
    request = _documents_counted(request, screen)
    if crowded := crowded_cores(request.ladder.schedule, devices):
        screen.message(f"warning: {crowded}")
    controls = [request.directory(control) for control in request.controls()]
    ladder = Execution(request.ladder, request.runs_dir, machines, screen, controls, request.sources)
    ladder.run(request.last_stage, request.record_choices)
    for control in request.controls():
        request.check_same_run(control)
        Execution(control, request.runs_dir, machines, screen, sources=request.sources).run()


def run_part(request: LadderRequest, name: str, last_stage: int | None, screen: Screen) -> None:
    """Runs only the ladder or control called `name`, up to the stage with index `last_stage`. Raises as `run` does."""
    machines = machines_of(request.ladder.schedule)
    [part] = [candidate for candidate in request.checked(machines) if candidate.name == name]
    check_space([part], request.runs_dir, run_devices(part.schedule, machines), last_stage)
    machines.check(request.runs_dir)
    counted = _documents_counted(request, screen)
    if counted is not request:
        [part] = [candidate for candidate in counted.checked(machines) if candidate.name == name]
    Execution(part, request.runs_dir, machines, screen, sources=request.sources).run(last_stage)


def _documents_counted(request: LadderRequest, screen: Screen) -> LadderRequest:
    """`request` with `data.attended_tokens`, on which the budgets of its controls depend; prepares the dataset."""
    schedule = request.ladder.schedule
    if not schedule.data.document_mask or schedule.data.attended_tokens:
        return request
    dataset = RunDataset(schedule, request.runs_dir, screen).prepared()
    return replace(request, ladder=replace(request.ladder, schedule=counted_on(schedule, dataset)))
