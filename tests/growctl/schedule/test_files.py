"""Names of schedule files, which file wins, and how overrides are written: what resolves, and what is rejected."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from growctl.ladder.load import load_schedule
from growctl.runs_dir import NAME_ALLOWED
from growctl.schedule.files import shipped_schedules
from tests.growctl.schedule.test_growth_block import reloaded
from tests.growctl.schedules import BASE, DELETE, TEXT, changed, file_of, message_of, parse


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a schedule s.yaml: messages name files as a user in that folder sees them."""
    monkeypatch.chdir(tmp_path)
    file_of(tmp_path, TEXT)
    return tmp_path


def test_a_file_that_exists_wins_over_a_shipped_name_and_a_folder_does_not(folder: Path) -> None:
    (folder / "quickstart").mkdir()
    assert load_schedule("quickstart").seed != BASE["seed"]
    (folder / "quickstart").rmdir()
    file_of(folder, TEXT, "quickstart")
    file_of(folder, "not: this", "quickstart.yml")
    assert load_schedule("quickstart").seed == BASE["seed"]


@pytest.mark.parametrize("name", ["s.yml", "s", "a=b $c:d ${e} {}/s.yaml"])
def test_a_schedule_can_have_any_suffix_and_any_folder(tmp_path: Path, name: str) -> None:
    folder = (tmp_path / name).parent
    folder.mkdir(exist_ok=True)
    file_of(folder, TEXT, "other.yaml")
    content = "defaults: [other]\nname: run\n"
    assert load_schedule(file_of(tmp_path, content, name), ["seed=5"]) == parse(changed({"seed": 5, "name": "run"}))


def test_a_run_is_named_after_its_file_unless_the_schedule_sets_a_name(folder: Path) -> None:
    assert load_schedule(file_of(folder, TEXT, "pile_1.4b.yaml")).name == "pile_1.4b"
    assert load_schedule(file_of(folder, f"name: mine\n{TEXT}", "own.yaml")).name == "mine"
    not_allowed = f"name: is missing, and the file's name 'my run' is not allowed: {NAME_ALLOWED}"
    assert not_allowed in message_of(load_schedule, file_of(folder, TEXT, "my run.yaml"))


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        (["stages.0.train_tokens=200k", "seed=1"], {"stages.0.train_tokens": 200_000, "seed": 1}),
        (["~controls", "~launch.micro_batch_size"], {"controls": DELETE, "launch.micro_batch_size": DELETE}),
        (["data.source=s3://bucket/a file.txt"], {"data.source": "s3://bucket/a file.txt"}),
    ],
    ids=lambda value: ",".join(value),
)
def test_overrides_use_hydras_syntax(tmp_path: Path, overrides: list[str], changes: dict[str, Any]) -> None:
    assert load_schedule(file_of(tmp_path, TEXT), overrides) == parse(changed(changes))


@settings(max_examples=20)
@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\\$"), min_size=1),
    st.floats(1e-12, 10.0),
)
@pytest.mark.slow
def test_names_texts_and_rates_survive_the_dump(name: str, separator: str, peak: float) -> None:
    original = parse(changed({"name": name, "data.document_separator": separator, "learning_rate.peak": peak}))
    assert reloaded(original) == original


NOT_AN_OVERRIDE = "is not an override; write key=value"
NO_SUCH = "Environment variable 'GROWCTL_NO_SUCH' not found"
NOT_A_BLOCK = "must be a block of a schedule's keys"


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        *((wrong, NOT_AN_OVERRIDE) for wrong in ("foo", "--name=x", "hydra.job=1")),
        ("stages.9.name=x", "stages.9: list index out of range"),
        ("seed=1,2", "override 'seed=1,2': gives several values"),
        ("seed=${no.such}", "seed: Interpolation key 'no.such' not found"),
        ("seed=${oc.env:GROWCTL_NO_SUCH}", NO_SUCH),
        ("launch=slrum", "no file 'launch/slrum'; there are hostfile, local, slurm; did you mean 'slurm'?"),
        ("seed.x=3", 'seed = {"x": 3}: must be'),
    ],
    ids=lambda text: text[:40],
)
def test_a_wrong_override_gives_one_line(folder: Path, override: str, reason: str) -> None:
    message = message_of(load_schedule, "s.yaml", ["training.batch_size=16", override])
    assert message.startswith("s.yaml: ")
    assert reason in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("hello\n", NOT_A_BLOCK),
        ("seed: 1\nhydra: {verbose: true}\n", NOT_A_BLOCK),
        ("h\xe9\n".encode("latin-1"), "is not UTF-8"),
        ("seed: 0: 1\n", "line 1, column 8: "),
        ("seed: 1\nmodel: {}\nseed: 2\n", "line 3, column 1: found duplicate key seed"),
        ("seed: 1\n---\nseed: 2\n", "found another document"),
        ("seed: !!python/object/apply:os.getcwd []\n", "os.getcwd"),
        ("seed: ${seed}\n", "seed: Recursive interpolation"),
        ("data: {source: '${oc.env:GROWCTL_NO_SUCH}'}\n", NO_SUCH),
        ("seed: ???\n", "seed: Missing mandatory value"),
        ("defaults: s\n", "defaults must be a list"),
        ("defaults: [quikstart]\n", "did you mean 'quickstart'?"),
        ("defaults: [pile_1.4b, {data: wikitext}]\n", "To override a value use 'override data: "),
        ("defaults: [loop]\n", "contains itself"),
        ("defaults: [bad]\n", "bad.yaml: line 1, column 5: "),
        ("cluster: slurm\n", "is not a schedule"),
    ],
    ids=lambda content: str(content[:60]),
)
def test_an_unusable_file_gives_one_line(folder: Path, content: str | bytes, reason: str) -> None:
    for name, beside in {"bad": "a: b: c\n", "loop": "defaults: [s, loop2]\n", "loop2": "defaults: [loop]\n"}.items():
        file_of(folder, beside, f"{name}.yaml")
    message = message_of(load_schedule, Path(file_of(folder, content, "mine.yaml")).name)
    assert message.startswith("mine.yaml: ")
    assert reason in message
    assert "\n" not in message


