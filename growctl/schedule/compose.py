"""Merges a schedule's file, its defaults and overrides into plain data, with the origin of each value.

hydra finds the files of the defaults lists and their order: it looks in the schedule's own folder, then among the
shipped ones. OmegaConf merges them, then come the overrides. Nothing that a schedule names is imported or called.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import ScheduleError, innermost_reason, shown
from growctl.schedule.files import GROUPS, SHIPPED, choices, file_label, find_file, shipped_schedules
from growctl.schedule.hydra_search import OWN_NODE, searching
from growctl.schedule.reading import NOT_HYDRA, bounded_interpolation, read_file, refuse_code
from growctl.text.suggestion import did_you_mean

_ABSENT = object()
_OVERRIDE = re.compile(r"(~|\+{0,2})([A-Za-z_]\w*)(?:\.\w+)*(=.*)?", re.DOTALL | re.ASCII)
_FAILURES = (HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError, TypeError, RecursionError)


class _Override(NamedTuple):
    """An override of single values."""

    text: str
    """The override as the user wrote it."""
    sign: str
    """`~` deletes the key, `+` adds a new one; `++` and no sign set it, whether it is there or not."""
    keys: tuple[str, ...]
    given: Any
    """The value in the text."""

    @property
    def value(self) -> Any:
        """The new value; None if the override deletes the key."""
        return None if self.sign == "~" else self.given

    def apply(self, config: DictConfig) -> None:
        """Changes `config`, as hydra would. Raises an error that `innermost_reason` explains."""
        key = ".".join(self.keys)
        if self.sign in ("~", "+"):
            before = OmegaConf.select(config, key, throw_on_missing=False)
            if self.sign == "+" and before is not None and not isinstance(self.given, dict | list):
                raise ValueError(f"Could not append to config. An item is already at '{key}'.")
            if self.sign == "~":
                self._delete_from(config, key, before)
                return
        OmegaConf.update(config, key, self.given, merge=True, force_add=True)

    def _delete_from(self, config: DictConfig, key: str, before: Any) -> None:
        if before is None:
            raise ValueError(f"Could not delete from config. '{key}' does not exist.")
        if self.given is not None and self.given != before:
            raise ValueError(f"Could not delete from config. The value of '{key}' is {before} and not {self.given}.")
        block, _, name = key.rpartition(".")
        del (OmegaConf.select(config, block) if block else config)[name]


class _Layer(NamedTuple):
    """The content of one file, and the block that it belongs to."""

    origin: str
    package: tuple[str, ...]
    content: Any
    folder: Path
    """The folder of the file."""

    def config(self) -> DictConfig:
        """The content at its place in a schedule, without the defaults list."""
        content: Any = {key: value for key, value in self.content.items() if key != "defaults"}
        for key in reversed(self.package):
            content = {key: content}
        return OmegaConf.create(content)


class Composition:
    """The plain data of a schedule, and where each of its values comes from."""

    def __init__(self, path: Path, overrides: Sequence[str], label: str) -> None:
        """Composes the file at `path` with `overrides`. Messages call it `label`. Raises ScheduleError."""
        self._label = label
        self._folders = (path.parent, SHIPPED)
        self._own = read_file(path, label) or {}
        self._layers = [_Layer("", (), self._own, path.parent)]
        group, keys = path.parent.name, {str(key) for key in self._own} - {"defaults"}
        if group in GROUPS and keys and not keys & Schedule.model_fields.keys():
            raise ScheduleError(
                f"{label}: is not a schedule but a choice for {group}; use it in a schedule: {group}={path.stem}, or "
                f"defaults: [{{{group}: {path.stem}}}, _self_]"
            )
        self._choices: dict[str, str] = {}
        self._values: list[_Override] = []
        for text in overrides:
            self._take(text)
        with bounded_interpolation(label):
            if "defaults" in self._own or self._choices:
                self._layers = self._find_layers()
            self.data = self._with_overrides(self._values)
        self._drop_size_of_another_text()

    def _drop_size_of_another_text(self) -> None:
        """Removes an `approximate_tokens` that describes another text: the `source` beside it was set after it."""
        data = self.data.get("data") if isinstance(self.data, dict) else None
        blocks: list[tuple[tuple[str, ...], Any]] = [(("data",), data)]
        mixture = data.get("mixture") if isinstance(data, dict) else None
        if isinstance(mixture, list):
            blocks += [(("data", "mixture", str(index)), entry) for index, entry in enumerate(mixture)]
        for keys, block in blocks:
            if isinstance(block, dict) and "approximate_tokens" in block:
                source, tokens = (self._setter((*keys, key)) for key in ("source", "approximate_tokens"))
                if source > tokens:
                    del block["approximate_tokens"]

    def _setter(self, keys: tuple[str, ...]) -> int:
        """The rank of what set the value at `keys` last: a file by the order of merging, or any override above them."""
        if self._override_of(keys):
            return len(self._layers)
        layers = enumerate(self._layers)
        return max(
            (i for i, layer in layers if _value_at(layer.content, layer.package, keys) is not _ABSENT), default=-1
        )

    def origin(self, path: str) -> str:
        """The start of a message about the value at a dotted path: the override or the other file that set it."""
        keys = tuple(path.split("."))
        override = self._override_of(keys)
        return f"override {shown(override.text)}: " if override else self._file_of(keys)

    def folder_of(self, path: str) -> Path | None:
        """The folder of the file that set the value at a dotted path; None if no file of the user's did."""
        keys = tuple(path.split("."))
        layers = [layer for layer in self._layers if _value_at(layer.content, layer.package, keys) is not _ABSENT]
        if self._override_of(keys) or not layers or layers[-1].folder.is_relative_to(SHIPPED):
            return None
        return layers[-1].folder

    @property
    def folder(self) -> Path:
        """The folder of the schedule itself."""
        return self._folders[0]

    def _override_of(self, keys: tuple[str, ...]) -> _Override | None:
        """The last override that set the value at `keys`."""
        found = (each for each in reversed(self._values) if _value_at(each.value, each.keys, keys) is not _ABSENT)
        return next(found, None)

    def _file_of(self, keys: tuple[str, ...]) -> str:
        """The same for files only."""
        number = next((number for number, key in enumerate(keys) if key.isdigit()), None)
        known = keys[:number]  # lists are not merged: the last file that sets one sets all its entries
        values = [(layer.origin, _value_at(layer.content, layer.package, known)) for layer in self._layers]
        set_by = [(origin, value) for origin, value in values if value is not _ABSENT]
        if not set_by or (len(set_by) > 1 and isinstance(set_by[-1][1], dict)):
            return ""  # no file set it, or several files set parts of a block
        return set_by[-1][0]

    def _take(self, text: str) -> None:
        """Stores an override as a choice for a block or as a change of a value."""
        match = _OVERRIDE.fullmatch(text)
        if not match or (match[1] != "~" and match[3] is None):
            raise ScheduleError(f"{shown(text)} is not an override; write key=value, such as training.batch_size=64")
        if match[2] == "hydra":
            raise ScheduleError(f"override {shown(text)}: {NOT_HYDRA}")
        try:
            parsed = OverridesParser.create().parse_override(text)
            key, value = parsed.key_or_group, None if parsed.is_sweep_override() else parsed.value()
            keys = tuple(key.split("."))
            refuse_code(value, f"override {shown(text)}: ", keys)
        except ScheduleError:
            raise
        except (HydraException, OmegaConfBaseException, ValueError, RecursionError):
            hint = "put text with special characters in quotes, inside the shell's quotes: 'key=\"...\"'"
            raise ScheduleError(f"override {shown(text)}: the value cannot be read; {hint}") from None
        if parsed.is_sweep_override():
            raise ScheduleError(
                f"override {shown(text)}: gives several values; write a list as key=[1,2]; growctl sweep trains a run "
                "for each value"
            )
        if key in GROUPS and value and isinstance(value, str) and "${" not in value and match[1] != "~":
            if not find_file(f"{key}/{value}", self._folders):
                one = f"; to set one of its values, write {key}.KEY=VALUE"
                raise ScheduleError(f"override {shown(text)}: {self._no_choice(key, value, otherwise=one)}")
            self._choices[key] = value
            return
        self._values.append(_Override(text, match[1], keys, value))

    def _find_layers(self) -> list[_Layer]:
        """The content of every file, in the order in which they are merged: hydra follows the defaults lists."""
        try:
            with searching(self._own, self._folders) as loader:
                named: Any = {}
                if self._choices:
                    named = loader.compute_defaults_list(OWN_NODE, [], RunMode.MULTIRUN).overrides.known_choices
                # replaces a choice that the schedule makes, and appends one that it does not make
                chosen = [f"{'' if group in named else '+'}{group}={name}" for group, name in self._choices.items()]
                defaults = loader.compute_defaults_list(OWN_NODE, chosen, RunMode.RUN).defaults
        except ScheduleError as error:
            raise ScheduleError(f"{self._label}: in {error}") from error
        except MissingConfigException as error:
            raise ScheduleError(f"{self._label}: {self._missing(error)}") from error
        except RecursionError as error:
            reason = "defaults: a file starts from itself, through another file"
            raise ScheduleError(f"{self._label}: {reason}") from error
        except _FAILURES as error:
            raise ScheduleError(f"{self._label}: {self._in_our_words(error)}") from error
        own, layers = self._layers[0], []
        for default in defaults:
            file = find_file(default.config_path, self._folders)
            if default.config_path == OWN_NODE:
                layers.append(own)
            elif file and not default.config_path.startswith("hydra/"):
                package = tuple(filter(None, default.package.split(".")))
                content = read_file(file, file_label(file)) or {}
                layers.append(_Layer(f"in {file_label(file)}: ", package, content, file.parent))
        return layers

    def _merged(self) -> DictConfig:
        """The files merged, with interpolations unresolved. Raises ScheduleError."""
        try:
            merged = OmegaConf.unsafe_merge(*(layer.config() for layer in self._layers))
        except _FAILURES as error:
            raise ScheduleError(f"{self._label}: {self._clash() or innermost_reason(error)}") from error
        assert isinstance(merged, DictConfig)
        return merged

    def _with_overrides(self, overrides: Sequence[_Override]) -> Any:
        """The plain data after `overrides`, with every interpolation resolved."""
        config = self._merged()
        try:
            for override in overrides:
                override.apply(config)
            return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        except _FAILURES as error:
            if overrides:
                self._with_overrides(overrides[:-1])  # raises if an earlier override already fails
                where = f"override {shown(overrides[-1].text)}: "
            else:
                where = f"{self._label}: {self._file_of(_keys_of(error))}"
            raise ScheduleError(f"{where}{innermost_reason(error)}") from error

    def _missing(self, error: MissingConfigException) -> str:
        """The message for a missing file of a defaults list."""
        asker = re.match("In '(.*?)': ", str(error))
        file = find_file(asker[1], self._folders) if asker else None
        where = f"in {file_label(file)}: " if file else ""
        name = error.missing_cfg_file or ""
        group, _, choice = name.partition("/")
        if group in GROUPS and choice:
            if {f"/{group}": choice} in [_without_keywords(entry) for entry in self._own["defaults"]]:
                where = ""  # the schedule itself overrides the choice of another file
            return f"{where}defaults: {self._no_choice(group, choice)}"
        known = list(shipped_schedules())
        return (
            f"{where}defaults: no schedule {shown(name)} beside the file, and growctl comes with "
            f"{', '.join(known)}{did_you_mean(name, known)}"
        )

    def _in_our_words(self, error: BaseException) -> str:
        """hydra's messages about files, in the terms of schedules; any other message unchanged."""
        reason = innermost_reason(error).replace(OWN_NODE, "this file")
        if twice := re.match(r"Multiple values for (\S+)\. To override a value use '(.*)'", reason):
            return f"defaults: another file chooses {twice[1]} too; to choose differently, write {{{twice[2]}}}"
        if open_ := re.match(r"You must specify '(\w+)'", reason):
            return f"defaults: {open_[1]} must be chosen: {open_[1]}={'|'.join(choices(open_[1], self._folders))}"
        if idle := re.search(r"Could not override '(\w+)'\. No match", reason):
            group = idle[1]
            return (
                f"defaults: nothing above chooses {group}, so there is nothing to override; write {{{group}: CHOICE}}"
            )
        if early := re.search(r"Override '(\w+) : .*' is defined before", reason):
            return f"defaults: the override of {early[1]} must come after what it overrides"
        if unknown := re.match(r"Error resolving interpolation '(.*)'", reason):
            return f"defaults: {shown(unknown[1])} is not known yet; a defaults list can only use ${{oc.env:NAME}}"
        return reason

    def _clash(self) -> str:
        """The message for a block and a list at the same path; hydra's own message has no path."""
        kinds: dict[tuple[str, ...], type] = {}
        for layer in self._layers:
            for keys, kind in _containers(layer.content, layer.package):
                if kinds.setdefault(keys, kind) is not kind:
                    what = "a block of keys, but a list" if kind is dict else "a list, but a block of keys"
                    hint = "; write the whole list, or change entries by overrides (stages.0.name=a)"
                    return f"{layer.origin}{'.'.join(keys)}: is {what} in another file{hint if kind is dict else ''}"
        return ""

    def _no_choice(self, group: str, name: str, otherwise: str = "") -> str:
        known = choices(group, self._folders)
        there_are = f"choices are {', '.join(known)}" if known else f"there are no files {group}/NAME.yaml"
        return f"no choice {shown(name)} for {group}; {there_are}{did_you_mean(name, known) or otherwise}"


