"""Makes the file tables of docs/architecture.md from the first lines of module docstrings."""

import ast
import functools
from functools import partial
from pathlib import Path

from tools.pages import REPOSITORY, filled

PAGE = REPOSITORY / "docs/architecture.md"
FLOORS = ("growctl", "stages", "model")


def with_file_tables(page: str) -> str:
    """`page` with the table of each floor between its marks as the floor is now."""
    return filled(page, {f"files-of-{floor}": partial(floor_table, REPOSITORY / floor) for floor in FLOORS})


def floor_table(floor: Path) -> str:
    """The packages of a floor with their files, a line each, then its modules that are in no package."""
    packages = [folder for folder in sorted(floor.iterdir()) if (folder / "__init__.py").is_file()]
    lines = ["| file | what it holds |", "| --- | --- |"]
    for package in packages:
        lines.append(f"| **{floor.name}/{package.name}/** | **{first_line(package / '__init__.py')}** |")
        lines += _files(package, floor)
    if alone := _files(floor, floor):
        if packages:
            lines.append(f"| **{floor.name}/** | **In no package.** |")
        lines += alone
    return "\n".join(lines) + "\n"


@functools.cache
def first_line(module: Path) -> str:
    """The first line of a module's docstring. ValueError for a module that has none."""
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))
    if not docstring:
        raise ValueError(f"{module} has no docstring, whose first line docs/architecture.md shows")
    return docstring.splitlines()[0]


def _files(folder: Path, floor: Path) -> list[str]:
    modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
    cells = [(str(path.relative_to(floor)), first_line(path).replace("|", "\\|")) for path in modules]
    return [f"| `{name}` | {line} |" for name, line in cells]
