"""Trains the runs of a set one after another, or submits their jobs; a run that fails does not stop the others."""

from collections.abc import Callable, Sequence

from growctl.run.requests import LadderRequest
from growctl.run.screen import Screen
from growctl.run.sets import is_done
from growctl.run.signals import Stopped
from model.errors import Failure, UserError

Submit = Callable[[Sequence[LadderRequest], Screen], dict[str, str]]
"""Submits runs to SLURM; returns why runs could not be submitted, by name."""


def train_set(requests: Sequence[LadderRequest], screen: Screen, submit: Submit) -> dict[str, str]:
    """Starts or resumes each run of a set that is not finished, or submits it to SLURM; returns why runs failed.

    The reasons are by name. Raises Stopped on a signal, after the current run has saved; the same call resumes.
    """
    failures: dict[str, str] = {}
    queued: list[LadderRequest] = []
    for number, request in enumerate(requests, 1):
        name, where = request.ladder.name, f"run {number} of {len(requests)}"
        if is_done(request):
            screen.message(f"{name}: finished already, skipped ({where})")
        elif request.ladder.schedule.launch.cluster == "slurm":
            queued.append(request)
        else:
            _train(request, where, screen, failures)
    return failures | submit(queued, screen) if queued else failures


def _train(request: LadderRequest, where: str, screen: Screen, failures: dict[str, str]) -> None:
    from growctl.run.ladder import run

    name = request.ladder.name
    screen.message(f"{name}: {where}")
    try:
        run(request, screen)
    except Stopped:
        screen.message(f"stopped in {name}, {where}")
        raise
    except (UserError, Failure) as error:
        failures[name] = str(error)
        screen.message(f"{name}: failed: {error}")
