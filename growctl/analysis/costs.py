"""What a model costs, in each currency that a ledger knows.

One rule for all: a model costs every stage before it and its own, whichever run paid for it, with the work that
rollbacks after its own anomalies gave up. A start checkpoint is paid for: what it cost is shown beside, and does not
count. Work that was repeated after an interruption from outside does not count either: a machine failure has nothing to
do with the training method. A cost of which any part is not known is not known.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from growctl.ledger.entries import Cost
from growctl.runs.runs import StageReport
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
    is_of_machines: bool = True
    """Whether it depends on the machines, so that only runs on the same ones compare."""

    def of(self, stages: Sequence[StageReport]) -> float | None:
        """The cost of `stages` of a run; None if any part is not known."""
        costs = [self.of_stage(stage) if stage.cost_is_whole else None for stage in stages]
        known = [cost for cost in costs if cost is not None and math.isfinite(cost)]
        return sum(known) if len(known) == len(costs) else None


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


def _hours(hours: float) -> str:
    return duration(hours * 3600)


FLOPS = Currency("flops", "FLOPs", "FLOPs", lambda stage: stage.flops, scientific, is_of_machines=False)
WALL_HOURS = Currency("wall_hours", "wall-clock", "hours", _measured(lambda cost: cost.wall_seconds, 3600), _hours)
DEVICE_HOURS = Currency(
    *("device_hours", "device time", "device-hours", _measured(lambda cost: cost.device_seconds, 3600), _hours)
)
MONEY = Currency(
    *("money", "money", "the currency of launch.hardware.price_per_device_hour"),
    _measured(lambda cost: cost.money),
    _amount,
)
GPU_ENERGY = Currency(
    *("gpu_energy", "GPU energy", "kWh"), _measured(lambda cost: cost.gpu_joules, JOULES_PER_KWH), _energy
)

CURRENCIES = (FLOPS, WALL_HOURS, DEVICE_HOURS, MONEY, GPU_ENERGY)


def currency(key: str) -> Currency:
    """The currency with that key."""
    return next(each for each in CURRENCIES if each.key == key)
