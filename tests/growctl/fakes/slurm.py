"""A fake SLURM of one machine: sbatch, squeue, scontrol, scancel and srun.

Run it as `slurm.py PROGRAM ARGUMENT...`.

Jobs run here at once, each followed by a process of its own, which `sbatch` leaves behind. What is known of a job lies
in $FAKE_SLURM/ID: `options.json`, `script.sh`, `state`, `pid` (the batch script), `tasks` (srun's processes), `starts`,
and `follower` as long as the job is followed.
A task of a job array is a job of its own, ID_TASK.
As long as there is a file $FAKE_SLURM/hold, jobs stay in the queue. sbatch refuses a job whose name contains
$FAKE_SLURM_REFUSE.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HOME = Path(os.environ.get("FAKE_SLURM", "/nonexistent"))
LIVING = ("PENDING", "RUNNING", "REQUEUED")
PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel", "srun")


def put(job: Path, name: str, text: object) -> None:
    """Writes a file whole: others read it at any time."""
    (job / f"{name}.new").write_text(str(text))
    (job / f"{name}.new").rename(job / name)


def state(job: Path) -> str:
    return (job / "state").read_text() if (job / "state").exists() else ""


def sbatch(script: str) -> int:
    lines = [line.removeprefix("#SBATCH ") for line in Path(script).read_text().splitlines() if line[:8] == "#SBATCH "]
    words = [word.removeprefix("--") for word in shlex.split(" ".join(lines))]
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        options[name] = value if equals else True
    refused = os.environ.get("FAKE_SLURM_REFUSE")
    if refused and refused in options["job-name"]:
        print("sbatch: error: Batch job submission failed: Invalid account specified", file=sys.stderr)
        return 1
    number = 101
    while (HOME / str(number)).exists() or list(HOME.glob(f"{number}_*")):
        number += 1
    tasks, _, last = options.get("array", "").partition("%")[0].partition("-")
    names = [f"{number}_{task}" for task in range(int(tasks), int(last) + 1)] if tasks else [str(number)]
    for name in names:
        queue(HOME / name, options, script)
    print(f"Submitted batch job {number}")
    return 0


def queue(job: Path, options: dict[str, Any], script: str) -> None:
    job.mkdir()
    put(job, "options.json", json.dumps(options))
    put(job, "script.sh", Path(script).read_text())
    put(job, "state", "PENDING")
    put(job, "follower", "")
    with open(os.devnull, "r+b") as null:
        subprocess.Popen(
            [sys.executable, __file__, "follow", job.name], start_new_session=True, stdin=null, stdout=null, stderr=null
        )


def follow(number: str) -> int:
    """One job, from the queue to its end."""
    try:
        run_job(HOME / number)
    finally:
        (HOME / number / "follower").unlink()
    return 0


def run_job(job: Path) -> None:
    options = json.loads((job / "options.json").read_text())
    array, _, task = job.name.partition("_")
    kind, *before = options.get("dependency", "").split(":")
    while (HOME / "hold").exists() or any(state(HOME / other) in LIVING for other in before):
        time.sleep(0.05)
        if state(job) == "CANCELLED":
            return
    if kind == "afterok" and any(state(HOME / other) != "COMPLETED" for other in before):
        put(job, "state", "CANCELLED")
        return
    nodes = int(options["nodes"])
    environment = {
        "SLURM_JOB_ID": array + task,
        **({"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": task} if task else {}),
        "FAKE_SLURM_JOB": job.name,
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_JOB_NODELIST": ",".join(["localhost", *(f"node{i}" for i in range(2, nodes + 1))]),
    }
    starts = 0
    while state(job) == "PENDING":
        starts += 1
        put(job, "starts", starts)
        with open(options["output"].replace("%j", job.name).replace("%A_%a", job.name), "ab") as output:
            batch = subprocess.Popen(
                ["bash", job / "script.sh"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | environment,
                start_new_session=True,
            )
        put(job, "pid", batch.pid)
        put(job, "state", "RUNNING")
        code = batch.wait()
        if state(job) == "RUNNING":
            put(job, "state", "COMPLETED" if code == 0 else "FAILED")
        elif state(job) == "REQUEUED":
            put(job, "state", "PENDING")


def jobs(*ids: str) -> list[Path]:
    """The jobs with these ids; that of an array stands for all its tasks."""
    return [job for number in ids for job in [HOME / number, *sorted(HOME.glob(f"{number}_*"))] if job.exists()]


def squeue(*arguments: str) -> int:
    [listed] = [word.removeprefix("--jobs=") for word in arguments if word.startswith("--jobs=")]
    known = jobs(*listed.split(","))
    if not known:
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    for job in known:
        if state(job) in LIVING:
            print(job.name, state(job).replace("REQUEUED", "PENDING"))
    return 0


def scontrol(action: str, number: str) -> int:
    assert action == "requeue"
    put(HOME / number, "state", "REQUEUED")
    send(HOME / number, signal.SIGTERM, True, True)
    return 0


def scancel(*arguments: str) -> int:
    """Ends jobs; with --signal=NAME only signals them: the batch script with --batch, its steps without."""
    numbers = [word for word in arguments if word[0].isdigit()]
    name = next((word.removeprefix("--signal=") for word in arguments if word.startswith("--signal=")), None)
    for job in jobs(*numbers):
        if name:
            send(job, signal.Signals[f"SIG{name}"], "--batch" in arguments, "--batch" not in arguments)
            continue
        was = state(job)
        put(job, "state", "CANCELLED")
        if was == "RUNNING":
            send(job, signal.SIGTERM, True, True)
    return 0


def send(job: Path, number: signal.Signals, batch: bool, steps: bool) -> None:
    names = ["pid"] * batch + ["tasks"] * steps
    for pid in " ".join((job / name).read_text() for name in names if (job / name).exists()).split():
        try:
            os.kill(int(pid), number)
        except ProcessLookupError:
            continue


def srun(*arguments: str) -> int:
    words = list(arguments)
    options = {}
    while words[0].startswith("--"):
        name, _, value = words.pop(0).partition("=")
        options[name] = value
    nodes, per_node, tasks = (int(options[f"--{name}"]) for name in ("nodes", "ntasks-per-node", "ntasks"))
    if nodes > int(os.environ["SLURM_JOB_NUM_NODES"]) or tasks != nodes * per_node:
        print("srun: error: Unable to create step: More processors requested than permitted", file=sys.stderr)
        return 1
    started = []
    for rank in range(tasks):
        place = {"PROCID": rank, "LOCALID": rank % per_node, "NODEID": rank // per_node, "STEP_NUM_TASKS": tasks}
        place |= {"STEP_ID": 0}
        environment = os.environ | {f"SLURM_{name}": str(value) for name, value in place.items()}
        started.append(subprocess.Popen(words, env=environment))
    put(HOME / os.environ["FAKE_SLURM_JOB"], "tasks", " ".join(str(task.pid) for task in started))
    while any(task.poll() is None for task in started):
        if any(task.poll() for task in started):
            for task in started:
                task.kill()
        time.sleep(0.05)
    (HOME / os.environ["FAKE_SLURM_JOB"] / "tasks").unlink()
    return max(code if code >= 0 else 128 - code for code in (task.wait() for task in started))


if __name__ == "__main__":
    sys.exit(globals()[sys.argv[1]](*sys.argv[2:]))
