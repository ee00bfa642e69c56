"""Unexpected errors are reported as bugs; errors that the user can fix never are."""

import ast
import builtins
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from growctl.bugs import report_bug
from tests.workers import REPOSITORY

BROKEN_COMMAND = """
import sys
import growctl.runs.status as runs
from growctl.cli.app import main

runs.find_status = lambda *_: list(zip([1], [1, 2], strict=True))
sys.argv = ["growctl", "status", "--runs-dir", sys.argv[1]]
main()
"""
SAID = "growctl: this is a bug in growctl: ValueError: zip() argument 2 is longer than argument 1. The traceback is in "


def test_an_internal_error_is_one_line_and_a_file_with_the_traceback_in_the_runs_directory(tmp_path):
    environment = os.environ | {"GROWCTL_RUNS_DIR": str(tmp_path), "GROWCTL_DEBUG": ""}
    command = [sys.executable, "-c", BROKEN_COMMAND, str(tmp_path)]
    result = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    [file] = (tmp_path / ".bugs").iterdir()
    assert line.startswith(f"{SAID}{file};")
    command_line = f"command: growctl status --runs-dir {tmp_path}"
    for part in ("Traceback (most recent call last)", "find_status", command_line):
        assert part in file.read_text()


def test_an_unwritable_runs_directory_moves_the_traceback_to_the_temporary_directory(tmp_path, monkeypatch, capsys):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / ".bugs").touch()
    report_bug(KeyError("what"), tmp_path)
    [report] = (tmp_path / "temporary").iterdir()
    assert f"this is a bug in growctl: KeyError: 'what'. The traceback is in {report};" in capsys.readouterr().err
    assert "KeyError: 'what'" in report.read_text()


def test_a_bug_is_reported_even_if_a_package_shadows_stages_and_no_file_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "growctl.runs_dir", None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    monkeypatch.setenv("GROWCTL_DEBUG", "1")
    report_bug(KeyError("what"), tmp_path)
    *trace, line = capsys.readouterr().err.splitlines()
    assert "KeyError: 'what'. The traceback could not be written" in line
    assert trace[-1] == "KeyError: 'what'"


OTHER_ERRORS = {
    "Stopped",  # a signal; growctl.cli.app turns it into a message of its own
    "Problem",  # of doctor, which must start even if another package hides UserError
}
"""The exceptions of growctl that are neither errors of the user nor failures."""


def is_foreign_exception(base: str) -> bool:
    """Whether a base class, as it is written, is an exception of Python or, by its name, of a library."""
    builtin = getattr(builtins, base, None)
    is_builtin = isinstance(builtin, type) and issubclass(builtin, BaseException)
    return is_builtin or bool(re.search(r"(Error|Exception|Warning)$", base))


def test_every_error_class_is_a_user_error_or_a_failure():
    """growctl would report any other exception as a bug. `model/errors.py` defines the two base classes."""
    bases: dict[str, set[str]] = {}
    files = [path for floor in ("model", "stages", "growctl") for path in (REPOSITORY / floor).rglob("*.py")]
    for source in map(Path.read_text, files):
        for node in ast.walk(ast.parse(source)) if "class " in source else ():
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(ast.unparse(base).rpartition(".")[2] for base in node.bases)

    def descends(name: str, is_ancestor: Callable[[str], bool]) -> bool:
        return is_ancestor(name) or any(descends(base, is_ancestor) for base in bases.get(name, ()))

    exceptions = {name for name in bases if descends(name, is_foreign_exception)}
    assert exceptions > {"UserError", "Failure", "LedgerError", "BrokenLedger", "RunFailed", "DiskFull"}
    assert {name for name in exceptions if not descends(name, {"UserError", "Failure"}.__contains__)} == OTHER_ERRORS
