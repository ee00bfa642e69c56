"""How a YAML file and overrides become a growth schedule (its schema: growctl/schema.py).

hydra composes, OmegaConf resolves, pydantic judges. Unknown keys, wrong types and impossible combinations end here, in
one message, before any work.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from growctl.schedule_checks import RUN_NAME, impossible
from growctl.schedule_errors import NAME_ALLOWED, describe, did_you_mean, innermost_reason, shown
from growctl.schema import Schedule

SHIPPED = Path(__file__).resolve().parent.parent / "schedules"
"""Where the schedules that come with growctl lie, in a checkout and in an installed wheel alike."""

_NOT_HYDRA = "hydra's own settings are no part of a schedule"
_OVERRIDE = re.compile(r"(~|\+{0,2})([A-Za-z_]\w*)(?:\.\w+)*(=.*)?", re.DOTALL | re.ASCII)


class ScheduleError(ValueError):
    """A schedule that cannot be used: one message, with the dotted path, the value and what is allowed."""


def find_schedule(reference: str) -> Path:
    """The file that `reference` means: a path that exists, else a shipped name (`quickstart`). Else a ScheduleError."""
    path = Path(reference)
    try:
        if path.exists() and not path.is_dir():
            return path.absolute()
    except (OSError, ValueError):
        pass  # too long for a file's name, or worse
    names = {path.relative_to(SHIPPED).with_suffix("").as_posix(): path for path in sorted(SHIPPED.rglob("*.yaml"))}
    name = reference.removeprefix("schedules/").removesuffix(".yaml")
    if name in names:
        return names[name]
    hint = did_you_mean(Path(name).name, list(names))
    raise ScheduleError(f"{shown(reference)}: no such file; growctl comes with {', '.join(names)}{hint}")


def load_schedule(reference: str, overrides: Sequence[str] = ()) -> Schedule:
    """The schedule at a path or of a shipped name, with hydra overrides (`stages.0.train_tokens=200k`) applied.

    Its name is filled in. Raises ScheduleError with everything that is wrong with it.
    """
    path = find_schedule(reference)
    data = _compose(_read(path, reference), path.parent, overrides, reference)
    return parse_schedule(data, label=reference, default_name=path.stem)


def parse_schedule(data: Any, *, label: str, default_name: str) -> Schedule:
    """A schedule from plain data (`label` is what messages call it); ScheduleError where it cannot be used."""
    if not isinstance(data, dict) or not data.keys() & Schedule.model_fields.keys():
        raise ScheduleError(f"{label}: is no schedule; one has the keys {', '.join(Schedule.model_fields)}")
    try:
        schedule = Schedule.model_validate(data)
        lines = impossible(schedule)
    except ValidationError as error:
        lines = describe(error, Schedule)
    if lines:
        lines = [f"{len(lines)} problems", *lines] if len(lines) > 1 else lines
        raise ScheduleError(f"{label}: " + "\n  ".join(lines))
    if schedule.name is None:
        if not RUN_NAME.fullmatch(default_name):
            raise ScheduleError(
                f"{label}: name: is missing, and the file's {default_name!r} cannot be one: {NAME_ALLOWED}"
            )
        schedule = schedule.model_copy(update={"name": default_name})
    return schedule


def _read(path: Path, label: str) -> Any:
    """A YAML file's mapping. Read here and not by hydra, so that it may have any name and errors have a line."""
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import MarkedYAMLError, YAMLError

    try:
        config = OmegaConf.load(path)
    except UnicodeDecodeError:
        raise ScheduleError(f"{label}: is not text in UTF-8; a schedule is a YAML file") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ScheduleError(f"{label}: {where}{error.problem}") from None
    except (OmegaConfBaseException, YAMLError, OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or innermost_reason(error)
        raise ScheduleError(f"{label}: cannot be read: {reason}") from None
    if not isinstance(config, DictConfig):
        return OmegaConf.create()
    if "hydra" in config:
        raise ScheduleError(f"{label}: hydra: {_NOT_HYDRA}")
    return config


def _compose(config: Any, folder: Path, overrides: Sequence[str], label: str) -> Any:
    """Plain data from a file's mapping, the files of its defaults list, and overrides."""
    from hydra import compose, initialize, initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    written = [_checked(text) for text in overrides]
    try:
        ConfigStore.instance().store("growctl-schedule", config)
        # only a defaults list looks around: else a folder data/ beside the file would pass for choices of `data`
        beside = "defaults" in config
        with initialize_config_dir(str(folder), version_base="1.3") if beside else initialize(None, version_base="1.3"):
            composed = compose("growctl-schedule", written)
        return OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError, TypeError, RecursionError) as error:
        if overrides:
            _compose(config, folder, overrides[:-1], label)  # raises, unless it takes the last one to fail
            label = f"override {shown(overrides[-1])}"
        raise ScheduleError(f"{label}: {innermost_reason(error)}") from error


def _checked(override: str) -> str:
    """An override as hydra gets it, after a look at its form."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    match = _OVERRIDE.fullmatch(override)
    if not match or (match[1] != "~" and match[3] is None):
        raise ScheduleError(f"{shown(override)} is no override; write key=value, for example training.batch_size=64")
    if match[2] == "hydra":
        raise ScheduleError(f"override {shown(override)}: {_NOT_HYDRA}")
    try:
        parsed = OverridesParser.create().parse_override(override)
    except (HydraException, ValueError, RecursionError):
        hint = "put text with special characters in quotes, inside those for the shell: 'key=\"...\"'"
        raise ScheduleError(f"override {shown(override)}: the value cannot be read; {hint}") from None
    if parsed.is_sweep_override():
        raise ScheduleError(f"override {shown(override)}: gives several values; write a list as key=[1,2]")
    return override if override.startswith(("+", "~")) else f"++{override}"
