"""Composes a schedule: hydra merges its file, the files of its defaults list and the overrides into plain data.

hydra looks for files in the schedule's own folder, then among the shipped ones. A relative path counts from the folder
of the file that states it. On the command line, and in a file that growctl ships, it counts from the current directory.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.types import RunMode
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from growctl.schedule.errors import ScheduleError, shorten, shown
from growctl.schedule.files import GROUPS, SHIPPED, absolute_paths, choices, find_file, read_block, shipped_schedules
from growctl.schedule.launch_block import HostfileBlock
from growctl.text.suggestion import did_you_mean

_OWN = "<schedule>"
"""hydra's name for the schedule itself; no file can have it."""
_OVERRIDE = re.compile(r"(~|\+{0,2})([A-Za-z_]\w*(?:\.\w+)*)(=.*)?", re.DOTALL | re.ASCII)
_SOURCE = re.compile(r"(data(?:\.mixture\.\d+)?)\.source")
_FAILURES = (HydraException, OmegaConfBaseException, OSError, ValueError, TypeError, LookupError, RecursionError)


def composed(path: Path, overrides: Iterable[str], label: str) -> Any:
    """The plain data of the schedule at `path` with `overrides`, whose references are resolved.

    Raises ScheduleError, which calls the schedule `label`.
    """
    if not version.base_at_least("1.2"):
        version.setbase("1.3")
    Plugins.instance().register(_Folder)
    search = ConfigSearchPathImpl()
    search.append("hydra", "pkg://hydra.conf")
    search.append("main", f"{_Folder.scheme()}://{path}")
    search.append("shipped", f"{_Folder.scheme()}://{SHIPPED}")
    search.append("schema", "structured://")
    loader = ConfigLoaderImpl(search)  # as hydra.compose(), whose singleton may belong to an application of the user's
    try:
        written, keys = _as_hydra_takes(overrides, loader)
        config = loader.load_configuration(_OWN, written, RunMode.RUN, from_shell=False)
        with open_dict(config):
            del config["hydra"]
        data: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        if isinstance(launch := data.get("launch"), dict) and launch.get("cluster") == "hostfile":
            launch["hostfile"] = {"path": HostfileBlock().path} | (launch.get("hostfile") or {})
        return absolute_paths(data, Path.cwd(), lambda key: any(f"{key}.".startswith(f"{given}.") for given in keys))
    except ScheduleError as error:
        raise ScheduleError(f"{label}: {str(error).removeprefix(f'{label}: ')}") from error
    except _FAILURES as error:
        raise ScheduleError(f"{label}: {_reason(error, path.parent)}") from error


def _as_hydra_takes(overrides: Iterable[str], loader: ConfigLoaderImpl) -> tuple[list[str], set[str]]:
    """The overrides with the sign that hydra needs, and the keys that they set.

    A choice for a block has no sign if the schedule makes one already, else +. Any other key gets ++. A new
    source of text loses the size of the one before it.
    """
    selected: dict[str, str] = {}
    keys: set[str] = set()
    written: list[str] = []
    for text in overrides:
        match = _OVERRIDE.fullmatch(text)
        if not match or (match[1] != "~" and match[3] is None) or match[2].partition(".")[0] == "hydra":
            raise ScheduleError(f"{shown(text)} is not an override; write key=value, such as training.batch_size=64")
        sign, key, assigned = match.groups()
        value = _value_of(text)
        if sign != "~" and isinstance(value, str) and value and loader.repository.group_exists(key):
            selected[key] = f"{key}{assigned}"
            continue
        keys |= {f"{key}.{name}" for name in value} if isinstance(value, dict) else {key}
        written.append(f"{sign or '++'}{key}{assigned or ''}")
    blocks = {match[1] for key in keys if (match := _SOURCE.fullmatch(key))}
    sizes = {f"{block}.approximate_tokens" for block in blocks} - keys
    if selected:
        chosen = loader.compute_defaults_list(_OWN, [], RunMode.MULTIRUN).overrides.known_choices
        selected = {key: text if key in chosen else f"+{text}" for key, text in selected.items()}
    return [*selected.values(), *written, *(f"++{key}=null" for key in sorted(sizes))], keys


