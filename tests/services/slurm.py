"""SLURM: a tiny ladder as real jobs, which are pre-empted, lose nodes, expire and are cancelled."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.growctl.runs import final_hashes, losses
from tests.services.processes import require, wait_until
from tests.services.slurm_cluster import Cluster, start


@pytest.fixture(scope="module")
def started(training: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    programs = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "munged")
    require("apt-get install slurmctld slurmd slurm-client munge", *programs)
    with start(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def cluster(started: Cluster) -> Cluster:
    """A cluster without jobs, all of whose nodes are up."""
    started.tidy()
    return started


def test_stages_are_jobs_on_their_own_nodes_and_are_submitted_once(cluster: Cluster) -> None:
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


@pytest.mark.parametrize("partition", ["batch", "grace"], ids=["without grace time", "with grace time"])
def test_a_preempted_job_saves_and_resumes_to_the_same_bits(cluster: Cluster, partition: str) -> None:
    name = f"preempted_{partition}"
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
    print("SLURM signalled the runner:", "stopping: the workers save first" in cluster.log(job))


def test_a_job_that_loses_a_node_is_queued_again_and_resumes_to_the_same_bits(cluster: Cluster) -> None:
    """First the node without the runner, then that with it."""
    [job] = cluster.submit("dies", seconds_per_step=0.3)
    for stage, node in (("0-small", "node2"), ("1-large", "node1")):
        cluster.wait_for_step("dies", stage, 15)
        began = time.monotonic()
        cluster.kill_node(node)
        cluster.wait_for(job, "PENDING")
        print(f"{node} is missed after {time.monotonic() - began:.0f} s")
        status = cluster.status("dies")
        assert status["state"] in ("stopped", "failed"), status  # failed: rank 0 reported a lost connection
        cluster.start_node(node)
        cluster.wait_for(job, "RUNNING")
    cluster.wait_for(job, "COMPLETED")
    times = int(cluster.job(job)["Restarts"])
    assert times >= 2, times  # a node that is back may still get SLURM's order to end the job that it had before
    _check_same(cluster.folder / "dies/tiny", cluster.two_ranks)


def test_a_job_that_reaches_its_time_limit_is_queued_again_as_often_as_it_may(cluster: Cluster) -> None:
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


def test_a_cancelled_job_is_never_queued_again_and_a_second_run_finishes_it(cluster: Cluster) -> None:
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


def _take_all_nodes(cluster: Cluster) -> str:
    """The id of a job of higher priority that uses all nodes until it is cancelled."""
    options = ["--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep infinity"]
    return cluster.slurm("sbatch", "--parsable", *options).strip()


def _check_same(run: Path, expected: Path) -> None:
    """Checks that two ladders ended in the same bits, with the same losses on the way."""
    assert final_hashes(run) == final_hashes(expected), f"{run} differs from {expected}"
    assert losses(run) == losses(expected), f"the losses of {run} differ from those of {expected}"
