"""An open ledger with the plan of a run of two stages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from growctl.ledger.ledger import Ledger
from tests.growctl.ledger.records import BASE, GROWN, RUN


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.record_run(RUN, [BASE, GROWN])
        yield ledger
