"""An open ledger with the plan of a run of two stages."""

from pathlib import Path
from typing import Any

import pytest

from growctl.ledger.ledger import Ledger
from tests.growctl.ledger.records import BASE, GROWN, RUN


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Any:
    with Ledger(path) as ledger:
        ledger.record_run(RUN, [BASE, GROWN])
        yield ledger
