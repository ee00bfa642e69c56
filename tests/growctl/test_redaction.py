"""A report's commands and schedules hold no secret, and stay as they are otherwise."""

from pathlib import Path

import pytest
import yaml

from growctl.redaction import REMOVED, is_secret, redacted_data, redacted_override, without_secrets
from growctl.schedule.files import shipped_schedules


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("s3://key:word@bucket/a?X-Amz-Signature=1 b", f"s3://{REMOVED}@bucket/a?{REMOVED} b"),
        ("https://host/x?sig=abc", f"https://host/x?{REMOVED}"),
        ("Authorization: Bearer abcdef123456", f"Authorization: {REMOVED}"),
        ("export HF_TOKEN=swordfish", f"export HF_TOKEN={REMOVED}"),
        ("AccountName=x;AccountKey=abcdefgh==;Suffix=y", f"AccountName=x;AccountKey={REMOVED};Suffix=y"),
        ("login with hf_abcdefghijklmnop now", f"login with {REMOVED} now"),
        ("the value s3cr3t-value leaked", f"the value {REMOVED} leaked"),
        (f"{Path.home()}/books", "~/books"),
        ("attention_tokens: 1024, train_tokens: 1.4M", None),
        ("tokenizer: EleutherAI/gpt-neox-20b", None),
        ("text_key: content", None),
        ("https://pytorch.org/get-started/locally", None),
    ],
)
def test_secrets_are_removed_from_a_text_and_nothing_else(text: str, clean: str | None) -> None:
    assert without_secrets(text, {"DB_PASSWORD": "s3cr3t-value", "OMP_NUM_THREADS": "1"}) == (clean or text)


@pytest.mark.parametrize("path", shipped_schedules().values(), ids=lambda path: path.stem)
def test_shipped_schedules_stay_as_they_are(path: Path) -> None:
    data = yaml.safe_load(path.read_text())
    assert redacted_data(data) == data


def test_variables_of_workers_are_hidden_in_commands_and_schedules() -> None:
    assert redacted_override("launch.environment.FOO=abc def") == f"launch.environment.FOO={REMOVED}"
    assert redacted_override("launch.environment={C: d}") == f"launch.environment={REMOVED}"
    assert redacted_override("samples.prompts=[a b]") == "samples.prompts=[a b]"
    data = {"launch": {"environment": {"FOO": "bar"}, "slurm": {"setup": ["export A_KEY=b"]}}, "password": "x", 1: None}
    assert redacted_data(data) == {
        "launch": {"environment": {"FOO": REMOVED}, "slurm": {"setup": [f"export A_KEY={REMOVED}"]}},
        "password": REMOVED,
        1: None,
    }


@pytest.mark.parametrize(
    ("secret", "names"),
    [
        (True, "HF_TOKEN WANDB_API_KEY AWS_SECRET_ACCESS_KEY MLFLOW_TRACKING_PASSWORD GITHUB_PAT DB_PASS MYSQL_PWD"),
        (True, "SESSION_COOKIE SLACK_WEBHOOK SENTRY_DSN AZURE_STORAGE_CONNECTION_STRING db.password"),
        (False, "PWD OLDPWD SSH_ASKPASS TOKENIZERS_PARALLELISM NUM_TOKENS PATH"),
    ],
)
def test_secret_variables_are_known_by_name(secret: bool, names: str) -> None:
    assert [name for name in names.split() if is_secret(name) != secret] == []
