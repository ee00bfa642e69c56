"""Names of schedule files, and how overrides are written: what resolves, and what is rejected."""

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from growctl.ladder.load import load_schedule
from growctl.runs_dir import NAME_ALLOWED
from growctl.schedule.errors import ScheduleError
from growctl.schedule.files import shipped_schedules
from tests.growctl.schedules import BASE, DELETE, TEXT, changed, file_of, message_of, parse

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def test_a_file_that_exists_wins_over_a_shipped_name_and_a_folder_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    assert load_schedule("quickstart").seed != BASE["seed"]
    (tmp_path / "quickstart").rmdir()
    file_of(tmp_path, TEXT, "quickstart")
    file_of(tmp_path, "not: this", "quickstart.yml")
    assert load_schedule("quickstart").seed == BASE["seed"]


@pytest.mark.parametrize("name", ["s.yaml", "s.yml", "s", "s.txt", "s.YAML", "a=b $c:d {}/s.yaml"])
def test_a_schedule_can_have_any_suffix_and_any_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    for key in ("data", "name", "seed"):  # hydra would take these folders for config groups
        (tmp_path / name).parent.joinpath(key).mkdir()
    loaded = load_schedule(file_of(tmp_path, TEXT, name), ["name=run", "seed=5"])
    assert loaded == parse(changed({"seed": 5, "name": "run"}))


def test_a_run_is_named_after_its_file_unless_the_schedule_sets_a_name(tmp_path: Path) -> None:
    assert load_schedule(file_of(tmp_path, TEXT, "pile_1.4b.yaml")).name == "pile_1.4b"
    assert load_schedule(file_of(tmp_path, f"name: mine\n{TEXT}")).name == "mine"
    assert load_schedule(file_of(tmp_path, TEXT), ["name=mine"]).name == "mine"
    (tmp_path / "link.yaml").symlink_to(tmp_path / "s.yaml")
    assert load_schedule(str(tmp_path / "link.yaml")).name == "link"
    path = file_of(tmp_path, TEXT, "my run.yaml")
    assert (
        message_of(load_schedule, path)
        == f"{path}: name: is missing, and the file's name 'my run' is not allowed: {NAME_ALLOWED}"
    )


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        (["stages.0.train_tokens=200k", "seed=1"], {"stages.0.train_tokens": 200_000, "seed": 1}),
        (["+checkpoint.keep_every=7"], {"checkpoint.keep_every": 7}),
        (["learning_rate.peak=2e-4"], {"learning_rate.peak": 2e-4}),
        (["optimizer.betas=[0.8,0.9]"], {"optimizer.betas": [0.8, 0.9]}),
        (["~controls", "~launch.micro_batch_size"], {"controls": DELETE, "launch.micro_batch_size": DELETE}),
        (
            ["~stages.1.train_steps", "stages.1.train_tokens=4k"],
            {"stages.1.train_steps": DELETE, "stages.1.train_tokens": 4000},
        ),
        (["data.source=s3://bucket/a file.txt"], {"data.source": "s3://bucket/a file.txt"}),
        (["data={source: /other}"], {"data.source": "/other"}),
        (["data.text_key=${model.family}"], {"data.text_key": "tokenformer"}),
        (["seed=1", "seed=2"], {"seed": 2}),
        (
            ["stages=[{name: one, attention_tokens: 4, ffn_tokens: 8, train_steps: 5}]"],
            {"stages": [{"name": "one", "attention_tokens": 4, "ffn_tokens": 8, "train_steps": 5}]},
        ),
    ],
)
def test_overrides_use_hydras_syntax(tmp_path: Path, overrides: list[str], changes: dict[str, Any]) -> None:
    assert load_schedule(file_of(tmp_path, TEXT), overrides) == parse(changed(changes))


@settings(max_examples=25)
@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\\$"), min_size=1),
    st.floats(1e-12, 10.0),
)
@pytest.mark.slow
def test_names_texts_and_rates_survive_the_dump(name: str, separator: str, peak: float) -> None:
    original = parse(changed({"name": name, "data.document_separator": separator, "learning_rate.peak": peak}))
    text = OmegaConf.to_yaml(OmegaConf.create(original.model_dump(mode="json")))
    assert parse(OmegaConf.to_container(OmegaConf.create(text))) == original


