"""Runs inside a SLURM job: the ordinary runner on its first machine, with workers started by srun.

Jobs are submitted through submitit (growctl/run/slurm_jobs.py) and follow its protocol. Shortly before the time limit,
SLURM warns the job with SIGUSR2. The job makes its workers save and exit, saves its own state and is requeued. When it
starts again, it resumes from the files on disk, like any other run.
"""

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from growctl.bugs import report_bug
from growctl.launch.slurm import job_states
from growctl.run import signals
from growctl.run.requests import LadderRequest
from growctl.text.escaping import say
from model.errors import Failure, UserError

if TYPE_CHECKING:
    from submitit.core.utils import DelayedSubmission


ASK_AGAIN_SECONDS = (1.0, 5.0, 10.0)


class JobPart:
    """The work of one job: a whole run, or its stages up to one of them. submitit pickles it into the run directory."""

    def __init__(self, request: LadderRequest, name: str, last_stage: int | None) -> None:
        """The run `name`, the ladder or one of its controls, up to the stage with index `last_stage`; None: all."""
        self.name = name
        self.last_stage = last_stage
        self.ladder = request.ladder.name
        self.label = request.ladder.label
        self.overrides = request.overrides
        self.runs_dir = str(request.runs_dir.absolute())
        self.sources = [str(source.absolute()) for source in request.sources]
        self.schedule = json.dumps(request.ladder.schedule.model_dump(mode="json"))

    def __call__(self) -> None:
        """Runs the part. Exits the process if it fails, or if SLURM warns or terminates it."""
        from submitit.core.utils import UncompletedJobError

        requeue = signal.getsignal(signal.SIGUSR2)
        assert callable(requeue), "submitit waits for another signal than SIGUSR2"
        signals.install_handlers((signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2))
        try:
            try:
                self._run()
            except signals.Stopped as stop:
                # All files are closed, and no worker is left. submitit counts the time-outs, pickles `checkpoint()`
                # and requeues the job.
                for number in signals.STOPS:
                    signal.signal(number, signal.SIG_IGN)
                if stop.number == signal.SIGTERM and not _runs_on():
                    sys.exit(stop.exit_code)
                try:
                    requeue(signal.SIGUSR2, None)
                except UncompletedJobError:  # submitit raises it after the last time-out that it may follow
                    most = json.loads(self.schedule)["launch"]["slurm"]["max_requeues"]
                    raise Failure(
                        "this job has reached its time limit and was not queued again, because "
                        f"launch.slurm.max_requeues is {most}; submit the run again to resume"
                    ) from None
                except subprocess.SubprocessError as error:  # scontrol failed, or a busy controller did not answer
                    reason = str(error).removesuffix(".")
                    raise Failure(
                        f"SLURM could not requeue this job: {reason}; submit the run again to resume"
                    ) from error
        except (UserError, Failure, OSError) as error:
            say(f"growctl: {error}", error=True)
            sys.exit(2 if isinstance(error, UserError) else 1)
        except Exception as error:
            report_bug(error, Path(self.runs_dir), print_traceback=True)  # into the job's log
            sys.exit(1)

    def checkpoint(self) -> "DelayedSubmission":
        """What submitit starts when the job is requeued: the same part."""
        from submitit.core.utils import DelayedSubmission

        return DelayedSubmission(self)

    def _run(self) -> None:
        from growctl.ladder.load import parse_schedule
        from growctl.run.ladder import run_part
        from growctl.run.screen import Screen
        from growctl.text.console import Terminal

        schedule = parse_schedule(json.loads(self.schedule), label=self.label, default_name=self.ladder)
        runs_dir, sources = Path(self.runs_dir), [Path(source) for source in self.sources]
        request = LadderRequest.of(schedule, self.label, runs_dir, self.ladder, True, sources, overrides=self.overrides)
        run_part(request, self.name, self.last_stage, Screen(Terminal(), timestamps=True))


def _runs_on() -> bool:
    """Whether SLURM will run this job again (it was pre-empted) or not (it was cancelled).

    Asks a busy controller again, for as long as SLURM usually waits before it kills a job.
    """
    for pause in ASK_AGAIN_SECONDS:
        with suppress(Failure):
            return _kept()
        time.sleep(pause)
    return _kept()


def _kept() -> bool:
    from submitit.slurm.slurm import SlurmJobEnvironment

    own = SlurmJobEnvironment().job_id  # of a task of an array: 12_3, which is what squeue calls it
    return job_states([own]) == {own: "RUNNING"}
