"""Has hydra find the files of a schedule's defaults lists, without leaving anything of growctl's behind in hydra.

hydra keeps its configuration for the whole process. growctl may be part of an application that uses hydra too.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import initialize_config_module
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf

from growctl.schedule.errors import ScheduleError
from growctl.schedule.files import GROUPS, choices, file_label, find_file
from growctl.schedule.reading import read_file

OWN_NODE = "<schedule>"
"""hydra's name for the schedule itself; no file can have it."""

_NO_SETTINGS = ConfigNode("config.yaml", OmegaConf.create(), "hydra", None, None)
"""In place of hydra's own settings, its logging, launchers, sweepers and help pages, which growctl does not use. To go
through them with every schedule would take longer than the schedule itself."""


@contextmanager
def searching(own: dict[str, Any], folders: Sequence[Path]) -> Iterator[ConfigLoader]:
    """Initialises hydra with a schedule; it looks for other files in `folders`, in that order."""
    Plugins.instance().register(_Folder)
    places = [f"{_Folder.scheme()}://{folder}".replace("${", r"\${") for folder in folders]
    with _initialized(OmegaConf.merge(_defaults_of(own), {"hydra": {"searchpath": places}})):
        yield GlobalHydra.instance().config_loader()


@contextmanager
def _initialized(content: Any) -> Iterator[None]:
    """Initialises hydra with `content` as the schedule, and afterwards restores what it keeps for the process."""
    running, store, base = GlobalHydra.instance(), ConfigStore.instance(), VersionBase.instance()
    hydra, group, version = running.hydra, store.repo["hydra"], base.version_base
    settings = group["config.yaml"]
    running.hydra, group["config.yaml"] = None, _NO_SETTINGS
    store.store(OWN_NODE, content)
    try:
        with initialize_config_module("growctl.schedule", version_base="1.3"):  # initialize() inspects the stack: slow
            yield
    finally:
        running.hydra, group["config.yaml"], base.version_base = hydra, settings, version
        GlobalHydra.set_instance(running)
        del store.repo[f"{OWN_NODE}.yaml"]


def _defaults_of(content: dict[str, Any]) -> DictConfig:
    """The defaults list of a file, all that hydra needs of it."""
    return OmegaConf.create({key: content[key] for key in content.keys() & {"defaults"}})


class _Folder(ConfigSource):
    """A folder in which hydra looks for schedules and for choices for blocks."""

    @staticmethod
    def scheme() -> str:
        return "schedules"

    def load_config(self, config_path: str) -> ConfigResult:
        file = find_file(config_path, (Path(self.path),))
        assert file is not None, f"hydra loads {config_path}, which is_config() reported missing"
        content = read_file(file, file_label(file))
        if content is None:
            raise ScheduleError(f"{file_label(file)}: must be a block of keys")
        group, slash, _ = config_path.partition("/")
        return ConfigResult(
            provider=self.provider,
            path=str(file),
            config=_defaults_of(content),
            header={"package": group if slash and group in GROUPS else "_global_"},
        )

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path in GROUPS and (Path(self.path) / config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        return find_file(config_path, (Path(self.path),)) is not None

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return choices(config_path, (Path(self.path),))
