"""The file tables of docs/architecture.md match the docstrings of the modules."""

import re
from pathlib import Path

import pytest

from tests.workers import REPOSITORY
from tools.file_tables import FLOORS, PAGE, first_line, floor_table, with_file_tables

MODULES = sorted(path.relative_to(REPOSITORY) for floor in FLOORS for path in (REPOSITORY / floor).rglob("*.py"))


def test_the_lists_of_files_are_not_stale() -> None:
    assert PAGE.read_text() == with_file_tables(PAGE.read_text()), "run `make docs`"


def test_the_page_has_a_list_for_every_floor() -> None:
    assert re.findall(r"<!-- files-of-([a-z]+): `make docs`", PAGE.read_text()) == list(FLOORS)


def test_the_first_line_of_every_docstring_is_a_whole_sentence() -> None:
    assert [str(module) for module in MODULES if not first_line(REPOSITORY / module).endswith(".")] == []


def test_a_module_without_a_docstring_is_named(tmp_path: Path) -> None:
    (tmp_path / "silent.py").write_text("import os\n")
    with pytest.raises(ValueError, match=r"silent\.py has no docstring"):
        floor_table(tmp_path)


def test_files_are_listed_below_their_package_and_the_others_last(tmp_path: Path) -> None:
    floor = tmp_path / "floor"
    (floor / "rooms").mkdir(parents=True)
    (floor / "__init__.py").write_text("")
    (floor / "rooms/__init__.py").write_text('"""Rooms."""\n')
    (floor / "rooms/kitchen.py").write_text('"""Cooks a | b.\n\nMore.\n"""\n')
    (floor / "stairs.py").write_text('"""Leads up."""\n')
    assert floor_table(floor).splitlines()[2:] == [
        "| **floor/rooms/** | **Rooms.** |",
        "| `rooms/kitchen.py` | Cooks a \\| b. |",
        "| **floor/** | **In no package.** |",
        "| `stairs.py` | Leads up. |",
    ]
