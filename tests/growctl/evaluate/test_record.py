"""Scores go into the ledger of a run that is not running, and into a file from which the ledger can be rebuilt."""

import json
from pathlib import Path

import pytest

from growctl.evaluate import record as recording
from growctl.evaluate.record import place_of, record
from growctl.ledger.entries import ScoreEntry
from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
from growctl.ledger.lines import read_lines
from growctl.runs.find import newest_scores
from growctl.runs.lock import hold
from growctl.runs_dir import RunPaths
from stages.checkpoint.files import hash_file
from stages.checkpoint.manifest import manifest_hash
from stages.evaluate.results import Score
from tests.growctl.invented_runs import FakeRun, stage_of
from tests.growctl.runs import run_here
from tests.growctl.text.schemas import assert_follows_schema
from tests.pretrained import write_pretrained

SCORES = [Score(task="piqa", metric="acc", value=0.5, num_samples=10)]


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    """A run of two stages; the first has a release. Its checkpoints are tiny."""
    small = stage_of("small", 1_000_000, 10)
    FakeRun(tmp_path, "ladder", [small, stage_of("large", 2_000_000, 10)]).train(0, 3.0)
    run = RunPaths(tmp_path / "ladder")
    stage = run.stage(0, "small")
    stage.directory.mkdir(parents=True)
    write_pretrained(stage.final)
    return run


def scores_in(run: RunPaths, stage: str = "small") -> list[ScoreEntry]:
    with Ledger(run.ledger, read_only=True) as ledger:
        return ledger.scores(stage)


def test_scores_of_a_runs_checkpoint_are_in_its_ledger_and_its_stage(run: RunPaths):
    stage = run.stage(0, "small")
    assert record(stage.final, SCORES, {"limit": None}).ledger == run.ledger
    (found,) = scores_in(run)
    assert found == read_lines(stage.scores, ScoreEntry)[0]
    assert (found.stage, found.checkpoint, found.manifest) == ("small", "final", manifest_hash(stage.final))
    assert (found.task, found.metric, found.value, found.settings) == ("piqa", "acc", 0.5, {"limit": None})


def test_a_checkpoint_outside_a_run_has_no_ledger_and_a_release_is_named_as_in_the_ledger(run: RunPaths):
    write_pretrained(run.directory.with_name("copied"))
    recorded = record(run.directory.with_name("copied"), SCORES, {})
    assert (recorded.ledger, recorded.why_not) == (None, None)
    release = run.stage(0, "small").release
    release.directory.mkdir()
    write_pretrained(release.final)
    place = place_of(release.final)
    assert place is not None
    assert (place.stage, place.paths.directory.resolve()) == ("small/release", release.directory.resolve())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "PATIENCE_SECONDS", 0.0)


@pytest.mark.usefixtures("impatient")
def test_nothing_is_written_while_the_run_is_running(run: RunPaths):
    with hold(run.directory):
        recorded = record(run.stage(0, "small").final, SCORES, {})
    assert "is in use by another growctl" in (recorded.why_not or "")
    assert (recorded.ledger, run.stage(0, "small").scores.exists(), scores_in(run)) == (None, False, [])


def test_a_broken_ledger_keeps_the_scores_in_the_stage(run: RunPaths):
    run.ledger.write_bytes(b"not a ledger" * 1000)
    recorded = record(run.stage(0, "small").final, SCORES, {})
    assert "the ledger is broken" in (recorded.why_not or "")
    assert [score.task for score in read_lines(run.stage(0, "small").scores, ScoreEntry)] == ["piqa"]


def test_recording_the_scores_of_the_file_again_changes_nothing(run: RunPaths):
    record(run.stage(0, "small").final, SCORES, {})
    with Ledger(run.ledger) as ledger:
        ledger.record_scores(read_lines(run.stage(0, "small").scores, ScoreEntry))
        assert len(ledger.scores("small")) == 1
        with pytest.raises(LedgerError, match="no stage 'huge'"):
            ledger.record_scores([ScoreEntry("huge", "final", "", "", "piqa", "acc", "none", 0.5)])


def test_another_tokenizer_does_not_replace_the_figure_of_the_checkpoints_own(run: RunPaths, tmp_path: Path):
    text, final = tmp_path / "text.txt", run.stage(0, "small").final
    text.write_text("the hen is in the barn. " * 20)
    other = tmp_path / "other.json"
    other.write_text((final / "tokenizer.json").read_text() + "\n")
    for tokenizer in ([], ["--tokenizer", final / "tokenizer.json"], ["--tokenizer", other]):
        run_here("eval", final, "--text", text, *tokenizer)
    with_loss = [score for score in newest_scores(scores_in(run)) if score.metric == "loss"]
    assert [score.settings.get("tokenizer") for score in with_loss] == [None, hash_file(other)]


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_the_command_records_and_the_report_shows_it(run: RunPaths, tmp_path: Path):
    (tmp_path / "text.txt").write_text("the hen is in the barn. " * 20)
    final = run.stage(0, "small").final
    out, _ = run_here("eval", final, "--text", tmp_path / "text.txt", "--json")
    assert json.loads(out)["recorded_in"] == str(run.ledger.resolve())
    out, _ = run_here("eval", final, "--text", tmp_path / "text.txt", "--contexts", "16,64")
    assert f"recorded in {run.ledger}" in out
    assert {score.task for score in scores_in(run)} == {"text", "context-16", "context-64"}
    for line in run.stage(0, "small").scores.read_text().splitlines():
        assert_follows_schema(json.loads(line), "scores")
    [document] = json.loads(run_here("report", "--runs-dir", tmp_path, "--json")[0])["runs"]
    assert {score["metric"] for score in document["stages"][0]["scores"]} > {"perplexity", "bits_per_byte"}
    with hold(run.directory):
        out, err = run_here("eval", final, "--text", tmp_path / "text.txt", "--json")
    assert json.loads(out)["recorded_in"] is None
    assert "not recorded in the ledger of the run: " in err
