"""A non-finite gradient on any rank changes no weight, moment or step on any rank of any engine."""

import json
from pathlib import Path

import pytest

from tests.stages.train.rejection_worker import kinds
from tests.workers import launch


@pytest.fixture(scope="module")
def reports(training, tmp_path_factory):
    """By number of ranks."""
    folder = tmp_path_factory.mktemp("rejection")
    for ranks in (1, 2):
        launch(Path(__file__).parent / "rejection_worker.py", ranks, str(folder / f"{ranks}.json"))
    return {ranks: json.loads((folder / f"{ranks}.json").read_text()) for ranks in (1, 2)}


@pytest.mark.parametrize(("ranks", "kind"), [(ranks, kind) for ranks in (1, 2) for kind, *_ in kinds(ranks)])
def test_a_rejected_update_changes_no_state_and_an_idle_guard_changes_no_bit(reports, ranks, kind):
    def rejected(kind: str, finite: bool) -> dict[str, object]:
        return {"rejected": True, "untouched": True, "kind": kind, "value is finite": finite}

    assert reports[ranks][kind] == {
        "first loss": True,
        "good update made": True,
        "finite": True,
        "nan loss": rejected("non_finite", finite=False),
        "infinite gradient": rejected("non_finite", finite=True),
        "spike": rejected("spike", finite=True),
        "second loss": True,
        "same end": True,
        "steps": [2],
    }
