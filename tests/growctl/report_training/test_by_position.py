"""The loss by position in the window, from what `growctl eval --contexts` records."""

from dataclasses import replace
from pathlib import Path

from growctl.analysis.find import find_runs
from growctl.analysis.runs import RunReport
from growctl.evaluate.long_context import contexts_scores
from growctl.ledger.ledger import ScoreEntry
from growctl.report.chart import Chart
from growctl.report.scores import other_scores
from growctl.report_training.by_position import section
from growctl.text.section import Table
from stages.evaluate.long_context import Bucket, ContextLoss
from tests.growctl.invented_runs import ladder


def evaluated(run: RunReport, text: str, *losses: float) -> RunReport:
    """That run after an evaluation of its last model at a context of 64 tokens for each loss."""
    buckets = tuple(Bucket(64 * n, 64 * n + 63, loss, 1000 + n) for n, loss in enumerate(losses))
    measured = ContextLoss(64 * len(losses), None, 2000, 3.0, buckets, 1.0, None, 128)
    facts = ("1-2m", "final", "a" * 64, "2026-01-01")
    scores = [ScoreEntry(*facts, **score, settings={"text": [text]}) for score in contexts_scores([measured])]
    *stages, last = run.stages
    return replace(run, stages=(*stages, replace(last, scores=(*last.scores, *scores))))


def test_the_loss_by_position_is_recorded_and_shown_for_each_evaluation_and_not_among_other_scores(
    tmp_path: Path,
) -> None:
    ladder(tmp_path)
    [run] = find_runs(tmp_path)
    assert section([run]) is None
    run = evaluated(evaluated(run, "/x/book.txt", 3.5, 3.25), "/x/code.py", 2.0)
    shown = section([run])
    assert shown
    chart, table = shown.parts
    assert isinstance(chart, Chart)
    assert isinstance(table, Table)
    assert [[(mark.x["position"], mark.y) for mark in series.marks] for series in chart.series] == [
        [(32, 3.5), (96, 3.25)],
        [(32, 2.0)],
    ]
    assert [rows.remark for rows in table.groups] == ["context 128, book.txt", "context 64, code.py"]
    assert [cell.text for cell in table.groups[0].rows[1]] == ["64 to 127", "3.2500", "1,001"]
    assert not any("loss_at" in metrics for _, _, metrics in other_scores([run]))
    assert len(other_scores([run])) == 2
