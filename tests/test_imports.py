"""Imports only point down, from growctl to stages to model, and no packages of a floor form a cycle."""

import ast
import functools
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests.workers import REPOSITORY

FLOORS = ("model", "stages", "growctl")
"""From the bottom up."""

OUTSIDE = ("benchmarks", "tests", "tools")
"""What is not packaged for users: no floor may import it."""


@dataclass(frozen=True)
class Import:
    """An import of one of the project's own modules, at the top of a file or inside a function."""

    file: str
    line: int
    importer: str
    imported: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.importer} imports {self.imported}"


@functools.cache
def project_imports(repository: Path) -> list[Import]:
    """Every import of one of the project's own modules by a file of a floor."""
    folders = [*FLOORS, *OUTSIDE]
    modules = {
        _module(path.relative_to(repository)): path for top in folders for path in (repository / top).rglob("*.py")
    }
    found = (
        Import(str(path.relative_to(repository)), line, module, imported)
        for module, path in modules.items()
        if _floor(module) in FLOORS
        for line, name in _imported_names(path, module)
        for imported in _known(name, modules)
    )
    return list(dict.fromkeys(found))


def floor_violations(imports: list[Import]) -> list[str]:
    """The imports that point up, to a higher floor or to tests, tools or benchmarks."""
    height = {name: level for level, name in enumerate([*FLOORS, *OUTSIDE])}
    return [str(found) for found in imports if height[_floor(found.imported)] > height[_floor(found.importer)]]


def shortest_cycle(imports: list[Import]) -> list[str]:
    """The imports that make up the shortest cycle of packages within a floor; empty if there is no cycle."""
    edges: dict[str, dict[str, list[Import]]] = {}
    for found in imports:
        start, end = package(found.importer), package(found.imported)
        if start != end and _floor(start) == _floor(end):
            edges.setdefault(start, {}).setdefault(end, []).append(found)
    cycles = [path for start in sorted(edges) if (path := _path_back(start, edges))]
    shortest = min(cycles, key=len, default=[])
    return [str(found) for start, end in pairwise(shortest) for found in edges[start][end]]


def package(module: str) -> str:
    """The package of a module: its folder below the floor, or the module itself if it is in no folder."""
    return ".".join(module.split(".")[:2])


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _floor(module: str) -> str:
    return module.split(".")[0]


def _imported_names(path: Path, module: str) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a file imports: `from a import b` gives `a.b`, module or not."""
    parent = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = parent[: len(parent) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)


def _known(name: str, modules: dict[str, Path]) -> list[str]:
    """The project's module that a name means or belongs to; empty for other people's modules."""
    candidates = [name, name.rpartition(".")[0]]
    return [candidate for candidate in candidates if candidate in modules][:1]


def _path_back(start: str, edges: Mapping[str, Collection[str]]) -> list[str]:
    """The shortest path of packages from `start` back to `start`; empty if there is none."""
    paths = deque([[start]])
    seen: set[str] = set()
    while paths:
        path = paths.popleft()
        for successor in edges.get(path[-1], ()):
            if successor == start:
                return [*path, start]
            if successor not in seen:
                seen.add(successor)
                paths.append([*path, successor])
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
    violations = floor_violations(imports)
    assert not violations, (
        "imports only point down: growctl -> stages -> model, and none of tests, tools, benchmarks:\n"
        + "\n".join(violations)
    )


def test_no_packages_of_a_floor_import_each_other_in_a_cycle() -> None:
    cycle = shortest_cycle(project_imports(REPOSITORY))
    assert not cycle, (
        "these imports form a cycle of packages; move what they share into a package below both:\n" + "\n".join(cycle)
    )


@pytest.mark.parametrize(
    "source",
    [
        "import tests.workers",
        "from tests import workers",
        "def late():\n    from tests.workers import launch",
    ],
)
def test_an_import_that_points_up_is_found_however_it_is_written(tmp_path: Path, source: str) -> None:
    imports = write(tmp_path, tests__workers="", stages__spec=source)
    line = 1 + source.count("\n")
    assert floor_violations(imports) == [f"stages/spec.py:{line}: stages.spec imports tests.workers"]


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
    assert shortest_cycle(imports) == [
        "growctl/a/one.py:2: growctl.a.one imports growctl.b.one",
        "growctl/b/one.py:1: growctl.b.one imports growctl.c.one",
        "growctl/c/one.py:2: growctl.c.one imports growctl.a.two",
    ]
