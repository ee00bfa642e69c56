"""The trackers by name: their packages, and what in the user's environment sends them online. Imports none of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class Kind:
    """A kind of tracker."""

    target: str
    """Its class, as module:Class."""

    packages: tuple[str, ...]
    """What it imports; the extra of its own name installs them."""

    online: tuple[str, ...]
    """Environment variables with which the user names a server."""


KINDS = {
    "tensorboard": Kind("growctl.trackers.tensorboard:TensorBoard", ("tensorboard",), ()),
    "wandb": Kind("growctl.trackers.wandb:WeightsAndBiases", ("wandb",), ("WANDB_MODE",)),
    "mlflow": Kind("growctl.trackers.mlflow:MLflow", ("mlflow", "sqlalchemy", "alembic"), ("MLFLOW_TRACKING_URI",)),
    "trackio": Kind("growctl.trackers.trackio:Trackio", ("trackio",), ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")),
}
"""In the order of the schedule's allowed values (growctl/schedule/blocks.py)."""

OFFLINE_MODES = ("", "offline", "dryrun", "disabled")
"""Values of WANDB_MODE, which is a mode and not an address, that send nothing."""


def missing_package(trackers: Sequence[str]) -> str | None:
    """The problem of the first of `trackers` whose package is not installed; None if all are."""
    for number, name in enumerate(trackers):
        for package in KINDS[name].packages:
            if find_spec(package) is None:
                return f"trackers.{number} = {name!r}: needs the package {package}; pip install 'growctl[{name}]'"
    return None


def where(name: str, store: Path, environment: Mapping[str, str]) -> str:
    """The tracker `name` and where it writes: a path, or the variable that sends it online. Variables may hold secrets,
    so their values are not shown."""
    kind = KINDS[name]
    set_ones = [variable for variable in kind.online if environment.get(variable, "") not in OFFLINE_MODES]
    return f"{name} online ({set_ones[0]} is set)" if set_ones else f"{name} in {store}"
