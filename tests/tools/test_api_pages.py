"""Every name that the pages of the Python API document exists; mkdocs fails on one that does not."""

import ast
import re
from pathlib import Path

import pytest

from tests.workers import REPOSITORY

DOCUMENTED = [
    (page.name, name)
    for page in sorted((REPOSITORY / "docs" / "api").glob("*.md"))
    for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
]


def is_defined(name: str, repository: Path) -> bool:
    """Whether `name` is a module below `repository`, or what a module defines or a class there has."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = repository.joinpath(*parts[:length])
        for file in (module.with_suffix(".py"), module / "__init__.py"):
            if file.is_file():
                return _has(ast.parse(file.read_text()), parts[length:])
    return False


def _has(tree: ast.Module | ast.ClassDef, path: list[str]) -> bool:
    if not path:
        return True
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef) and statement.name == path[0]:
            return len(path) == 1 or (isinstance(statement, ast.ClassDef) and _has(statement, path[1:]))
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if len(path) == 1 and any(isinstance(target, ast.Name) and target.id == path[0] for target in targets):
            return True
    return False


def test_the_pages_document_something() -> None:
    assert len(DOCUMENTED) > 20


@pytest.mark.parametrize(("page", "name"), DOCUMENTED)
def test_every_documented_name_exists(page: str, name: str) -> None:
    assert is_defined(name, REPOSITORY), f"docs/api/{page} documents {name}"


def test_a_name_that_no_module_defines_is_found(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text("LIMIT: int = 3\nclass Size:\n    width = 1\ndef measure(): ...\n")
    defined = ("package.module", "package.module.LIMIT", "package.module.Size.width", "package.module.measure")
    assert all(is_defined(name, tmp_path) for name in defined)
    missing = ("package.gone", "package.module.gone", "package.module.Size.gone", "package.module.measure.width")
    assert not any(is_defined(name, tmp_path) for name in missing)