def test_a_missing_file_lists_the_shipped_names_and_suggests_the_nearest_file(folder: Path) -> None:
    comes_with = f"no such file; growctl comes with {', '.join(shipped_schedules())}"
    for reference in (".", "a/b", "", "a\0b"):
        assert message_of(load_schedule, reference) == f"{reference!r}: {comes_with}"
    assert message_of(load_schedule, "quikstart") == f"'quikstart': {comes_with}; did you mean 'quickstart'?"


COMPOSED = """
own values win over a shipped schedule's:
  mine: {defaults: [quickstart], seed: 9, training: {batch_size: 32}}
  gives: {name: mine, seed: 9, training.batch_size: 32, training.sequence_length: 64, stages.2.name: 262k}
a schedule in the same folder wins over a shipped one:
  files: {quickstart.yml: {defaults: [s]}}
  mine: {defaults: [quickstart]}
  gives: {training.sequence_length: 16}
schedules are looked up from their own folder and choices from the top:
  files:
    launch/seven.yaml: {nodes: 7}
    ladders/base.yaml: {defaults: [../s, {launch: seven}], seed: 1}
    ladders/middle.yaml: {defaults: [base], optimizer: {weight_decay: 0.5}}
  mine: {defaults: [ladders/middle], seed: 2}
  gives: {seed: 2, optimizer.weight_decay: 0.5, launch.nodes: 7, training.batch_size: 8}
another choice has the place of the first, of which nothing is left:
  files: {launch/named.yaml: {cluster: slurm, slurm: {partition: gpu}}}
  mine: {defaults: [s, {launch: named}], launch: {nodes: 5}}
  overrides: [launch=hostfile]
  gives: {launch.cluster: hostfile, launch.nodes: 5, launch.slurm.partition: null}
values win over choices, and the last choice over others:
  mine: {defaults: [s]}
  overrides: [launch.nodes=4, launch=local, launch=slurm]
  gives: {launch.cluster: slurm, launch.nodes: 4}
a choice in the same folder wins over a shipped one:
  files: {launch/slurm.yaml: {cluster: slurm, nodes: 11}}
  mine: {defaults: [s, {launch: slurm}]}
  gives: {launch.nodes: 11}
a schedule can override the choice of another:
  mine: {defaults: [pile/tokenformer_150m, {override data: wikitext}]}
  gives: {data.vocab_size: 4096, data.approximate_tokens: 150000000, model.hidden_size: 768}
folders with the names of keys are no choices:
  files: {seed/x.txt: 1, data/x.txt: 1, stages/x.txt: 1, controls/x.txt: 1}
  mine: {defaults: [s]}
  overrides: [seed=1, "data={source: /other}", ~controls, launch=slurm]
  gives: {seed: 1, data.source: /other, controls: [], launch.cluster: slurm}
references are resolved after overrides:
  mine:
    defaults: [s]
    seed: ${oc.decode:${oc.env:SEED}}
    data: {source: "${oc.env:CORPUS}"}
    evaluation: {every: "${training.batch_size}", max_sequences: "${oc.select:no.such,5}"}
  overrides: [training.batch_size=16, "checkpoint.every=${evaluation.every}"]
  gives: {seed: 7, data.source: /texts, evaluation.every: 16, evaluation.max_sequences: 5, checkpoint.every: 16}
an override changes every value that refers to it:
  mine: {defaults: [openwebtext_1.4b]}
  overrides: [stages.1.train_tokens=15B]
  gives: {stages.0.train_tokens: 300000000000, stages.1.train_tokens: 15000000000, stages.3.train_tokens: 15000000000}
another text has not the size of the first:
  mine: {defaults: [quickstart], data: {source: mine.txt}}
  gives: {data.approximate_tokens: null}
an overridden text has not the size of the first:
  mine: {defaults: [quickstart]}
  overrides: [data.source=mine.txt]
  gives: {data.approximate_tokens: null}
"""
"""mine.yaml, files beside it and s.yaml, overrides, and values that the schedule has then."""

CASES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSED)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_value_comes_from_the_file_that_wins(case, tmp_path, monkeypatch):
    monkeypatch.setenv("CORPUS", "/texts")
    monkeypatch.setenv("SEED", "7")
    file_of(tmp_path, TEXT)
    for name, content in {"mine.yaml": case["mine"], **case.get("files", {})}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        file_of(tmp_path, yaml.safe_dump(content), name)
    schedule = load_schedule(str(tmp_path / "mine.yaml"), case.get("overrides", []))
    values = OmegaConf.create(schedule.model_dump(mode="json"))
    assert {path: OmegaConf.select(values, path) for path in case["gives"]} == case["gives"]
