"""`growctl run --dry-run`: prints what a run would start, from the run's own code, and writes nothing."""

import os
import shlex
from collections.abc import Iterator

from growctl.ladder.plan import start_line
from growctl.ladder.stage_plans import StagePlan, paths_of, plan_run
from growctl.launch.machines import Launch, LaunchError, Machines
from growctl.launch.resolve import machines_of
from growctl.launch.slurm import script
from growctl.run.attempt import StageHistory
from growctl.run.requests import LadderRequest, RunRequest, left_to_train
from growctl.run.slurm_jobs import jobs_folder, jobs_of, nothing_to_submit
from growctl.runs_dir import RunPaths
from stages.counted import counted


def dry_run_text(request: LadderRequest) -> str:
    """Everything that `growctl run` would start for the unfinished part of a ladder and its controls.

    Raises the errors that `growctl run` would raise before it starts. If this machine lacks something that the run
    needs, the text says so instead.
    """
    return "\n".join(_lines(request))


def _lines(request: LadderRequest) -> Iterator[str]:
    schedule = request.ladder.schedule
    machines = machines_of(schedule)
    requests = request.checked(machines)
    if schedule.launch.cluster == "slurm":
        yield from _jobs(request, machines)
    else:
        for run in requests:
            peak = ", at the peak that the runs above find best" if run.awaits else ""
            yield f"# {run.name}: {f'control ({run.control})' if run.control else 'ladder'}{peak}"
            if line := start_line(run.schedule):
                yield f"# {line}"
            left = left_to_train(run.schedule, request.directory(run))
            for plan in plan_run(run.schedule, request.steps_done(run)):
                if plan not in left:
                    yield f"\n## stage {plan.name}: done"
                elif request.trains(plan.index):
                    yield from _stage(request, run, plan, machines)
            yield ""
    try:
        machines.check(request.runs_dir)
    except LaunchError as error:
        yield f"# The run cannot start on this machine. {error}"


def _jobs(request: LadderRequest, machines: Machines) -> Iterator[str]:
    jobs, folder = jobs_of(request), jobs_folder(request)
    if not jobs:
        yield f"# {nothing_to_submit(request)}"
    for job in jobs:
        yield f"# job {job.name}: sbatch {folder}/JOB-ID_submission.sh"
        afterok = ":".join(["afterok", *(f"ID-OF-{name}" for name in job.after)])
        yield script(job.executor(folder, afterok if job.after else None))
        yield f"# in the job {job.name}, on its first machine:"
        for plan in job.stages:
            yield from _stage(request, job.request, plan, machines)
        yield ""


def _stage(request: LadderRequest, run: RunRequest, plan: StagePlan, machines: Machines) -> Iterator[str]:
    nodes = run.schedule.launch.nodes_of(plan.index)
    stage = paths_of(RunPaths(request.directory(run)), plan)
    history = StageHistory(stage.metrics).read_to_the_end()
    launch = machines.launch(stage.spec, nodes, attempt=1 + history.last_attempt)
    where = f"{counted(nodes, 'machine')} x {machines.devices} = " if nodes > 1 else ""
    yield f"\n## stage {plan.name}: {where}{counted(nodes * machines.devices, 'rank')}"
    yield from _launch(launch)


def _launch(launch: Launch) -> Iterator[str]:
    for path, content in launch.files.items():
        yield f"# {path}:"
        yield from (f"#   {line}" for line in content.splitlines())
    if launch.directory:
        yield f"cd {shlex.quote(str(launch.directory))}"
    added = {name: value for name, value in launch.environment.items() if os.environ.get(name) != value}
    yield from (f"export {name}={shlex.quote(value)}" for name, value in added.items())
    yield shlex.join(launch.command)
