"""Texts of a bug report hold no secret, no home directory and no user name; and schedules stay as they are."""

import json
import re
import shlex
import string
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growctl.redaction import REMOVED, Redaction, is_secret
from growctl.schedule.files import shipped_schedules
from tests.workers import REPOSITORY

ADA = Redaction(secrets=("s3cr3t-value",), homes=("/home/ada", "/mnt/homes/ada"), users=("ada", "Ada Lovelace"))

WORD = st.text(string.ascii_letters + string.digits, min_size=6, max_size=12)
NOISE = st.text(max_size=12) | st.sampled_from(["\n", "/", ": ", "=", '"', "'", "_", "://", "?", "@", "{", "runs/"])
QUOTED = (str, json.dumps, repr, shlex.quote, quote)


@given(st.data())
def test_no_text_keeps_a_secret_a_home_or_a_user_name(data: st.DataObject) -> None:
    user = data.draw(WORD, label="user")
    secret = data.draw(st.text(min_size=4, max_size=20).filter(lambda text: text.strip("*") and "*" not in text))
    redaction = Redaction((secret,), (f"/data/homes/{user}",), (user,))
    sensitive = [secret, f"/data/homes/{user}/runs", user, f"https://{user}:pw12345@host/x", f"HF_TOKEN={secret}"]
    pieces = data.draw(st.lists(NOISE | st.sampled_from(sensitive), min_size=1, max_size=12))
    text = data.draw(st.sampled_from(QUOTED))("".join(pieces))
    clean = redaction(text)
    assert not [form for form in (secret, json.dumps(secret)[1:-1], quote(secret)) if form in clean]
    assert f"/data/homes/{user}" not in clean
    assert not re.search(rf"(?<![^\W_]){user}(?![^\W_])", clean, re.IGNORECASE)
    assert f"{user}:pw12345@" not in clean


@given(st.sampled_from(["HF_TOKEN", "WANDB_API_KEY", "aws_secret_access_key", "db.password", "SSH_AUTH"]), WORD, NOISE)
def test_no_value_of_a_secret_name_is_kept(name: str, value: str, noise: str) -> None:
    forms = [
        f"{name}={value}",
        f"{name}: {value}",
        json.dumps({name: value}),
        repr({name: value}),
        f"{name} = '{value}'",
    ]
    for form in forms:
        assert value not in Redaction()(f"{noise.replace(value, '')}\n{form}\n"), form


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/home/ada/runs and /mnt/homes/ada", "~/runs and ~"),
        ("/home/adam/runs", f"/home/{REMOVED}/runs"),
        ("/Users/grace/x", f"/Users/{REMOVED}/x"),
        ("ada wrote ada_2 and ADA, not Nevada", f"{REMOVED} wrote {REMOVED}_2 and {REMOVED}, not Nevada"),
        ("by Ada Lovelace <ada@example.org>", f"by {REMOVED} <{REMOVED}>"),
        ("s3://key:word@bucket/a?X-Amz-Signature=1 b", f"s3://{REMOVED}@bucket/a?{REMOVED} b"),
        ("https://host/x?sig=abc", f"https://host/x?{REMOVED}"),
        ("Authorization: Bearer abcdef123456", f"Authorization: {REMOVED}"),
        ("Authorization: ApiKey abcdefgh==\nrest", f"Authorization: {REMOVED}\nrest"),
        ("password: correct horse battery\nrest", f"password: {REMOVED}\nrest"),
        ("Set-Cookie: session=abcdefgh; Path=/", f"Set-Cookie: {REMOVED}"),
        ("DB_PASS=correct horse", f"DB_PASS={REMOVED}"),
        ("MYSQL_PWD: hunter22", f"MYSQL_PWD: {REMOVED}"),
        ("SENTRY_DSN=https://abc@host/1 x", f"SENTRY_DSN={REMOVED}"),
        ("AccountName=x;AccountKey=abcdefgh==;Suffix=y", f"AccountName=x;AccountKey={REMOVED};Suffix=y"),
        ("SQL_CONNECTION_STRING=Server=h;Pwd=hunter22;", f"SQL_CONNECTION_STRING={REMOVED}"),
        ("the key AIzaSyA1234567890abcdefghijklmnopqrstuv leaked", f"the key {REMOVED} leaked"),
        ("post to https://hooks.slack.com/services/T0/B0/xyz now", f"post to https://hooks.slack.com/{REMOVED} now"),
        ("https://discord.com/api/webhooks/12/xyz", f"https://discord.com/api/webhooks/{REMOVED}"),
        ('{"pad_token": "</s>", "step": 3}', f'{{"pad_token": "{REMOVED}", "step": 3}}'),
        ('{"api_key": 12345, "step": 3}', f'{{"api_key": "{REMOVED}", "step": 3}}'),
        (r'"{\"api_key\": \"hunter22\"}"', rf'"{{\"api_key\": {REMOVED}}}"'),
        ("growctl run q launch.environment.FOO=abc def\nrest", f"growctl run q launch.environment.FOO={REMOVED}\nrest"),
        ("'samples.prompts=[my text, b]'", f"'samples.prompts={REMOVED}"),
        ('"environment": {"FOO": "hunter22"}, 3', f'"environment": "{REMOVED}", 3'),
        (
            "launch:\n  environment:\n    FOO: hunter22\n    BAR: |\n      a b\n\n  devices: 2\n",
            f"launch:\n  environment:\n    FOO: '{REMOVED}'\n    BAR: '{REMOVED}'\n\n  devices: 2\n",
        ),
        ("ValueError: environment:\n  FOO: hunter22\nrest", f"ValueError: environment:\n  FOO: '{REMOVED}'\nrest"),
        (
            "[0]: environment:\n[0]:   FOO: hunter22\n[0]: rest",
            f"[0]: environment:\n[0]:   FOO: '{REMOVED}'\n[0]: rest",
        ),
        ("launch.environment:\n  FOO: hunter22\nrest", f"launch.environment:\n  FOO: '{REMOVED}'\nrest"),
        ("login with hf_abcdefghijklmnop now", f"login with {REMOVED} now"),
        ("AKIAIOSFODNN7EXAMPLE", REMOVED),
        ("ghp_abcdefghijklmnopqrstuvwxyz", REMOVED),
        ("growctl x --token abc --password 'a b'", f"growctl x --token {REMOVED} --password '{REMOVED}'"),
        ("run q launch.environment.A=b 'launch.environment={C: d}'", None),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nrest", f"{REMOVED}\nrest"),
        ("-----BEGIN PRIVATE KEY-----\nabc", REMOVED),
        ("the value s3cr3t-value leaked", f"the value {REMOVED} leaked"),
    ],
)
def test_secrets_and_identities_are_removed(text: str, clean: str | None) -> None:
    if clean is None:
        assert not re.search(r"[bd]['}]|A=b", ADA(text))
    else:
        assert ADA(text) == clean


