"""Compares growth policies by loss jump and end-of-stage loss at equal base, data, order and FLOPs.

    python benchmarks/growth_policies.py run --seeds 0 1 2 --directory DIR    # real `growctl run`s; run again to resume
    python benchmarks/growth_policies.py table --directory DIR    # results/growth_policies.json, docs/growing.png

Every policy grows the same trained base. The base is trained once per seed and learning-rate schedule, and shared by
hard links. The `scratch` row trains the grown size from scratch for the same total FLOPs.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCHEDULE = HERE / "growth_policies.yaml"
RESULTS = HERE / "results" / "growth_policies.json"
PICTURE = HERE.parent / "docs" / "growing.png"
BASE = "stages/0-base"
COSINE = ("learning_rate.shape=cosine", "learning_rate.span=stage")

_HYDRA = threading.Lock()
"""hydra can compose only one schedule at a time in a process."""

MATCHED = "growth.init=matched"
POLICIES: dict[str, tuple[str, ...]] = {
    "random, ramp 2 %": ("growth.init=random",),
    "matched, ramp 2 %": (MATCHED,),
    "official": ("growth.preset=official", "learning_rate.shape=wsd", "learning_rate.span=ladder"),
    "scratch": (),
    "paper-appendix (zero-key, frozen)": ("growth.preset=paper-appendix",),
    "zero-value, per-generation": ("growth.init=zero-value", "growth.tau=per-generation"),
    "copy, recompute": ("growth.init=copy", "growth.tau=recompute"),
    "matched, recompute": (MATCHED, "growth.tau=recompute", "growth.allow_jump=true"),
    "matched, ramp 10 %": (MATCHED, "growth.ramp=0.1"),
    "matched, ramp 2 %, moments reset": (MATCHED, "growth.moments=reset"),
    "zero-key, anneal 30 %": ("growth.init=zero-key", "growth.tau=anneal"),
    "matched, ramp 2 %, re-warm-up of all, 50 steps": (MATCHED, "growth.rewarmup={steps: 50, of: all}"),
    "matched, ramp 2 %, re-warm-up of new, 50 steps": (MATCHED, "growth.rewarmup={steps: 50, of: new}"),
    "random, recompute, moments kept": ("growth.init=random", "growth.tau=recompute", "growth.allow_jump=true"),
    "matched, ramp 2 %, old at half the rate": (MATCHED, "growth.lr_scale=[1.0, 0.5]"),
    "matched, ramp 2 %, old frozen for 100 steps": (MATCHED, "growth.old_tokens={freeze_for: 100}"),
    "matched, ramp 2 %, old frozen": (MATCHED, "growth.old_tokens=freeze"),
    "copy, recompute, noise 0.5": (
        *("growth.init=copy", "growth.tau=recompute", "growth.copy_noise=0.5", "growth.allow_jump=true"),
    ),
    "random, ramp 10 %": ("growth.init=random", "growth.ramp=0.1"),
    "matched, per-generation": (MATCHED, "growth.tau=per-generation", "growth.allow_jump=true"),
    "matched, ramp 5 %": (MATCHED, "growth.ramp=0.05"),
    "matched, ramp 20 %": (MATCHED, "growth.ramp=0.2"),
    "scratch, peak rate 4e-3": ("learning_rate.peak=4e-3",),
    "official, cosine in each stage": ("growth.preset=official", *COSINE),
    "matched, ramp 2 %, cosine in each stage": (MATCHED, *COSINE),
}


def run_name(policy: str, seed: int) -> str:
    """The run's name: the policy's letters and digits, then the seed."""
    words = "".join(c if c.isalnum() else " " for c in policy).split()
    return f"{'-'.join(words)}-seed{seed}"


def overrides(policy: str, seed: int) -> list[str]:
    """The policy's overrides of the schedule."""
    return [f"seed={seed}", *POLICIES[policy]]


