"""Schedules built on other schedules and block choices: which value wins, and where references lead."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from growctl.ladder.load import load_schedule
from tests.growctl.schedules import TEXT, file_of

ROOT = Path(__file__).resolve().parent.parent.parent.parent

COMPOSED = """
own values win over a shipped schedule's:
  mine: {defaults: [quickstart], seed: 9, training: {batch_size: 32}}
  gives: {name: mine, seed: 9, training.batch_size: 32, training.sequence_length: 64, stages.2.name: 262k}
_self_ may come last, and a name may have its ending:
  mine: {defaults: [quickstart.yaml, _self_], seed: 9}
  gives: {seed: 9, training.sequence_length: 64}
defaults after _self_ win over the file:
  mine: {defaults: [_self_, s], seed: 9, optimizer: {weight_decay: 0.5}}
  gives: {seed: 3, optimizer.weight_decay: 0.5}
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
a list replaces an earlier list:
  mine: {defaults: [s], stages: [{name: one, attention_tokens: 4, ffn_tokens: 8, train_steps: 5}], controls: []}
  gives: {stages.0.name: one, controls: []}
a later choice wins over a schedule:
  mine: {defaults: [s, {launch: slurm}]}
  gives: {launch.cluster: slurm, launch.micro_batch_size: auto}
a choice on the command line:
  mine: {defaults: [s]}
  overrides: [launch=slurm]
  gives: {launch.cluster: slurm, launch.micro_batch_size: auto}
a choice with a sign:
  mine: {defaults: [s]}
  overrides: [++launch=slurm]
  gives: {launch.cluster: slurm, launch.micro_batch_size: auto}
another choice has the place of the first, of which nothing is left:
  files: {launch/named.yaml: {cluster: slurm, slurm: {partition: gpu}}}
  mine: {defaults: [s, {launch: named}], launch: {nodes: 5}}
  overrides: [launch=hostfile]
  gives: {launch.cluster: hostfile, launch.nodes: 5, launch.slurm.partition: null}
a new choice comes last:
  mine: {defaults: [s], launch: {nodes: 5, offload: optimizer}}
  overrides: [launch=hostfile]
  gives: {launch.cluster: hostfile, launch.nodes: 2, launch.offload: optimizer}
values win over choices, and the last choice over others:
  mine: {defaults: [s]}
  overrides: [launch.nodes=4, launch=local, launch=slurm]
  gives: {launch.cluster: slurm, launch.nodes: 4}
a choice in the same folder wins over a shipped one:
  files: {launch/slurm.yaml: {cluster: slurm, nodes: 11}}
  mine: {defaults: [s, {launch: slurm}]}
  gives: {launch.nodes: 11}
a choice can start from another:
  files: {launch/big.yaml: {defaults: [slurm], nodes: 64}}
  mine: {defaults: [s]}
  overrides: [launch=big]
  gives: {launch.cluster: slurm, launch.nodes: 64, launch.devices: 8}
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
the size of a text is inherited with it:
  mine: {defaults: [quickstart]}
  overrides: [data.workers=2]
  gives: {data.approximate_tokens: 3900000}
another text has not the size of the first:
  mine: {defaults: [quickstart], data: {source: mine.txt}}
  gives: {data.approximate_tokens: null}
another text may have its own size:
  mine: {defaults: [quickstart], data: {source: mine.txt, approximate_tokens: 3}}
  gives: {data.approximate_tokens: 3}
an overridden text has not the size of the first:
  mine: {defaults: [quickstart]}
  overrides: [data.source=mine.txt]
  gives: {data.approximate_tokens: null}
an overridden text may have its own size, in any order:
  mine: {defaults: [quickstart]}
  overrides: [data.approximate_tokens=5M, data.source=mine.txt]
  gives: {data.approximate_tokens: 5000000}
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


HYDRA_APP = """
import hydra
from hydra import version
from hydra.core.config_store import ConfigStore
from growctl.ladder.load import load_schedule

ConfigStore.instance().store("mine", {"answer": 0})

@hydra.main(config_path=None, config_name="mine", version_base="1.2")
def app(config):
    load_schedule("quickstart", ["seed=7"])
    assert hydra.core.hydra_config.HydraConfig.get().job.chdir is False
    print(config.answer, version.getbase(), sorted(ConfigStore.instance().repo))

load_schedule("quickstart", ["launch=slurm"])
app()
"""


def test_a_hydra_application_of_the_users_own_can_load_schedules(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HYDRA_APP, "answer=42", "hydra.job.chdir=false"]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "42 1.2 ['_dummy_empty_config_.yaml', 'hydra', 'mine.yaml']\n"
