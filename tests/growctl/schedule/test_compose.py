"""Schedules built on other schedules and block choices: precedence, and rejected files."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from growctl.ladder.load import load_schedule
from growctl.schedule.compose import composed
from tests.growctl.schedules import TEXT, changed, file_of, message_of, parse

ROOT = Path(__file__).resolve().parent.parent.parent.parent
CLUSTERS = "there are hostfile, local, slurm"


def choice_of(folder: Path, group: str, name: str, content: str) -> str:
    (folder / group).mkdir(exist_ok=True)
    return file_of(folder / group, content, f"{name}.yaml")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a schedule s.yaml: messages name files as a user in that folder sees them."""
    monkeypatch.chdir(tmp_path)
    file_of(tmp_path, TEXT)
    return tmp_path


# Starting from another schedule


@pytest.mark.parametrize("defaults", ["[quickstart]", "[quickstart, _self_]", "[quickstart.yaml]"])
def test_a_schedule_in_any_folder_can_start_from_a_shipped_one_and_its_own_values_win(
    folder: Path, defaults: str
) -> None:
    path = file_of(folder, f"defaults: {defaults}\nseed: 9\ntraining: {{batch_size: 32}}\n", "mine.yaml")
    mine, quickstart = load_schedule(path), load_schedule("quickstart")
    assert (mine.name, mine.seed, mine.training.batch_size) == ("mine", 9, 32)
    assert mine.training.sequence_length == quickstart.training.sequence_length
    assert mine.stages == quickstart.stages


def test_a_schedule_in_the_same_folder_wins_over_a_shipped_one_of_that_name(folder: Path) -> None:
    file_of(folder, TEXT, "quickstart.yml")
    path = file_of(folder, "defaults: [quickstart]\nseed: 9\n", "mine.yaml")
    assert load_schedule(path) == parse(changed({"seed": 9})).model_copy(update={"name": "mine"})


def test_defaults_after_self_win_over_the_file(folder: Path) -> None:
    path = file_of(folder, "defaults: [_self_, s]\nseed: 9\noptimizer: {weight_decay: 0.5}\n", "mine.yaml")
    mine = load_schedule(path)
    assert (mine.seed, mine.optimizer.weight_decay) == (3, 0.5)


def test_defaults_work_across_folders_and_choices_are_looked_up_from_the_top(folder: Path) -> None:
    (folder / "ladders").mkdir()
    choice_of(folder, "launch", "mine", "nodes: 7\n")
    file_of(folder / "ladders", "defaults: [../s, {launch: mine}]\nseed: 1\n", "base.yaml")
    file_of(folder / "ladders", "defaults: [base]\noptimizer: {weight_decay: 0.5}\n", "middle.yaml")
    path = file_of(folder, "defaults: [ladders/middle]\nseed: 2\n", "top.yaml")
    top = load_schedule(path)
    assert (top.seed, top.optimizer.weight_decay, top.launch.nodes, top.training.batch_size) == (2, 0.5, 7, 8)


def test_a_list_replaces_an_earlier_list_as_a_whole(folder: Path) -> None:
    one = "{name: one, attention_tokens: 4, ffn_tokens: 8, train_steps: 5}"
    path = file_of(folder, f"defaults: [s]\nstages: [{one}]\ncontrols: []\n", "mine.yaml")
    assert [stage.name for stage in load_schedule(path).stages] == ["one"]


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


# Choices for blocks


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_a_choice_on_the_command_line_equals_one_in_a_defaults_list(folder: Path, prefix: str) -> None:
    path = file_of(folder, "defaults: [s, {launch: slurm}]\n", "mine.yaml")
    by_defaults = load_schedule(path)
    assert by_defaults.launch.cluster == "slurm"
    assert by_defaults.launch.micro_batch_size == "auto", "a later choice wins over s"
    by_override = load_schedule("s.yaml", [f"{prefix}launch=slurm"])
    assert by_override.launch == by_defaults.launch


def test_an_overridden_choice_keeps_its_place_in_the_defaults_list(folder: Path) -> None:
    path = file_of(folder, "defaults: [s, {launch: slurm}]\nlaunch: {nodes: 5}\n", "mine.yaml")
    launch = load_schedule(path, ["launch=hostfile"]).launch
    assert (launch.cluster, launch.nodes) == ("hostfile", 5)
    assert launch.slurm == load_schedule("s.yaml").launch.slurm, "nothing of slurm's choice is left"


def test_a_new_choice_is_appended_to_the_defaults_list(folder: Path) -> None:
    path = file_of(folder, "defaults: [s]\nlaunch: {nodes: 5, offload: optimizer}\n", "mine.yaml")
    launch = load_schedule(path, ["launch=hostfile"]).launch
    assert (launch.cluster, launch.nodes, launch.offload) == ("hostfile", 2, "optimizer")