def run(policy: str, seed: int, directory: Path) -> None:
    """Starts one real run; reuses the base of this seed and learning-rate schedule if it is trained already."""
    from growctl.ladder.controls import plan_controls
    from growctl.ladder.load import load_schedule
    from growctl.run.requests import schedule_yaml
    from growctl.runs_dir import RunPaths

    name = run_name(policy, seed)
    with _HYDRA:
        schedule = load_schedule(str(SCHEDULE), overrides(policy, seed)).model_copy(update={"name": name})
    home = directory / name
    base = directory / f".base-{schedule.learning_rate.shape}-seed{seed}"
    arguments = overrides(policy, seed)
    if policy.startswith("scratch"):
        [control] = plan_controls(schedule)
        steps = control.schedule.stages[0].train_steps
        stage = f"stages=[{{name: grown, attention_tokens: 64, ffn_tokens: 256, train_steps: {steps}}}]"
        arguments += [stage, "controls=[]"]
    elif not home.exists() and base.exists():
        RunPaths(home).stages.mkdir(parents=True)
        subprocess.run(["cp", "-al", str(base), str(home / BASE)], check=True)
        RunPaths(home).schedule.write_text(schedule_yaml(schedule))
    command = [sys.executable, "-m", "growctl.cli.app", "run", str(SCHEDULE), *arguments]
    command += ["--name", name, "--runs-dir", str(directory), "--no-controls"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (directory / f"{name}.log").open("ab") as log:
        code = subprocess.run(command, stdout=log, stderr=log, env=environment).returncode
    if code == 0 and not base.exists() and not policy.startswith("scratch"):
        kept = base.with_name(f"{base.name}-of-{name}")
        subprocess.run(["cp", "-al", str(home / BASE), str(kept)], check=True)
        kept.rename(base)
    print(f"{datetime.now(UTC):%H:%M:%S} {name}: exit code {code}", flush=True)


def run_all(seeds: list[int], directory: Path, workers: int) -> None:
    """Runs every policy and seed, starting with the runs that train a base."""
    directory.mkdir(parents=True, exist_ok=True)
    first = ["random, ramp 2 %", "official, cosine in each stage"]  # one per learning-rate schedule
    with ThreadPoolExecutor(workers) as pool:
        list(
            pool.map(lambda job: run(job[0], job[1], directory), [(policy, seed) for policy in first for seed in seeds])
        )
        rest = [(policy, seed) for policy in POLICIES if policy not in first for seed in seeds]
        list(pool.map(lambda job: run(job[0], job[1], directory), rest))


def result(policy: str, seed: int, directory: Path) -> dict[str, Any] | None:
    """Jump and final loss (nats) and total FLOPs of one run; None if it has not finished."""
    from growctl.runs.find import find_runs
    from model.errors import UserError

    try:
        [found] = find_runs(directory, [run_name(policy, seed)])
    except UserError:
        return None
    if found.final_loss is None:
        return None
    stage = found.stages[-1]
    return {"jump": stage.jump, "loss": found.final_loss, "flops": found.cumulative_flops}


def table(seeds: list[int], directory: Path) -> None:
    """Writes the finished runs to the results file, draws them, and prints a Markdown table, best policy first."""
    rows: list[dict[str, Any]] = []
    for policy in POLICIES:
        results = {seed: result(policy, seed, directory) for seed in seeds}
        done = {seed: found for seed, found in results.items() if found}
        if done:
            losses = [found["loss"] for found in done.values()]
            jumps = [found["jump"] for found in done.values() if found["jump"] is not None]
            rows.append(
                {
                    "policy": policy,
                    "overrides": list(POLICIES[policy]),
                    "jump": statistics.mean(jumps) if jumps else None,
                    "loss": statistics.mean(losses),
                    "spread": max(losses) - min(losses),
                    "by_seed": {str(seed): found for seed, found in done.items()},
                }
            )
    rows.sort(key=lambda row: row["loss"])
    document = {
        "schedule": SCHEDULE.name,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": {package: version(package) for package in ("torch", "deepspeed")},
        "python": platform.python_version(),
        "rows": rows,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    draw(rows)
    print("| policy | jump, nats | loss at the end | by seed |")
    print("|---|---|---|---|")
    for row in rows:
        by_seed = ", ".join(f"{found['loss']:.4f}" for found in row["by_seed"].values())
        jump = "-" if row["jump"] is None else f"{row['jump']:+.4f}" if abs(row["jump"]) > 1e-6 else "0"
        print(f"| {row['policy']} | {jump} | {row['loss']:.4f} | {by_seed} |")


def draw(rows: list[dict[str, Any]]) -> None:
    """Draws one dot per seed and a bar at the mean, best policy on top; dots are filled if the growth was exact."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.32 * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        losses = [found["loss"] for found in row["by_seed"].values()]
        scratch, kept = row["jump"] is None, row["jump"] is not None and abs(row["jump"]) < 1e-6
        colour = "#777777" if scratch else "#1f6f8b" if kept else "#c8553d"
        axes.plot(losses, [place] * len(losses), "o", color=colour, markerfacecolor=colour if kept else "none")
        axes.plot([row["loss"]], [place], "|", color=colour, markersize=14)
    axes.set_yticks(range(len(rows)), [row["policy"] for row in rows])
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("validation loss at the end, nats a token; equal FLOPs, a dot a seed")
    axes.set_title("filled: exact at growth; open red: jumps; grey: from scratch", fontsize=9)
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    """Runs the command on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2, help="number of simultaneous runs, each on one core")
    arguments = parser.parse_args()
    if arguments.what == "run":
        run_all(arguments.seeds, arguments.directory.resolve(), arguments.workers)
    else:
        table(arguments.seeds, arguments.directory.resolve())


if __name__ == "__main__":
    main()
