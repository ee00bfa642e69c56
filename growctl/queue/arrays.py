"""Submits the runs of a set (`run --seeds`, `sweep`) to SLURM: as job arrays where they ask for the same jobs.

Runs whose chains of jobs are alike share one array for each place in the chain. Task i is the job of run number i, and
waits for task i of an earlier array (`aftercorr`). So each run advances, fails and is queued again by itself. A run
that asks for other jobs than the others, for example because it has finished a stage, keeps a chain of its own.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from growctl.launch.machines import plain_path
from growctl.queue.submit import (
    AlreadySubmitted,
    Chain,
    Job,
    Submitted,
    job_executor,
    machines_words,
    script,
    submit_chain,
    submit_jobs,
)
from growctl.run.requests import LadderRequest
from growctl.run.screen import Screen
from growctl.runs_dir import RunPaths, RunsPaths
from model.errors import Failure, UserError

LARGEST_ARRAY = 500
"""The most tasks of one array. SLURM allows 1000 unless the cluster's MaxArraySize says otherwise, and a lock file is
open for each while they are submitted."""


@dataclass(frozen=True)
class Bundle:
    """Chains of different runs that ask SLURM for the same jobs, in the order of the array's tasks; at least one."""

    chains: tuple[Chain, ...]

    @property
    def tasks(self) -> int:
        """The number of tasks of each array. A single one is no array."""
        return len(self.chains)

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """A job for each place in the chain, called after the set."""
        return self.chains[0].jobs if self.tasks == 1 else _of_set(self.chains[0])

    @property
    def folder(self) -> Path:
        """The folder of scripts, pickles and logs: of the run, or of the set's arrays."""
        return self.chains[0].run.jobs_folder if self.tasks == 1 else _folder(self.chains[0])

    @property
    def names(self) -> list[str]:
        """The names of the runs."""
        return [chain.name for chain in self.chains]


def bundles(chains: Sequence[Chain]) -> list[Bundle]:
    """`chains` of one set, by what they ask SLURM for, each bundle where its first one stands."""
    alike: dict[tuple[object, ...], list[Chain]] = {}
    for chain in chains:
        alike.setdefault(_shape(chain), []).append(chain)
    return [
        Bundle(tuple(found[start : start + LARGEST_ARRAY]))
        for found in alike.values()
        for start in range(0, len(found), LARGEST_ARRAY)
    ]


def submit_set(requests: Sequence[LadderRequest], screen: Screen) -> dict[str, str]:
    """Submits the jobs of runs of one set that are not finished; returns why some could not be submitted, by name.

    Runs whose jobs are queued or running are left out. If SLURM rejects a job, those submitted for the same runs are
    cancelled.
    """
    failures: dict[str, str] = {}

    def succeeds(names: Sequence[str], act: Callable[..., object], *arguments: object) -> bool:
        try:
            act(*arguments)
        except AlreadySubmitted as error:
            screen.message(f"{', '.join(names)}: {error}")
            return False
        except (UserError, Failure) as error:
            failures.update(dict.fromkeys(names, str(error)))
            screen.message(f"{', '.join(names)}: failed: {error}")
            return False
        return True

    chains: list[Chain] = []

    def plan(request: LadderRequest) -> None:
        chain = Chain.of(request)
        chain.check_queue()
        chains.append(chain)

    for request in requests:
        succeeds([request.ladder.name], plan, request)
    for bundle in bundles(chains):
        with ExitStack() as locks:
            held = [chain for chain in bundle.chains if succeeds([chain.name], locks.enter_context, chain.held())]
            if held:
                ready = Bundle(tuple(held))
                succeeds(ready.names, _submit, ready, screen)
    return failures


def _submit(bundle: Bundle, screen: Screen) -> None:
    """Submits chains that are held, and prints a line for each job or array."""
    if bundle.tasks == 1:
        submit_chain(bundle.chains[0], screen)
        return
    bundle.folder.mkdir(parents=True, exist_ok=True)
    submitted = submit_jobs(bundle.jobs, bundle.chains, bundle.folder)
    screen.message(f"{bundle.tasks} runs as job arrays, task 0 first: {', '.join(bundle.names)}")
    for array in submitted:
        for chain, log in zip(bundle.chains, array.logs, strict=True):
            _link(chain.run, log)
        screen.message(_words(array, bundle))


def _words(array: Submitted, bundle: Bundle) -> str:
    limit = array.job.request.schedule.launch.slurm.array_limit
    asks = f"{bundle.tasks} jobs, each on {machines_words(array.job)}"
    at_once = f"; at most {limit} at once" if limit and limit < bundle.tasks else ""
    behind = f"; each after its job of {array.job.after}" if array.job.after else ""
    return f"array {array.number}: {array.job.name} ({asks}{at_once}{behind}); logs: {array.number}_*.out in each run"


def _link(run: RunPaths, log: Path) -> None:
    """Makes the log of an array's task visible where the other logs of its run are."""
    link = run.jobs_folder / log.name
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(log, link.parent))


def _shape(chain: Chain) -> tuple[object, ...]:
    """What a chain asks SLURM for, equal for chains that can be tasks of the same arrays."""
    slurm = chain.request.ladder.schedule.launch.slurm
    folder = _folder(chain)
    scripts = [script(job_executor(job, folder, job.after, tasks=2), tasks=2) for job in _of_set(chain)]
    return (slurm.max_requeues, slurm.array_limit, *scripts)


def _of_set(chain: Chain) -> tuple[Job, ...]:
    """The jobs of `chain`, with the set's name in place of the ladder's."""
    run_set = chain.request.ladder.run_set
    assert run_set is not None, f"{chain.name} belongs to no set"

    def named(job: str) -> str:
        return run_set.group + job.removeprefix(chain.name) if job.startswith(chain.name) else job

    return tuple(replace(job, name=named(job.name), after=job.after and named(job.after)) for job in chain.jobs)


def _folder(chain: Chain) -> Path:
    run_set = chain.request.ladder.run_set
    assert run_set is not None, f"{chain.name} belongs to no set"
    return plain_path(RunsPaths(chain.request.runs_dir).array_jobs(run_set.group), "the runs directory")
