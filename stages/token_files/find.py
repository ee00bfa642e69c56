"""Finds the token files that a user names: a Megatron prefix, a `.ds` file, or a folder of either."""

from pathlib import Path

from stages.token_files.datatrove import ENDING, open_datatrove
from stages.token_files.files import TokenFiles
from stages.token_files.mapped import TokenFileError
from stages.token_files.megatron import open_megatron

INDEX = ".idx"


def open_token_files(path: Path) -> list[TokenFiles]:
    """The token files called `path`, in the order of their names if it is a folder.

    `path` is PREFIX, PREFIX.idx or PREFIX.bin for Megatron's and GPT-NeoX's, NAME.ds for datatrove's. Raises
    TokenFileError if there is nothing, or if a file is damaged.
    """
    if path.is_dir():
        found = sorted([*path.glob(f"*{INDEX}"), *path.glob(f"*{ENDING}")])
        if not found:
            raise TokenFileError(f"{path} has no token files: neither *{INDEX} nor *{ENDING}")
        return [_open(file) for file in found]
    return [_open(path)]


def _open(path: Path) -> TokenFiles:
    if path.suffix == ENDING:
        return open_datatrove(path)
    if path.suffix in (INDEX, ".bin"):
        return open_megatron(path.with_suffix(""))
    if not path.with_name(f"{path.name}{INDEX}").exists():
        raise TokenFileError(
            f"there are no token files {str(path)!r}: name PREFIX for PREFIX{INDEX} and PREFIX.bin, a file"
            f" NAME{ENDING}, or a folder of them"
        )
    return open_megatron(path)
