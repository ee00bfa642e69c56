"""The frame of `make test-services`, with invented services."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.services.service import Service, run_checks

OF_BOTH_CHECKS = [("fails", "failed", "saw nothing"), ("passes", "passed", "folder")]


@pytest.mark.parametrize(
    ("programs", "problem", "expected"),
    [
        ((), "", OF_BOTH_CHECKS),
        ((), "at start", [("starts and stops", "failed", "at start")]),
        ((), "at stop", [*OF_BOTH_CHECKS, ("starts and stops", "failed", "at stop")]),
        (
            ("no-such-program",),
            "",
            [(name, "skipped", "needs no-such-program: get it") for name in ("fails", "passes")],
        ),
    ],
)
def test_every_check_gives_a_result_even_after_one_failed_and_the_service_is_stopped(
    tmp_path, programs, problem, expected
) -> None:
    @contextmanager
    def start(folder: Path) -> Iterator[Path]:
        if problem == "at start":
            raise OSError(problem)
        yield folder
        (folder / "stopped").touch()
        if problem:
            raise OSError(problem)

    def fails(folder: Path) -> str:
        raise AssertionError("saw\nnothing")

    folder = tmp_path / "folder"
    folder.mkdir()
    checks: dict[str, Callable[[Path], str]] = {"fails": fails, "passes": lambda folder: folder.name}
    found = run_checks(Service("Invented", programs, (), "get it", lambda: "it 1.0", start, checks), folder)
    assert [(result.check, result.outcome, result.seen) for result in found] == expected
    assert (folder / "stopped").exists() == (OF_BOTH_CHECKS[0] in expected)