def test_values_are_set_after_choices_and_the_last_choice_wins(folder: Path) -> None:
    for overrides in (["launch.nodes=4", "launch=local", "launch=slurm"], ["launch=slurm", "launch.nodes=4"]):
        launch = load_schedule("s.yaml", overrides).launch
        assert (launch.cluster, launch.nodes) == ("slurm", 4)


def test_a_choice_in_the_schedules_folder_wins_over_a_shipped_one(folder: Path) -> None:
    choice_of(folder, "launch", "slurm", "cluster: slurm\nnodes: 11\n")
    assert load_schedule("s.yaml", ["launch=slurm"]).launch.nodes == 11


def test_a_choice_can_start_from_another_choice(folder: Path) -> None:
    choice_of(folder, "launch", "big", "defaults: [slurm]\nnodes: 64\n")
    launch = load_schedule("s.yaml", ["launch=big"]).launch
    assert (launch.cluster, launch.nodes, launch.devices) == ("slurm", 64, 8)


def test_a_schedule_can_override_the_choice_of_another(folder: Path) -> None:
    path = file_of(folder, "defaults: [pile/tokenformer_150m, {override data: wikitext}]\n", "mine.yaml")
    mine = load_schedule(path)
    assert mine.data == load_schedule("wikitext").data


def test_folders_beside_a_schedule_are_not_choices(folder: Path) -> None:
    for name in ("seed", "data", "stages", "controls"):
        (folder / name).mkdir()
    overrides = ["seed=1", "data={source: /other}", "~controls", "launch=slurm"]
    loaded = load_schedule("s.yaml", overrides)
    assert (loaded.seed, loaded.data.source, loaded.controls) == (1, "/other", [])


def test_a_folder_may_have_a_name_that_looks_like_an_interpolation(tmp_path: Path) -> None:
    folder = tmp_path / "a${b}=c"
    folder.mkdir()
    file_of(folder, TEXT)
    path = file_of(folder, "defaults: [s]\nseed: 9\n", "mine.yaml")
    assert load_schedule(path).seed == 9


# Interpolation


def test_interpolations_are_resolved_between_blocks_files_and_stages_after_overrides(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORPUS", "/somewhere")
    monkeypatch.setenv("SEED", "7")
    path = file_of(
        folder,
        "defaults: [s]\nseed: ${oc.decode:${oc.env:SEED}}\ndata: {source: '${oc.env:CORPUS}'}\n"
        "evaluation: {every: '${training.batch_size}', max_sequences: '${oc.select:no.such,5}'}\n",
        "mine.yaml",
    )
    mine = load_schedule(path, ["training.batch_size=16", "checkpoint.every=${evaluation.every}"])
    assert (mine.seed, mine.data.source) == (7, "/somewhere")
    assert (mine.evaluation.every, mine.evaluation.max_sequences, mine.checkpoint.every) == (16, 5, 16)


def test_an_override_changes_every_value_that_refers_to_it() -> None:
    for budget in ("15B", "60B"):
        loaded = load_schedule("openwebtext_1.4b", [f"stages.1.train_tokens={budget}"])
        assert [stage.train_tokens for stage in loaded.stages[1:]] == [int(budget[:-1]) * 10**9] * 3
        assert loaded.stages[0].train_tokens == 300 * 10**9


# Rejected


def test_hydras_own_settings_are_no_part_of_a_schedule(folder: Path) -> None:
    file_of(folder, "seed: 1\nhydra: {verbose: true}\n", "own.yaml")
    assert message_of(load_schedule, "own.yaml") == "own.yaml: must be a block of a schedule's keys"
    assert "is not an override" in message_of(load_schedule, "s.yaml", ["hydra.verbose=true"])


# Wrong defaults lists and choices


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("defaults: s\n", "defaults"),
        ("defaults: [s, {launch: 5}]\n", ""),
        ("defaults: [s, {overide launch: slurm}]\n", ""),
        ("defaults: [s, {override launch: slurm}]\n", "Could not override 'launch'"),
        ("defaults: [s, {launch: '${seed}'}]\n", "seed"),
        ("defaults: [{lunch: slurm}]\n", "did you mean 'launch'?"),
        ("defaults: [quikstart]\n", "did you mean 'quickstart'?"),
        ("defaults: [s, {launch: slrum}]\n", f"no file 'launch/slrum'; {CLUSTERS}; did you mean 'slurm'?"),
        ("defaults: [pile_1.4b, {override data: wikitxt}]\n", "did you mean 'wikitext'?"),
        ("defaults: [pile_1.4b, {data: wikitext}]\n", "To override a value use 'override data: "),
        ("defaults: [s, {launch: '???'}]\n", "You must specify 'launch'"),
        ("defaults: [s, _self_, _self_]\n", "Duplicate _self_ defined in this file"),
        ("defaults: [loop]\n", "is nested too deeply, or contains itself"),
        ("defaults: [bad]\n", "bad.yaml: line 1, column 5: mapping values are not allowed here"),
        ("defaults: [list]\n", "list.yaml: must be a block of a schedule's keys"),
        ("defaults: [s]\nstages: {1: {train_steps: 5}}\n", ""),
    ],
)
def test_a_wrong_defaults_list_gives_one_line(folder: Path, content: str, problem: str) -> None:
    file_of(folder, "a: b: c\n", "bad.yaml")
    file_of(folder, "- 1\n", "list.yaml")
    file_of(folder, "defaults: [s, loop2]\n", "loop.yaml")
    file_of(folder, "defaults: [loop]\n", "loop2.yaml")
    file_of(folder, content, "mine.yaml")
    message = message_of(load_schedule, "mine.yaml")
    assert message.startswith("mine.yaml: ")
    assert problem in message
    assert "\n" not in message


