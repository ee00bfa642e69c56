"""What a model costs, in each currency that a ledger knows.

One rule for all currencies, that of FLOPs: the cost of a model is that of its start checkpoint, of every stage before
it, and of its own. Work that a run took over from another one counts, because the model needs it. Work that was
replayed after an interruption does not: a machine failure has nothing to do with the training method. A cost of which
any part is not known is not known.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from growctl.analysis.runs import RunReport, StageReport
from growctl.ledger.entries import BaseEntry, Cost
from growctl.text.formatting import duration, scientific

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Currency:
    """Something that training spends."""

    key: str
    """Its name in documents and on axes."""
    name: str
    """Its name in sentences."""
    unit: str
    of_stage: Callable[[StageReport], float | None]
    """The cost of a stage or release alone; None if it is not known."""
    shown: Callable[[float], str]
    """A cost with three digits or so, as text for a table."""
    of_base: Callable[[BaseEntry], float | None] = lambda base: None
    """The cost of a start checkpoint; None if it is not known."""

    def of_run(self, run: RunReport) -> float | None:
        """The cost of the model that a run ends with, its releases left out; None if any part is not known."""
        return self._of(run, run.stages)

    def of_all(self, models: Sequence[RunReport]) -> float | None:
        """The cost of all `models` of one ladder: what they share counts once. None if any part is not known."""
        parts = {part.name: part for model in models for part in model.stages}
        return self._of(models[0], tuple(parts.values())) if models else 0.0

    def unknown_part(self, run: RunReport) -> str | None:
        """The first part of a run whose cost is not known, in words; None if all are."""
        if run.base and _finite(self.of_base(run.base)) is None:
            return "its start checkpoint"
        for stage in run.stages:
            if _finite(self.of_stage(stage)) is None:
                reused = f", which reuses work of {' and '.join(stage.reused_from)}" if stage.reused_from else ""
                return f"{stage.name}{reused}"
        return None

    def _of(self, run: RunReport, stages: Sequence[StageReport]) -> float | None:
        costs = [self.of_base(run.base)] if run.base else []
        known = [_finite(cost) for cost in [*costs, *map(self.of_stage, stages)]]
        return None if None in known else sum(cost for cost in known if cost is not None)


def _finite(cost: float | None) -> float | None:
    return cost if cost is not None and math.isfinite(cost) else None


def _measured(read: Callable[[Cost], float | None], per_unit: float = 1.0) -> Callable[[StageReport], float | None]:
    """Reads a cost of a stage off its ledger, divided by `per_unit`."""

    def of_stage(stage: StageReport) -> float | None:
        cost = read(stage.model_cost) if stage.model_cost else None
        return None if cost is None else cost / per_unit

    return of_stage


def _amount(value: float) -> str:
    """12345.6 -> '12,346'; 1.2345 -> '1.23'."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _energy(kwh: float) -> str:
    for factor, unit in ((1e3, "MWh"), (1.0, "kWh"), (1e-3, "Wh")):
        if kwh >= factor:
            return f"{_amount(kwh / factor)} {unit}"
    return f"{_amount(kwh * 1e6)} mWh"


FLOPS = Currency("flops", "FLOPs", "FLOPs", lambda stage: stage.flops, scientific, lambda base: base.flops)
DEVICE_HOURS = Currency(
    *("device_hours", "device time", "device-hours"),
    _measured(lambda cost: cost.device_seconds, 3600),
    lambda hours: duration(hours * 3600),
)
MONEY = Currency(
    *("money", "money", "the currency of launch.hardware.price_per_device_hour"),
    _measured(lambda cost: cost.money),
    _amount,
)
GPU_ENERGY = Currency(
    *("gpu_energy", "GPU energy", "kWh"), _measured(lambda cost: cost.gpu_joules, JOULES_PER_KWH), _energy
)
CPU_ENERGY = Currency(
    *("cpu_energy", "CPU energy", "kWh"), _measured(lambda cost: cost.cpu_joules, JOULES_PER_KWH), _energy
)

CURRENCIES = (FLOPS, DEVICE_HOURS, MONEY, GPU_ENERGY, CPU_ENERGY)
"""Energies of GPUs and of processors stay apart: one is often measured without the other."""
