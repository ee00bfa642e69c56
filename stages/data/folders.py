"""Local folders with their links followed. fsspec's own file system leaves links out, and says nothing."""

import os
from pathlib import PurePath
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from stages.data.source_errors import DataError, reason


class LocalFolders(LocalFileSystem):
    """The local file system, where a link in a folder is what it leads to. Hidden entries are left out."""

    def ls(self, path: str, detail: bool = False, **kwargs: Any) -> list[Any]:
        """What is in a folder. DataError for a link that leads nowhere or back, or a folder that cannot be read."""
        path = self._strip_protocol(path)
        try:
            with os.scandir(path) as entries:
                found = [self._entry(entry) for entry in entries if not entry.name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return super().ls(path, detail=detail, **kwargs)
        except OSError as error:  # fsspec would pass over the folder
            raise DataError(f"data.source: the folder {path} cannot be read ({reason(error)})") from error
        return found if detail else [info["name"] for info in found]

    def _entry(self, entry: os.DirEntry[str]) -> dict[str, Any]:
        if not entry.is_symlink():
            return self.info(entry)
        leads_to = f"data.source: {entry.path} is a link to {os.readlink(entry.path)}"
        try:
            info = self.info(entry.path)  # by a path, and not by an entry, fsspec follows the link
        except OSError as error:
            raise DataError(f"{leads_to}, which cannot be read ({reason(error)}); mend or remove it") from error
        if info["type"] == "directory" and _leads_back(entry.path):
            raise DataError(f"{leads_to}, a folder that it lies in: following it would never end; remove it")
        return info


def _leads_back(path: str) -> bool:
    """Whether `path` is one of the folders above it. Also true where a link farther up makes it so."""
    real = os.path.realpath(path)
    return any(os.path.realpath(above) == real for above in PurePath(path).parents)
