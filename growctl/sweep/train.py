"""Trains the runs of a set one after another, or submits their jobs; a run that fails does not stop the others."""

from collections.abc import Callable, Sequence

from growctl.run.requests import LadderRequest
from growctl.run.screen import Screen
from growctl.run.signals import Stopped
from growctl.sweep.requests import is_done
from model.errors import Failure, UserError


def train_set(
    requests: Sequence[LadderRequest], screen: Screen, start: Callable[[LadderRequest, Screen], None] | None = None
) -> dict[str, str]:
    """Starts or resumes each run of a set that is not finished; returns why runs failed, by name.

    Raises Stopped on a signal, after the current run has saved; the same call resumes. `start` trains one run, or
    submits its jobs.
    """
    start = start or train_or_submit
    failures: dict[str, str] = {}
    for number, request in enumerate(requests, 1):
        name, where = request.ladder.name, f"run {number} of {len(requests)}"
        if is_done(request):
            screen.message(f"{name}: finished already, skipped ({where})")
            continue
        screen.message(f"{name}: {where}")
        try:
            start(request, screen)
        except Stopped:
            screen.message(f"stopped in {name}, {where}")
            raise
        except (UserError, Failure) as error:
            failures[name] = str(error)
            screen.message(f"{name}: failed: {error}")
    return failures


def train_or_submit(request: LadderRequest, screen: Screen) -> None:
    """Trains a ladder and its controls, or submits their jobs, as `growctl run` does.

    On SLURM, each run gets jobs of its own and no array: they are chains, in which a control waits for its ladder, and
    they differ in the machines that they need.
    """
    if request.ladder.schedule.launch.cluster == "slurm":
        from growctl.queue.submit import AlreadySubmitted, submit

        try:
            submit(request, screen)
        except AlreadySubmitted as error:
            screen.message(f"{request.ladder.name}: {error}")
    else:
        from growctl.run.runner import run

        run(request, screen)