def _value_of(text: str) -> Any:
    """The value that an override sets. Raises ScheduleError if hydra cannot read it, or for several values."""
    try:
        parsed = OverridesParser.create().parse_override(text)
        if not parsed.is_sweep_override():
            return parsed.value()
    except (HydraException, OmegaConfBaseException, ValueError, RecursionError):
        hint = "put text with special characters in quotes, inside the shell's quotes: 'key=\"...\"'"
        raise ScheduleError(f"override {shown(text)}: the value cannot be read; {hint}") from None
    hint = "write a list as key=[1,2]; growctl sweep trains a run for each value"
    raise ScheduleError(f"override {shown(text)}: gives several values; {hint}")


class _Folder(ConfigSource):
    """A folder in which hydra looks for schedules and for choices for blocks, or that of the schedule itself."""

    @staticmethod
    def scheme() -> str:
        return "schedules"

    @property
    def _folder(self) -> Path:
        return SHIPPED if self.provider == "shipped" else Path(self.path).parent

    def _find(self, name: str) -> Path | None:
        if name == _OWN:
            return Path(self.path) if self.provider == "main" else None
        return find_file(name, (self._folder,))

    def load_config(self, config_path: str) -> ConfigResult:
        file = self._find(config_path)
        assert file is not None, f"hydra loads {config_path}, which is_config() reported missing"
        group = config_path.partition("/")[0]
        package = group if group in GROUPS and group != config_path else "_global_"
        config = OmegaConf.create(_for_hydra(read_block(file), file, "" if package == "_global_" else group))
        return ConfigResult(provider=self.provider, path=str(file), config=config, header={"package": package})

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path in GROUPS and (self._folder / config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        return self._find(config_path) is not None

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return choices(config_path, (self._folder,))


def _for_hydra(content: dict[str, Any], file: Path, block: str) -> dict[str, Any]:
    """The content of a file for `block`, or of a schedule, with absolute paths and its defaults list in hydra's form:
    blocks are looked up from the top, and `_self_` comes last unless the list places it."""
    if isinstance(entries := content.get("defaults"), list):
        written = [_from_the_top(entry) for entry in entries]
        content["defaults"] = written if "_self_" in written else [*written, "_self_"]
    nested: Any = {block: content} if block else content
    data = nested.get("data")
    if isinstance(data, dict) and "source" in data:
        data.setdefault("approximate_tokens", None)  # else the size of another file's source would stay
    if not file.is_relative_to(SHIPPED):
        nested = absolute_paths(nested, file.parent)
    return nested[block] if block else nested


def _from_the_top(entry: Any) -> Any:
    """An entry of a defaults list, whose block hydra looks up from the top."""
    if isinstance(entry, str):
        return f"/{entry}" if entry.partition("/")[0] in GROUPS else entry
    if not isinstance(entry, dict):
        return entry
    written = {}
    for key, choice in entry.items():
        word, gap, block = str(key).rpartition(" ")
        if block.removeprefix("/") not in GROUPS or word not in ("", "override", "optional"):
            hint = f"{did_you_mean(block, GROUPS)} (blocks: {', '.join(GROUPS)})"
            raise ScheduleError(f"defaults: {shown(key)} must be a block, or override and a block{hint}")
        written[f"{word}{gap}/{block.removeprefix('/')}"] = choice
    return written


def _reason(error: BaseException, folder: Path) -> str:
    """What hydra or OmegaConf reports, on one line: the innermost cause, which the user can act on."""
    if isinstance(error, MissingConfigException):
        name = (error.missing_cfg_file or "").removeprefix("/")
        group, _, choice = name.partition("/")
        names = choices(group, (folder, SHIPPED)) if choice else list(shipped_schedules())
        return f"defaults: no file {shown(name)}; there are {', '.join(names)}{did_you_mean(choice or name, names)}"
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, RecursionError):
        return "is nested too deeply, or contains itself"
    if isinstance(error, (TypeError, LookupError)) and not isinstance(error, OmegaConfBaseException):
        return f"an override does not fit; a list's entries are set by number (stages.0.name=a): {error}"
    key = str(getattr(error, "full_key", None) or "").replace("[", ".").replace("]", "")
    reason = re.sub(r"\s+", " ", str(error).partition(" full_key:")[0].replace(_OWN, "this file")).strip()
    return shorten(f"{key}: {reason}" if key else reason, 300)
