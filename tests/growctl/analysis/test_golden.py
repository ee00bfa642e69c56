"""What `report` and `compare` say of invented ladders, frozen: a change shows as a diff of golden/.

After a change on purpose, `python -m tests.growctl.analysis.test_golden [LADDER ...]` writes the files again. The
commit says why.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.growctl.analysis.ladders import LADDERS
from tests.growctl.runs import run_here

GOLDEN = Path(__file__).parent / "golden"
IDS = ("run_id", "ladder_id")
DETAILS = ("costs", "several_seeds")
"""The ladders of which the details say more than the first screens of all others."""
EVERY_FIGURE = "costs"
"""The ladder whose runs are frozen too, stage by stage."""


def produced(ladder: str, folder: Path) -> dict[str, str]:
    """The golden files of a ladder by name, from runs that are invented in `folder`."""
    a, b = LADDERS[ladder](folder / "runs")

    def said(*command: str) -> str:
        return run_here(*command, "--runs-dir", "runs", columns=80, cwd=folder)[0]

    with pytest.MonkeyPatch.context() as patch:  # drawing the page would take most of the time
        patch.setattr("growctl.report.documents.write_report", lambda *_, **__: Path("report.html"))
        shown = said("report", "--details") if ladder in DETAILS else said("report")
    report = json.loads(said("report", "--json"), parse_float=_rounded)
    if ladder != EVERY_FIGURE:
        del report["runs"]  # what ledgers record, which tests/growctl/report/test_report.py checks
    return {
        "report.json": _as_json(report),
        "compare.json": _as_json(json.loads(said("compare", a, b, "--json"), parse_float=_rounded)),
        "report.txt": "".join(f"{line.rstrip()}\n" for line in shown.splitlines()),
    }


def _rounded(text: str) -> float:
    """A figure without the digits that depend on the processor."""
    return float(f"{float(text):.9g}")


def _as_json(document: dict[str, Any]) -> str:
    """A document whose lines can be compared: keys sorted, without random ids and what is empty or null."""
    filled = json.loads(json.dumps(document), object_hook=_filled)
    return json.dumps(filled, indent=1, sort_keys=True) + "\n"


def _filled(block: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key not in IDS and value not in (None, "", [], {})}


@pytest.mark.slow
@pytest.mark.parametrize("ladder", LADDERS)
def test_report_and_compare_say_of_an_invented_ladder_what_is_frozen(ladder: str, tmp_path: Path) -> None:
    for name, text in produced(ladder, tmp_path).items():
        assert text == (GOLDEN / ladder / name).read_text(), f"golden/{ladder}/{name} differs: see {__name__}"


def write(*ladders: str) -> None:
    """Writes the golden files of these ladders, or of all."""
    for ladder in ladders or LADDERS:
        with tempfile.TemporaryDirectory() as folder:
            (GOLDEN / ladder).mkdir(parents=True, exist_ok=True)
            for name, text in produced(ladder, Path(folder)).items():
                (GOLDEN / ladder / name).write_text(text)


if __name__ == "__main__":
    write(*sys.argv[1:])
