"""The frame of `make test-services`, with invented services."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.services.service import Result, Service, markdown, run_checks


def _fails(folder: Path) -> str:
    raise AssertionError("saw\nnothing")


def _service(*notes: str, programs: tuple[str, ...] = (), modules: tuple[str, ...] = ()) -> Service:
    """A service that fails to start or to stop if `notes` say so."""

    @contextmanager
    def start(folder: Path) -> Iterator[Path]:
        if "unstartable" in notes:
            raise OSError("port in use")
        yield folder
        (folder / "stopped").touch()
        if "unstoppable" in notes:
            raise OSError("still there")

    checks: dict[str, Callable[[Path], str]] = {"fails": _fails, "passes": lambda folder: folder.name}
    return Service("Invented", programs, modules, "apt-get install it", lambda: "it 1.0", start, checks)


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ((), [("fails", "failed", "saw nothing"), ("passes", "passed", "folder")]),
        (("unstartable",), [("starts", "failed", "port in use")]),
        (
            ("unstoppable",),
            [("fails", "failed", "saw nothing"), ("passes", "passed", "folder"), ("stops", "failed", "still there")],
        ),
    ],
)
def test_every_check_runs_even_after_one_failed_and_the_service_is_stopped(tmp_path, notes, expected) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    found = run_checks(_service(*notes), folder)
    assert [(result.check, result.outcome, result.seen) for result in found] == expected
    assert (folder / "stopped").exists() == ("unstartable" not in notes)
    assert "raise " in (folder / "failures.txt").read_text()


@pytest.mark.parametrize("missing", [{"programs": ("no-such-program",)}, {"modules": ("no_such_module",)}])
def test_a_service_is_skipped_by_name_with_the_command_that_installs_it(tmp_path, missing) -> None:
    found = run_checks(_service(**missing), tmp_path)
    assert {result.outcome for result in found} == {"skipped"}
    assert all(result.seen.startswith("needs ") and result.seen.endswith("apt-get install it") for result in found)


def test_the_table_has_a_row_for_each_check_with_its_version_named_once() -> None:
    results = [Result("A", "a 1.0", name, "passed", "x|y", 63.0) for name in ("one", "two")]
    table = markdown([*results, Result("B", "-", "three", "skipped", "needs b")])
    assert table.count("a 1.0") == 1
    assert "| A | one | x\\|y | 1m 3s |" in table
    assert "| B | three | skipped: needs b | 0s |" in table