@pytest.mark.parametrize(
    "override",
    [
        "foo",
        "a..b=1",
        "=5",
        "--name=x",
        "model/family=x",
        "stages.9.name=x",
        "~stages.0",
        "~nothing",
        "+seed=1",
        "seed=1,2",
        "seed=[1",
        "seed=???",
        "seed=${no.such}",
        "seed=${oc.env:GROWCTL_NO_SUCH}",
        f"launch={'x' * 999}",
        "seed.x=3",
        "seed=",
    ],
)
def test_a_wrong_override_gives_one_line(tmp_path: Path, override: str) -> None:
    path = file_of(tmp_path, TEXT)
    message = message_of(load_schedule, path, ["training.batch_size=16", override])
    assert message.startswith(f"{path}: ")
    assert "\n" not in message


@pytest.mark.parametrize(
    "content",
    [
        "",
        "hello\n",
        bytes(range(256)),
        "h\xe9\n".encode("latin-1"),
        "seed: 0: 1\n",
        "model:\n\tfamily: x\n",
        "seed: 1\nmodel: {}\nseed: 2\n",
        "seed: 1\n---\nseed: 2\n",
        "seed: !!python/object/apply:os.getcwd []\n",
        "seed: &a [*a]\n",
        "seed: !!bool maybe\n",
        "seed: !!set [a]\n",
        "seed: ${seed}\n",
        "data: {source: '${oc.env:GROWCTL_NO_SUCH}'}\n",
        "seed: ${\n",
        "seed: ???\n",
        "seed: 1\n~: 2\n",
        "seed: '${oc.env:A,B,C}'\n",
        "seed: '${oc.select:[1]}'\n",
        "seed: '${....seed}'\n",
    ],
)
def test_an_unusable_file_gives_one_line(tmp_path: Path, content: str | bytes) -> None:
    path = file_of(tmp_path, content)
    message = message_of(load_schedule, path)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message


def test_yaml_errors_name_the_line(tmp_path: Path) -> None:
    path = file_of(tmp_path, "seed: 1\nmodel: {}\nseed: 2\n")
    assert message_of(load_schedule, path).endswith(": line 3, column 1: found duplicate key seed")


def test_a_schedule_can_use_aliases_and_merged_keys(tmp_path: Path) -> None:
    text = TEXT.replace("seed: 3", "seed: &seed 3").replace("batch_size: 8", "<<: {batch_size: 8, log_every: *seed}")
    training = load_schedule(file_of(tmp_path, text)).training
    assert (training.batch_size, training.log_every) == (8, 3)


def test_a_schedule_can_come_through_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["/bin/sh", "-c", 'printf %s "$1" > "$2"', "sh", TEXT, str(tmp_path / "pipe")]):
        assert load_schedule(str(tmp_path / "pipe")).seed == 3


def test_a_missing_file_lists_the_shipped_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    comes_with = f"no such file; growctl comes with {', '.join(shipped_schedules())}"
    (tmp_path / "folder").mkdir()
    for reference in ("folder", ".", "a/b", "../schedules", "/no/such.yaml", "", "a\0b"):
        assert message_of(load_schedule, reference) == f"{reference!r}: {comes_with}"
    assert message_of(load_schedule, "x" * 5000) == f"'{'x' * 56}...: {comes_with}"
    for reference in ("quikstart", "schedules/quickstar.yaml", "no/such/quickstart"):
        assert message_of(load_schedule, reference) == f"{reference!r}: {comes_with}; did you mean 'quickstart'?"


def test_the_nearest_file_beside_a_missing_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("shakespeare.yaml", "shakespeare.txt"):
        (tmp_path / name).touch()
    assert message_of(load_schedule, "../shak.yaml").endswith("wikitext; did you mean '../shakespeare.yaml'?")


def test_an_unreadable_file_gives_one_line(tmp_path: Path) -> None:
    memory = Path("/proc/self/mem")  # exists, is not a folder, and not even root can read it
    if not memory.exists():
        pytest.skip("no /proc here")
    assert message_of(load_schedule, str(memory)) == f"{memory}: Input/output error"


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(
        st.builds(
            "{}{}={}".format,
            st.sampled_from(["", "", "+", "++", "~"]),
            st.sampled_from(["seed", "stages", "stages.0", "stages.2.name", "data", "data.source", "x", "controls"]),
            st.one_of(
                st.sampled_from(["", "1,2", "[1]", "{a: 1}", "[", "${x}", "${", "${stages}", "null", "glob(*)", "'"]),
                st.text(max_size=6),
            ),
        )
        | st.text(max_size=8),
        min_size=1,
        max_size=2,
    )
)
def test_any_override_gives_a_schedule_or_a_message(
    tmp_path_factory: pytest.TempPathFactory, overrides: list[str]
) -> None:
    path = file_of(tmp_path_factory.getbasetemp(), TEXT)
    with contextlib.suppress(ScheduleError):
        assert load_schedule(path, overrides).stages
