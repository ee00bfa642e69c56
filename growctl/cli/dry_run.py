"""`growctl run --dry-run`: prints what a run would start, from the run's own code, and writes nothing."""

import os
import shlex
from collections.abc import Iterator

from growctl.ladder.releases import paths_of, plan_run
from growctl.ladder.stage_plans import StagePlan
from growctl.launch.local import Local
from growctl.launch.machines import Launch, LaunchError, Machines
from growctl.launch.resolve import machines_of
from growctl.plan.start_line import start_line
from growctl.queue.submit import check_slurm, job_executor, job_paths, nothing_to_submit, plan_jobs
from growctl.run.history import StageHistory
from growctl.run.requests import LadderRequest, RunRequest, left_to_train
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
    launch, machines = schedule.launch, machines_of(schedule)
    requests = request.checked(machines)
    if launch.cluster == "slurm":
        check_slurm(launch)
        yield from _jobs(request, requests, machines)
    else:
        for run in requests:
            yield f"# {run.name}: {f'control ({run.control})' if run.control else 'ladder'}"
            if line := start_line(run.schedule):
                yield f"# {line}"
            left = left_to_train(run.schedule, request.directory(run))
            for plan in plan_run(run.schedule, request.steps_done(run)):
                if plan not in left:
                    yield f"\n## stage {plan.name}: done"
                elif request.trains(plan.index):
                    yield from _stage(request, run, plan, machines)
            yield ""
    if isinstance(machines, Local):
        yield "# The port after the number of ranks is free now. A run picks a port that is free when it starts."
    if launch.devices == "auto" and isinstance(machines, Local):
        found = "GPUs" if machines.gpus else "ranks on the CPU, because there is no GPU"
        yield f"# launch.devices = auto: {machines.devices} {found} on this machine"
    elif launch.devices == "auto":
        yield f"# launch.devices = auto: the {machines.devices} slots of each host"
    try:
        machines.check(request.runs_dir)
    except LaunchError as error:
        yield f"# The run cannot start on this machine. {error}"


def _jobs(request: LadderRequest, requests: list[RunRequest], machines: Machines) -> Iterator[str]:
    folder = job_paths(request).jobs_folder
    jobs = plan_jobs(request, requests)
    if not jobs:
        yield f"# {nothing_to_submit(request)}"
    for job in jobs:
        # Only sbatch's answer contains the job's id, so a placeholder stands for it.
        dependency = f"ID-OF-{job.after}" if job.after else None
        executor = job_executor(job, folder, dependency)
        yield f"# job {job.name}: sbatch {folder}/JOB-ID_submission.sh"
        yield executor._make_submission_file_text(executor._submitit_command_str, "")
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