def _without_keywords(entry: Any) -> Any:
    """An entry of a defaults list without `override` and `optional`."""
    return {key.split(" ")[-1]: choice for key, choice in entry.items()} if isinstance(entry, dict) else entry


def _value_at(content: Any, package: tuple[str, ...], keys: tuple[str, ...]) -> Any:
    """The value at `keys` in plain data that belongs at `package`, or the interpolation that sets it; else _ABSENT."""
    if keys[: len(package)] != package:
        return _ABSENT
    for key in keys[len(package) :]:
        if isinstance(content, dict) and key in content:
            content = content[key]
        elif isinstance(content, list) and key.isdigit() and int(key) < len(content):
            content = content[int(key)]
        else:
            return content if isinstance(content, str) and "${" in content else _ABSENT
    return content


def _containers(content: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], type]]:
    """The path and type of every block and list in plain data that belongs at `keys`, except inside lists."""
    if isinstance(content, dict | list):
        yield keys, type(content)
    if isinstance(content, dict):
        for key, below in content.items():
            yield from _containers(below, (*keys, str(key)))


def _keys_of(error: BaseException) -> tuple[str, ...]:
    """The keys that OmegaConf's error is about."""
    path = str(getattr(error, "full_key", None) or "")
    return tuple(path.replace("[", ".").replace("]", "").split("."))
