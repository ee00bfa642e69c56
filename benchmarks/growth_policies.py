"""Compares growth policies by loss jump and end-of-stage loss at equal base, data, order and FLOPs.

    python -m benchmarks.growth_policies run --directory DIR [--seeds 0 1 2] [--only PATTERN]
    python -m benchmarks.growth_policies table --directory DIR    # results/growth_policies.json

Every policy grows the same trained base, one for each seed and learning-rate schedule. The `scratch` row trains the
grown size from scratch for the same total FLOPs.
"""

import statistics
from pathlib import Path

from benchmarks import rows
from benchmarks.rows import Row

HERE = Path(__file__).resolve().parent
SCHEDULE = HERE / "growth_policies.yaml"
RESULTS = HERE / "results" / "growth_policies.json"
COSINE = ("learning_rate.shape=cosine", "learning_rate.span=stage")

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


def row(policy: str) -> Row:
    """The policy as a row: its words, without signs, are its runs' name."""
    words = "".join(c if c.isalnum() else " " for c in policy).split()
    given = POLICIES[policy]
    overrides = (*given, *_scratch_stage()) if policy.startswith("scratch") else given
    return Row("-".join(words), str(SCHEDULE), overrides, facts={"policy": policy, "overrides": given})


def _scratch_stage() -> list[str]:
    """The overrides that train the grown size from scratch for the FLOPs of both stages, as the control does."""
    from growctl.ladder.controls import plan_controls
    from growctl.ladder.load import load_schedule

    [control] = plan_controls(load_schedule(str(SCHEDULE)))
    steps = control.schedule.stages[0].train_steps
    return [f"stages=[{{name: grown, attention_tokens: 64, ffn_tokens: 256, train_steps: {steps}}}]", "controls=[]"]


def table(directory: Path) -> None:
    """Writes the finished runs to the results file, best policy first."""
    document = rows.collect([row(policy) for policy in POLICIES], directory, schedule=SCHEDULE.name)
    for found in document["rows"]:
        losses = [outcome["loss"] for outcome in found["by_seed"].values()]
        jumps = [jump for outcome in found["by_seed"].values() for jump in outcome["jumps"]]
        found |= {"jump": statistics.mean(jumps) if jumps else None, "loss": statistics.mean(losses)}
    document["rows"].sort(key=lambda found: found["loss"])
    rows.write(RESULTS, document)


def main() -> None:
    """Runs the command on the command line."""
    arguments = rows.parser(__doc__).parse_args()
    if arguments.what == "run":
        rows.run([row(policy) for policy in POLICIES], arguments)
    else:
        table(arguments.directory.resolve())


if __name__ == "__main__":
    main()