@pytest.mark.parametrize(
    "path", [*shipped_schedules().values(), REPOSITORY / "growctl/bugs.py"], ids=lambda path: path.stem
)
def test_schedules_and_sources_stay_as_they_are(path) -> None:
    text = path.read_text()
    assert ADA(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "attention_tokens: 1024, train_tokens: 1.4M",
        '{"tokens_seen": 40960, "tokens_per_second": 1.9, "bits_per_token": 1.5e-3, "token": null}',
        "tokenizer: EleutherAI/gpt-neox-20b\ntokenizer_sha256: 0f",
        "text_key: content",
        "forward_pass: 12 ms; PWD=/data/runs",
        "a" * 2**16,
        "Preparing the environment: done\n  next",
        "torch==2.13.0+cpu",
        "https://pytorch.org/get-started/locally",
    ],
)
def test_numbers_of_tokens_and_plain_addresses_stay(text: str) -> None:
    assert ADA(text) == text


def test_a_json_document_stays_valid_and_keeps_what_is_not_secret() -> None:
    data = {
        "log": "Cookie: a=b",
        "password": "hunter22",
        "environment": {"FOO": ["hunter22"]},
        "text_key": "content",
        "bits_per_token": 1.5,
        "steps": [{"reason": "at /home/ada", "token": None}],
    }
    assert ADA.of_data(data) == data | {
        "log": f"Cookie: {REMOVED}",
        "password": REMOVED,
        "environment": {"FOO": [REMOVED]},
        "steps": [{"reason": "at ~", "token": None}],
    }


def test_the_environment_gives_secrets_home_and_user() -> None:
    environment = {"HF_TOKEN": "abcd1234", "HOME": "/homes/ada", "USER": "ada", "OMP_NUM_THREADS": "1", "A_KEY": "k"}
    redaction = Redaction.of(environment)
    assert redaction("abcd1234 /homes/ada/x ada OMP_NUM_THREADS=1") == f"{REMOVED} ~/x {REMOVED} OMP_NUM_THREADS=1"
    assert "k" in redaction("k"), "one letter cannot be looked for"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("WANDB_API_KEY", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("MLFLOW_TRACKING_PASSWORD", True),
        ("GITHUB_PAT", True),
        ("DB_PASS", True),
        ("MYSQL_PWD", True),
        ("SESSION_COOKIE", True),
        ("SLACK_WEBHOOK", True),
        ("SENTRY_DSN", True),
        ("AZURE_STORAGE_CONNECTION_STRING", True),
        ("PWD", False),
        ("OLDPWD", False),
        ("SSH_ASKPASS", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("NUM_TOKENS", False),
        ("PATH", False),
    ],
)
def test_secret_variables_are_known_by_name(name: str, secret: bool) -> None:
    assert is_secret(name) == secret
