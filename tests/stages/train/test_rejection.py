"""A non-finite gradient on any rank changes no weight, moment or step on any rank of any engine."""

import json
from pathlib import Path

import pytest

from tests.stages.train.rejection_worker import KINDS
from tests.workers import launch

pytestmark = pytest.mark.trains


@pytest.fixture(scope="module", params=[1, 2], ids=["1 rank", "2 ranks"])
def report(request, tmp_path_factory):
    found = tmp_path_factory.mktemp("rejection") / "report.json"
    launch(Path(__file__).parent / "rejection_worker.py", request.param, str(found))
    return json.loads(found.read_text())


@pytest.mark.parametrize("kind", [kind for kind, *_ in KINDS])
def test_a_rejected_update_changes_no_state_and_an_idle_guard_changes_no_bit(report, kind):
    def rejected(kind: str, finite: bool) -> dict[str, object]:
        return {"rejected": True, "untouched": True, "kind": kind, "value is finite": finite}

    assert report[kind] == {
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
