"""SLURM: a tiny ladder as real jobs, which are pre-empted, lose nodes, expire and are cancelled."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.growctl.runs import final_hashes, losses
from tests.services.processes import wait_until
from tests.services.service import Service
from tests.services.slurm_cluster import Cluster, start


def a_job_per_stage(cluster: Cluster) -> str:
    urgent = _take_all_nodes(cluster)
    launch = ("launch.slurm.job=stage", "launch.nodes=[1,2]")
    small, large = cluster.submit("stages", *launch)
    status = cluster.status("stages")
    assert (status["state"], status["jobs"]) == ("not started", {"tiny.small": small, "tiny.large": large}), status
    told = cluster.submitted("stages", *launch, code=2)
    assert f"{small} (tiny.small, PENDING), {large} (tiny.large, PENDING)" in told, told
    assert cluster.job(large)["Dependency"] == f"afterok:{small}(unfulfilled)", cluster.job(large)
    cluster.slurm("scancel", urgent)
    assert cluster.wait_for(small, "COMPLETED")["NumNodes"] == "1"
    assert cluster.wait_for(large, "COMPLETED")["NumNodes"] == "2"
    _check_same(cluster.folder / "stages/tiny", cluster.one_rank_then_two)
    assert cluster.status("stages")["state"] == "finished"
    return "1, then 2 nodes; nothing was submitted twice; the same bits as without SLURM"


def preemption(cluster: Cluster, partition: str, name: str) -> str:
    [job] = cluster.submit(name, f"launch.slurm.partition={partition}", seconds_per_step=0.3)
    cluster.wait_for_step(name, "0-small", 15)
    urgent = _take_all_nodes(cluster)
    cluster.wait_for(job, "PENDING")
    cluster.wait_for(urgent, "RUNNING")
    status = cluster.status(name)
    assert status["state"] == "stopped", status
    step = status["stages"][0]["step"]
    assert status["stages"][0]["checkpoint"] == f"step_{step:08}", status
    cluster.slurm("scancel", urgent)
    found = cluster.wait_for(job, "COMPLETED")
    assert (found["NumNodes"], found["Restarts"]) == ("2", "1"), found
    _check_same(cluster.folder / name / "tiny", cluster.two_ranks)
    assert "there is nothing to submit" in cluster.submitted(name)
    signalled = "the runner" if "stopping: the workers save first" in cluster.log(job) else "the workers alone"
    return f"SLURM signalled {signalled}; saved at step {step}, resumed; the same bits as without SLURM"


def a_node_dies(cluster: Cluster) -> str:
    """First the node without the runner, then that with it."""
    [job] = cluster.submit("dies", seconds_per_step=0.3)
    seen = []
    for stage, node in (("0-small", "node2"), ("1-large", "node1")):
        cluster.wait_for_step("dies", stage, 15)
        began = time.monotonic()
        cluster.kill_node(node)
        cluster.wait_for(job, "PENDING")
        seen.append(f"{node} after {time.monotonic() - began:.0f} s")
        status = cluster.status("dies")
        assert status["state"] in ("stopped", "failed"), status  # failed: rank 0 reported a lost connection
        cluster.start_node(node)
        cluster.wait_for(job, "RUNNING")
    cluster.wait_for(job, "COMPLETED")
    times = int(cluster.job(job)["Restarts"])
    assert times >= 2, times  # a node that is back may still get SLURM's order to end the job that it had before
    _check_same(cluster.folder / "dies/tiny", cluster.two_ranks)
    return f"noticed {', '.join(seen)}; queued again {times} times, resumed; the same bits as without SLURM"


def an_expired_job(cluster: Cluster) -> str:
    """Two ladders at once, each on a node: one may be queued again, the other may not."""
    limits = ("launch.nodes=1", "launch.slurm.time_limit=2m", "launch.slurm.warn_before=1m")
    [requeued] = cluster.submit("expired", *limits, seconds_per_step=1.0)
    [final] = cluster.submit("expired_once", *limits, "launch.slurm.max_requeues=0", seconds_per_step=1.0)
    cluster.wait_for(final, "FAILED")
    log = cluster.log(final)
    assert "reached its time limit" in log, log
    assert "Traceback" not in log, log
    status = cluster.status("expired_once")
    assert status["state"] == "stopped", status
    cluster.wait_for(requeued, "COMPLETED")
    assert int(cluster.job(requeued)["Restarts"]) >= 1, cluster.job(requeued)
    assert "99 remaining timeouts" in cluster.log(requeued), cluster.log(requeued)
    [again] = cluster.submit("expired_once", "launch.nodes=1")
    cluster.wait_for(again, "COMPLETED")
    _check_same(cluster.folder / "expired/tiny", cluster.folder / "expired_once/tiny")
    return "saved, queued again, finished; with max_requeues=0: saved, failed, finished by a second `growctl run`"


def scancel(cluster: Cluster) -> str:
    [job] = cluster.submit("cancelled", seconds_per_step=0.3)
    cluster.wait_for_step("cancelled", "0-small", 15)
    cluster.slurm("scancel", job)
    cluster.wait_for(job, "CANCELLED")
    wait_until(lambda: cluster.status("cancelled")["state"] == "stopped", "growctl has ended")
    time.sleep(15)
    assert cluster.job(job)["JobState"] == "CANCELLED"
    assert cluster.job(job)["Restarts"] == "0"
    status = cluster.status("cancelled")
    assert status["state"] == "stopped", status
    [again] = cluster.submit("cancelled")
    cluster.wait_for(again, "COMPLETED")
    _check_same(cluster.folder / "cancelled/tiny", cluster.two_ranks)
    return f"stopped at step {status['stages'][0]['step']}, never queued again; a second `growctl run` finished it"


def _take_all_nodes(cluster: Cluster) -> str:
    """The id of a job of higher priority that uses all nodes until it is cancelled."""
    options = ["--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep infinity"]
    return cluster.slurm("sbatch", "--parsable", *options).strip()


def _check_same(run: Path, expected: Path) -> None:
    """Checks that two ladders ended in the same bits, with the same losses on the way."""
    assert final_hashes(run) == final_hashes(expected), f"{run} differs from {expected}"
    assert losses(run) == losses(expected), f"the losses of {run} differ from those of {expected}"


def _alone(check: Callable[[Cluster], str], cluster: Cluster) -> str:
    """Runs a check on a cluster without jobs, all of whose nodes are up."""
    cluster.tidy()
    return check(cluster)


_CHECKS: dict[str, Callable[[Cluster], str]] = {
    "one job per stage": a_job_per_stage,
    "pre-emption without grace time": partial(preemption, partition="batch", name="preempted"),
    "pre-emption with grace time": partial(preemption, partition="grace", name="preempted_with_grace"),
    "a node dies": a_node_dies,
    "jobs reach their time limit": an_expired_job,
    "scancel": scancel,
}

SERVICE = Service(
    programs=("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "munged"),
    modules=(),
    install="apt-get install slurmctld slurmd slurm-client munge",
    start=start,
    checks={name: partial(_alone, check) for name, check in _CHECKS.items()},
)
