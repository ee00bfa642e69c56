"""Run directories with real ledgers and invented losses, for tests of code that reads them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from growctl.ledger.entries import BaseEntry, RunEntry, StageEntry
from growctl.ledger.ledger import Ledger
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
        decays: bool = True,
        ladder_id: str | None = None,
        base: BaseEntry | None = None,
        validation: tuple[int, int] | None = None,
        run_set: tuple[str, dict[str, Any]] = ("", {}),
        seed: int = 1,
        machine: dict[str, Any] | None = None,
        evaluates: dict[str, Any] | None = None,
        tokens_per_second: float | None = None,
        num_evaluations: int = 10,
        entry: RunEntry | None = None,
        **conditions: Any,
    ):
        """`validation`: documents and tokens of the validation split. `run_set`: its group and overrides. `machine`,
        `evaluates`: what its `start` and evaluation records say in place of the usual. `tokens_per_second`: its speed,
        which its seconds and its energy, 100 W a device, then follow. `num_evaluations`: of each stage, before its end.
        `entry`: the whole entry, if it is known."""
        self.stages, self.path = stages, runs / name / "ledger.db"
        self.machine, self.evaluates = machine or {}, evaluates or {}
        self.tokens_per_second, self.num_evaluations = tokens_per_second, num_evaluations
        self.has_base = (entry.base if entry else base) is not None
        self.path.parent.mkdir(parents=True)
        self.entry = entry or RunEntry(
            name=name,
            schedule="quickstart",
            control=kind,
            control_of=name.split("-control-")[0] if kind else None,
            seed=seed,
            dataset="data",
            dataset_fingerprint=data,
            conditions={"seed": seed, "training.sequence_length": 64} | conditions,
            decays=decays,
            ladder_id=ladder_id,
            base=base,
            validation_documents=validation and validation[0],
            validation_tokens=validation and validation[1],
            group=run_set[0] or None,
            overrides=run_set[1],
        )
        with Ledger(self.path) as ledger:
            ledger.record_run(self.entry, stages)

    def train(
        self,
        index: int,
        final: float | None,
        *,
        start: float = 4.0,
        killed_at: int = 0,
        rolled_back_at: Sequence[int] = (),
        reused_from: str = "",
        stops: bool = False,
    ) -> "FakeRun":
        """Trains stage `index` from loss `start` to `final` (None: it dies before; NaN: it diverges).

        `rolled_back_at`: steps of spikes, each of which sends the stage back to its first step; `killed_at`: a step, at
        which it is killed once, after them. `reused_from`: the run from which it takes over all steps instead. `stops`:
        it ends with gradients that are not finite.
        """
        stage = self.stages[index]
        records: list[dict[str, Any]] = []
        device: dict[str, Any] = {"device": "cpu", "num_devices": 2, "precision": "bf16", "zero_stage": 1}
        device |= self.machine
        goal = final if final and math.isfinite(final) else 2.0

        def write(event: str, attempt: int, step: int, **values: Any) -> None:
            seconds = 1.5 * len(records) + 1
            if self.tokens_per_second:
                seconds = 10 + step * stage.tokens_per_step / self.tokens_per_second
                if event in ("train", "end"):
                    joules = {"gpu_joules": 100.0 * seconds * device["num_devices"]}
                    values |= {"tokens_per_second": self.tokens_per_second}
                    records.append({"event": "usage", "attempt": attempt, "step": step, "seconds": seconds} | joules)
            records.append({"event": event, "attempt": attempt, "step": step, "seconds": seconds} | values)

        def evaluate(attempt: int, step: int, point: str, loss: float) -> None:
            figures: dict[str, Any] = {"loss": loss, "perplexity": math.exp(loss), "bits_per_byte": loss / math.log(2)}
            figures |= {"num_tokens": 5000, "precision": "fp32", "by_source": self.by_source(step, loss)}
            write("evaluation", attempt, step, point=point, **figures | self.evaluates)

        def attempt(number: int, last: int) -> None:
            write("start", number, 0, resumed_from=None, **device)
            if index or self.has_base:
                evaluate(number, 0, "start" if stage.branch_of else "after_growth", start)
            every = max(1, stage.num_steps // self.num_evaluations)
            for step in range(every, last + 1, every):
                if self.tokens_per_second:
                    write("train", number, step)
                decay = math.exp(-3.0 * step / stage.num_steps)
                evaluate(number, step, "interval", goal + 0.05 + (start - goal) * decay * 0.95)

        for number, step in enumerate(rolled_back_at, 1):
            attempt(number, step)
            spike = {"kind": "spike", "value": 9.5, "threshold": 6.0, "action": "rollback"}
            write("anomaly", number, step, **spike, first_step=0, num_steps=step)
        number = len(rolled_back_at) + 1
        if killed_at:
            attempt(number, killed_at)
            write("train", number, killed_at)
            number += 1
        if reused_from:
            paid = {"run": reused_from, "checkpoint": f"{reused_from}/{stage.name}", "device_seconds": 60.0}
            write("reused", number, stage.num_steps, resumed_from=0, **device | paid)
        else:
            attempt(number, stage.num_steps if final else stage.num_steps // 2)
        if stops:
            failed = {"kind": "non_finite", "value": None, "threshold": None, "action": "stop"}
            write("anomaly", number, stage.num_steps // 2, **failed, first_step=0, num_steps=1)
        if final:
            evaluate(number, stage.num_steps, "final", final)
            write("end", number, stage.num_steps)
        with Ledger(self.path) as ledger:
            ledger.books(stage.name).sync(records, attempt_over=final is None)
        return self

    def by_source(self, step: int, loss: float) -> dict[str, dict[str, float]] | None:
        """Evaluations of each source of `data.mixture`: the first is 0.1 nats better than the second, ..."""
        weights = self.entry.conditions.get("data.mixture")
        if weights is None:
            return None
        shares = [weight / sum(weights.values()) for weight in weights.values()]
        middle = sum(number * share for number, share in enumerate(shares))
        same = {"bits_per_byte": loss / math.log(2), "num_tokens": 1000}
        return {
            name: same
            | {"loss": loss + 0.1 * (number - middle), "epochs": step * share / 100}
            | {"trained_tokens": round(step * TOKENS_PER_STEP * share)}
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
