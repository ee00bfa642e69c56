"""The frame of `make test-services`, with invented services."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.services.__main__ import main, services
from tests.services.service import Result, Service, run_checks
from tests.services.table import markdown

NOTES: list[str] = []


@contextmanager
def _started(folder: Path) -> Iterator[Path]:
    NOTES.append("started")
    yield folder
    NOTES.append("stopped")


def _fails(folder: Path) -> str:
    raise AssertionError("saw\nnothing")


def _service(*checks: Callable[[Path], str], programs: tuple[str, ...] = (), modules: tuple[str, ...] = ()) -> Service:
    named = tuple((check.__name__, check) for check in checks)
    return Service("Invented", programs, modules, "apt-get install it", lambda: "it 1.0", _started, named)


def test_every_check_runs_even_after_one_failed_and_the_service_is_stopped(tmp_path):
    NOTES.clear()
    failed, passed = run_checks(_service(_fails, lambda folder: f"files in {folder.name}"), tmp_path)
    assert (failed.outcome, failed.seen) == ("failed", "saw nothing")
    assert (passed.outcome, passed.seen) == ("passed", f"files in {tmp_path.name}")
    assert "raise AssertionError" in (tmp_path / "failures.txt").read_text()
    assert NOTES == ["started", "stopped"]


@pytest.mark.parametrize(("kind", "missing"), [("programs", "no-such-program"), ("modules", "no_such_module")])
def test_a_service_is_skipped_by_name_with_the_command_that_installs_it(tmp_path, capsys, kind, missing):
    [result] = run_checks(_service(_fails, **{kind: (missing,)}), tmp_path)
    assert result.outcome == "skipped"
    assert missing in result.seen
    assert "Invented: skipped: needs " in capsys.readouterr().out
    assert result.seen.endswith("apt-get install it")


def test_a_service_that_does_not_start_or_stop_is_a_failure(tmp_path):
    @contextmanager
    def stays_up(folder: Path) -> Iterator[None]:
        yield
        raise OSError("still there")

    def fails(folder: Path) -> str:
        raise AssertionError("the check's own failure")

    @contextmanager
    def unstartable(folder: Path) -> Iterator[None]:
        raise OSError("port in use")
        yield

    service = Service("Invented", (), (), "", lambda: "it 1.0", unstartable, (("check", _fails),))
    assert [(result.check, result.seen) for result in run_checks(service, tmp_path)] == [("starts", "port in use")]
    service = Service("Invented", (), (), "", lambda: "it 1.0", stays_up, (("check", fails),))
    assert [(result.check, result.seen) for result in run_checks(service, tmp_path)] == [
        ("check", "the check's own failure"),
        ("stops", "still there"),
    ]


def test_the_table_in_markdown_has_a_row_for_each_check_with_its_version_named_once():
    results = [Result("A", "a 1.0", name, "passed", "x|y", 63.0) for name in ("one", "two")]
    results.append(Result("B", "-", "three", "skipped", "needs b"))
    table = markdown(results)
    assert table.count("a 1.0") == 1
    assert "| A | one | x\\|y | 1m 3s |" in table
    assert "| B | three | skipped: needs b | 0s |" in table


def test_an_unknown_service_is_rejected_with_the_names_of_all(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["services", "slurn"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert f"no service slurn; there are {', '.join(services())}" in capsys.readouterr().err
