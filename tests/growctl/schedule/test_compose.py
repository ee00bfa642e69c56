"""Schedules built on other schedules and block choices: which value wins, and where references lead."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from growctl.ladder.load import load_schedule
from tests.growctl.schedules import TEXT, file_of

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
def test_every_value_comes_from_the_file_that_wins(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORPUS", "/texts")
    monkeypatch.setenv("SEED", "7")
    file_of(tmp_path, TEXT)
    for name, content in {"mine.yaml": case["mine"], **case.get("files", {})}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        file_of(tmp_path, yaml.safe_dump(content), name)
    schedule = load_schedule(str(tmp_path / "mine.yaml"), case.get("overrides", []))
    values = OmegaConf.create(schedule.model_dump(mode="json"))
    assert {path: OmegaConf.select(values, path) for path in case["gives"]} == case["gives"]
