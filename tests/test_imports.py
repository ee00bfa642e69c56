"""Imports only point down, from growctl to stages to model, and no packages of a floor form a cycle."""

import ast
import functools
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.workers import REPOSITORY

FLOORS = ("model", "stages", "growctl")
"""From the bottom up."""

OUTSIDE = ("benchmarks", "tests", "tools")
"""What is not packaged for users: no floor may import it."""


class Import(NamedTuple):
    """An import of one of the project's own modules, at the top of a file or inside a function."""

    place: str
    importer: str
    imported: str


@functools.cache
def project_imports(repository: Path) -> list[Import]:
    """Every import of one of the project's own modules by a file of a floor."""
    files = (path for top in (*FLOORS, *OUTSIDE) for path in repository.glob(f"{top}/**/*.py"))
    paths = {path: path.relative_to(repository) for path in files}
    modules = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths.values()}
    found = []
    for path, relative in paths.items():
        parent = relative.parent.parts
        importer = ".".join((*parent, path.stem)).removesuffix(".__init__")
        for line, name in imported_names(ast.parse(path.read_text()), parent) if parent[0] in FLOORS else ():
            known = [each for each in (name, name.rpartition(".")[0]) if each in modules]
            found += [Import(f"{relative}:{line}", importer, each) for each in known[:1]]
    return found


def imported_names(tree: ast.Module, parent: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a file imports: `from a import b` gives `a.b`, module or not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = parent[: len(parent) - node.level + 1] if node.level else ()
            source = ".".join((*above, *([node.module] if node.module else [])))
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)


def floor_violations(imports: list[Import]) -> list[Import]:
    """The imports that point up, to a higher floor or to tests, tools or benchmarks."""
    height = {name: level for level, name in enumerate([*FLOORS, *OUTSIDE])}
    return [each for each in imports if height[package(each.imported)[0]] > height[package(each.importer)[0]]]


def package(module: str) -> tuple[str, ...]:
    """The package of a module: its floor and its folder, or the module itself if it is in no folder."""
    return tuple(module.split(".")[:2])


def imports_in_a_cycle(imports: list[Import]) -> list[Import]:
    """The imports between the packages of one cycle within a floor; empty if there is no cycle."""
    between = [(package(each.importer), package(each.imported), each) for each in imports]
    sorter: TopologicalSorter[tuple[str, ...]] = TopologicalSorter()
    for start, end, _ in between:
        if start != end and start[0] == end[0]:
            sorter.add(start, end)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = error.args[1]
        return [each for start, end, each in between if (end, start) in pairwise(cycle)]
    return []


def write(repository: Path, **files: str) -> list[Import]:
    """Writes invented modules, {path with __ for /: source}, and returns their imports."""
    for name, source in files.items():
        path = repository / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return project_imports(repository)


def test_imports_only_point_down() -> None:
    imports = project_imports(REPOSITORY)
    assert {"growctl.cli.app", "stages.train.worker", "model.growth"} <= {found.importer for found in imports}
    assert floor_violations(imports) == [], "growctl -> stages -> model, and none of tests, tools, benchmarks"


def test_no_packages_of_a_floor_import_each_other_in_a_cycle() -> None:
    assert imports_in_a_cycle(project_imports(REPOSITORY)) == [], "move what they share into a package below both"


def test_a_cycle_through_a_third_package_names_every_import_in_it(tmp_path: Path) -> None:
    imports = write(
        tmp_path,
        growctl__a__one="import torch\nfrom growctl.b.one import f",
        growctl__b__one="from ..c import one",
        growctl__c__one="def late():\n    from growctl.a import two",
        growctl__a__two="from growctl.a import one",
        growctl__d="import growctl.a.one",  # leads into the cycle but is not part of it
    )
    assert floor_violations(imports) == []
    places = {"growctl/a/one.py:2", "growctl/b/one.py:1", "growctl/c/one.py:2"}
    assert {each.place for each in imports_in_a_cycle(imports)} == places