def test_a_wrong_choice_of_the_command_line_lists_the_choices() -> None:
    assert f"no file 'launch/slrum'; {CLUSTERS}" in message_of(load_schedule, "quickstart", ["launch=slrum"])


def test_a_choice_in_place_of_a_schedule_is_rejected(folder: Path) -> None:
    choice_of(folder, "launch", "big", "cluster: slurm\n")
    assert "is not a schedule" in message_of(load_schedule, "launch/big.yaml")
    # a schedule's folder may have any name
    assert load_schedule(choice_of(folder, "data", "mine", "defaults: [quickstart]\n")).name == "mine"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("${no.such}", "Interpolation key 'no.such' not found"),
        ("${oc.env:GROWCTL_NO_SUCH}", "Environment variable 'GROWCTL_NO_SUCH' not found"),
        ("???", "Missing mandatory value"),
    ],
)
def test_an_unresolvable_value_names_its_path(folder: Path, value: str, reason: str) -> None:
    choice_of(folder, "launch", "mine", f"slurm: {{partition: '{value}'}}\n")
    file_of(folder, "defaults: [s, {launch: mine}]\n", "mine.yaml")
    for overrides in ([], ["seed=1"], ["launch=mine"]):
        message = message_of(load_schedule, "mine.yaml", overrides)
        assert message.startswith("mine.yaml: launch.slurm.partition: ")
        assert reason in message


KEYS = ("seed", "checkpoint.every", "checkpoint.keep", "evaluation.every", "training.batch_size")
LAYER = st.dictionaries(st.sampled_from(KEYS), st.integers(1, 99))


def nested(values: dict[str, int]) -> dict[str, Any]:
    config = OmegaConf.create()
    for key, value in values.items():
        OmegaConf.update(config, key, value)
    plain: Any = OmegaConf.to_container(config)
    assert isinstance(plain, dict)
    return plain


@pytest.mark.slow
@settings(max_examples=12)
@given(LAYER, st.dictionaries(st.sampled_from(["every", "keep"]), st.integers(1, 99)), LAYER, LAYER)
def test_the_last_setter_of_a_value_wins(
    tmp_path_factory: pytest.TempPathFactory,
    base: dict[str, int],
    choice: dict[str, int],
    own: dict[str, int],
    overrides: dict[str, int],
) -> None:
    folder = tmp_path_factory.mktemp("layers")
    file_of(folder, OmegaConf.to_yaml(OmegaConf.create(nested(base))), "base.yaml")
    choice_of(folder, "checkpoint", "mine", OmegaConf.to_yaml(OmegaConf.create(choice)))
    defaults = {"defaults": ["base", {"checkpoint": "mine"}]}
    path = Path(file_of(folder, OmegaConf.to_yaml(OmegaConf.create(defaults | nested(own)))))
    texts = [f"{key}={value}" for key, value in overrides.items()]
    data = OmegaConf.create(composed(path, texts, "s.yaml"))
    layers = [base, {f"checkpoint.{key}": value for key, value in choice.items()}, own, overrides]
    for key in KEYS:
        values = [layer[key] for layer in layers if key in layer]
        assert OmegaConf.select(data, key) == (values[-1] if values else None)


def test_the_size_of_a_text_is_not_inherited_by_another_text(folder: Path) -> None:
    def tokens(reference: Path | str, *overrides: str) -> int | None:
        return load_schedule(str(reference), list(overrides)).data.approximate_tokens

    text = str(folder / "my.txt")
    assert tokens("quickstart") == tokens("quickstart", "data.workers=2") == 3_900_000
    assert tokens("quickstart", f"data.source={text}") is None
    assert tokens("quickstart", f"data.source={text}", "data.approximate_tokens=5M") == 5_000_000
    assert tokens("quickstart", "data.approximate_tokens=5M", f"data.source={text}") == 5_000_000
    for keys, expected in (
        (f"data: {{source: {text}}}", None),
        (f"data: {{source: {text}, approximate_tokens: 3}}", 3),
        ("seed: 1", 3_900_000),
    ):
        (folder / "own.yaml").write_text(f"defaults: [quickstart, _self_]\n{keys}\n")
        assert tokens(folder / "own.yaml") == expected
