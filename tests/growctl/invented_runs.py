"""Run directories with real ledgers and invented losses, for tests of code that reads them."""

import math
from pathlib import Path
from typing import Any

from growctl.analysis.find import find_runs
from growctl.ledger.ledger import BaseEntry, Ledger, RunEntry, StageEntry
from growctl.verdicts.compare import Comparison, compare
from growctl.verdicts.verdict import verdict
from model.flops import Flops

TOKENS_PER_STEP = 1000


def stage_of(name: str, num_parameters: int, num_steps: int) -> StageEntry:
    """A stage of `num_steps`, 5500 FLOPs a step and parameter."""
    flops = Flops(5.0 * num_parameters * TOKENS_PER_STEP, 0.5 * num_parameters * TOKENS_PER_STEP, 0.0)
    shape = (num_parameters, 1000, num_steps * TOKENS_PER_STEP, num_steps, TOKENS_PER_STEP)
    return StageEntry(name, *shape, step_flops=flops, evaluation_flops_per_token=2.0 * num_parameters)


class FakeRun:
    """A run directory with a ledger, its stages trained on invented losses."""

    def __init__(
        self,
        runs: Path,
        name: str,
        stages: list[StageEntry],
        kind: str | None = None,
        data: str = "f00d",
        precision: str = "bf16",
        decays: bool = True,
        caveats: tuple[str, ...] = (),
        ladder_id: str | None = None,
        base: BaseEntry | None = None,
        validation: tuple[int, int] | None = None,
        run_set: tuple[str, dict[str, Any]] = ("", {}),
        seed: int = 1,
        **conditions: Any,
    ):
        """`validation`: documents and tokens of the validation split. `run_set`: its group and overrides."""
        self.stages, self.path, self.precision = stages, runs / name / "ledger.db", precision
        self.has_base = base is not None
        self.path.parent.mkdir(parents=True)
        self.entry = RunEntry(
            name=name,
            schedule="quickstart",
            control=kind,
            control_of=name.split("-control-")[0] if kind else None,
            seed=seed,
            dataset="data",
            dataset_fingerprint=data,
            conditions={"seed": seed, "training.sequence_length": 64} | conditions,
            decays=decays,
            caveats=list(caveats),
            ladder_id=ladder_id,
            base=base,
            validation_documents=validation and validation[0],
            validation_tokens=validation and validation[1],
            group=run_set[0] or None,
            overrides=run_set[1],
        )
        with Ledger.open(self.path) as ledger:
            ledger.record_run(self.entry, stages)

    def train(self, index: int, final: float | None, *, start: float = 4.0, killed_at: int = 0) -> "FakeRun":
        """Trains stage `index` from loss `start` to `final` (None: it dies before); `killed_at` a step, once."""
        stage = self.stages[index]
        records: list[dict[str, Any]] = []

        def write(event: str, attempt: int, step: int, **values: Any) -> None:
            records.append(
                {"event": event, "attempt": attempt, "step": step, "seconds": 1.5 * len(records) + 1} | values
            )

        def evaluate(attempt: int, step: int, point: str, loss: float) -> None:
            figures: dict[str, Any] = {"loss": loss, "perplexity": math.exp(loss), "bits_per_byte": loss / math.log(2)}
            figures |= {"num_tokens": 5000, "by_source": self.by_source(step, loss)}
            write("evaluation", attempt, step, point=point, precision="fp32", **figures)

        def attempt(number: int, first: int, last: int) -> None:
            device = {"device": "cpu", "num_devices": 2, "precision": self.precision, "zero_stage": 1}
            write("start", number, first, resumed_from=first or None, **device)
            if (index or self.has_base) and not first:
                evaluate(number, 0, "start" if stage.branch_of else "after_growth", start)
            for step in range(first + stage.num_steps // 10, last + 1, max(1, stage.num_steps // 10)):
                decay = math.exp(-3.0 * step / stage.num_steps)
                evaluate(number, step, "interval", (final or 2.0) + 0.05 + (start - (final or 2.0)) * decay * 0.95)

        if killed_at:
            attempt(1, 0, killed_at)
            write("train", 1, killed_at)
        attempt(2 if killed_at else 1, 0, stage.num_steps if final else stage.num_steps // 2)
        if final:
            evaluate(2 if killed_at else 1, stage.num_steps, "final", final)
            write("end", 2 if killed_at else 1, stage.num_steps)
        with Ledger.open(self.path) as ledger:
            ledger.books(stage.name).sync(records, attempt_over=final is None)
        return self

    def by_source(self, step: int, loss: float) -> dict[str, dict[str, float]] | None:
        """Evaluations of each source of `data.mixture`: the first is 0.1 nats better than the second, ..."""
        weights = self.entry.conditions.get("data.mixture")
        if weights is None:
            return None
        shares = [weight / sum(weights.values()) for weight in weights.values()]
        middle = sum(number * share for number, share in enumerate(shares))
        return {
            name: {
                "loss": loss + 0.1 * (number - middle),
                "bits_per_byte": loss / math.log(2),
                "num_tokens": 1000,
                "train_tokens": round(step * TOKENS_PER_STEP * share),
                "epochs": step * share / 100,
            }
            for number, (name, share) in enumerate(zip(weights, shares, strict=True))
        }


SMALL, LARGE = stage_of("0-800k", 800_000, 1000), stage_of("1-2m", 2_400_000, 600)
SCRATCH = "tokenformer-scratch"


def ladder(runs: Path, final: float | None = 1.28, name: str = "quick", **train: Any) -> FakeRun:
    """A finished run of two sizes."""
    return FakeRun(runs, name, [SMALL, LARGE]).train(0, 1.42).train(1, final, start=1.42, **train)


def control(
    runs: Path, budget: int, final: float | None, of: str = "quick", kind: str = SCRATCH, **how: Any
) -> FakeRun:
    """A control of that ladder, `budget` steps of its last size."""
    stage = stage_of("0-2m", 2_400_000, budget)
    return FakeRun(runs, f"{of}-control-{kind}-{budget}", [stage], kind, **how).train(0, final)


def only_comparison(runs: Path) -> Comparison:
    """The comparison of the ladder `quick` with controls of one kind."""
    found = find_runs(runs, ["quick"])
    [comparison] = compare(found[0], found)
    return comparison


def said(comparison: Comparison) -> str:
    """The verdict in one text."""
    return " ".join(verdict(comparison))


def from_scratch(runs: Path, size: str, num_parameters: int, steps: int, final: float | None, **train: Any) -> FakeRun:
    """One size of the ladder, as the control best-scratch trains it."""
    name = f"quick-control-best-scratch-{size}-{steps}"
    return FakeRun(runs, name, [stage_of(size, num_parameters, steps)], "best-scratch").train(0, final, **train)
