"""An fsspec file system for local folders that follows links, which fsspec's own silently skips."""

import os
from pathlib import PurePath
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from stages.data.source_errors import DataError, reason


class LocalFolders(LocalFileSystem):
    """The local file system. Links in a folder are treated as their targets; hidden entries are left out."""

    def ls(self, path: str, detail: bool = False, **kwargs: Any) -> list[Any]:
        """The entries of a folder. Raises DataError for a broken or circular link, or an unreadable folder."""
        path = self._strip_protocol(path)
        try:
            with os.scandir(path) as entries:
                found = [self._entry(entry) for entry in entries if not entry.name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return super().ls(path, detail=detail, **kwargs)
        except OSError as error:  # fsspec would silently skip the folder
            raise DataError(f"data.source: the folder {path} cannot be read ({reason(error)})") from error
        return found if detail else [info["name"] for info in found]

    def _entry(self, entry: os.DirEntry[str]) -> dict[str, Any]:
        if not entry.is_symlink():
            return self.info(entry)
        leads_to = f"data.source: {entry.path} is a link to {os.readlink(entry.path)}"
        try:
            info = self.info(entry.path)  # fsspec follows the link of a path, but not of an entry
        except OSError as error:
            raise DataError(f"{leads_to}, which cannot be read ({reason(error)}); fix or remove the link") from error
        if info["type"] == "directory" and _leads_back(entry.path):
            raise DataError(f"{leads_to}, a folder that contains the link: this is an endless loop; remove the link")
        return info


def _leads_back(path: str) -> bool:
    """Whether `path` leads to one of the folders that contain it, directly or through a link higher up."""
    real = os.path.realpath(path)
    return any(os.path.realpath(above) == real for above in PurePath(path).parents)
