"""Finds tokenizers and datasets of the Hugging Face hub, and says how to work without the hub if it is unreachable."""

import glob
import os
import re
import shlex
from pathlib import Path

from stages.data.source_errors import reading

LOCAL_COPIES = {
    "openwebtext": (
        "on a machine that can reach the hub, `hf download Skylion007/openwebtext --repo-type dataset --local-dir DIR`;"
        " then set data.source=DIR and data.include='**/*.parquet'"
    ),
    "openwebtext2": (
        "on a machine that can reach the hub, `hf download segyges/OpenWebText2 openwebtext2.jsonl.zst.tar --repo-type"
        " dataset --local-dir DIR`; unpack it in DIR; then set data.source=DIR"
    ),
    "wikitext-103-raw/wiki.train.raw": (
        "download https://wikitext.smerity.com/wikitext-103-raw-v1.zip; unpack it in DIR; then set"
        " data.source=DIR/wikitext-103-raw/wiki.train.raw"
    ),
}
"""The sources in `schedules/data` that need a local copy, and how to make it."""

_DATASETS = "hf://datasets/"
_ABOUT = re.compile(r"(README|LICEN[CS]E|NOTICE|CITATION|CHANGELOG)(\.(md|txt|cff|rst))?", re.IGNORECASE)
_S3_VARIABLES = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_ENDPOINT_URL for a store other than Amazon's"


def offline_copy(source: str) -> str | None:
    """Where the hub's cache in HF_HOME holds the `hf://datasets/` source; None unless HF_HUB_OFFLINE is set.

    `hf download --repo-type dataset` without `--local-dir` fills that cache. fsspec itself never reads it.
    """
    if not source.startswith(_DATASETS):
        return None
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repository, revision, below = _parts(source)
    if not (constants.HF_HUB_OFFLINE and repository):
        return None
    try:
        folder = snapshot_download(repository, repo_type="dataset", revision=revision or None, local_files_only=True)
    except LocalEntryNotFoundError:
        return None
    path = os.path.join(glob.escape(folder) if glob.has_magic(below) else folder, below).rstrip("/")
    return path if glob.has_magic(below) or os.path.exists(path) else None


def is_about_the_repository(source: str, name: str) -> bool:
    """Whether `name` below the source is a text about a repository on the hub, such as its card, and not part of it."""
    repository, _, below = _parts(source)
    return bool(repository) and not below and _ABOUT.fullmatch(name) is not None


def _parts(source: str) -> tuple[str, str, str]:
    """The repository, the revision and the path in it that `hf://datasets/OWNER/NAME@REVISION/PATH` names.

    The repository is empty for any other source.
    """
    owner, _, rest = source.removeprefix(_DATASETS).rstrip("/").partition("/")
    if not source.startswith(_DATASETS) or not rest:
        return "", "", ""
    name, _, below = rest.partition("/")
    name, _, revision = name.partition("@")
    return f"{owner}/{name}", revision, below


def local_tokenizer(name: str) -> Path | None:
    """The local file that `name` refers to: a file, or the tokenizer.json of a folder. None for a name on the hub."""
    with reading(f"data.tokenizer: {name!r}"):
        path = Path(name).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    return path if path.is_file() or is_path(name) else None


def is_path(tokenizer: str) -> bool:
    """Whether the spelling of `data.tokenizer` alone says that it is a path: no model on the hub has such a name."""
    return tokenizer.endswith(".json") or tokenizer.startswith((".", "/", "~")) or tokenizer.count("/") > 1


def download_tokenizer(name: str) -> Path:
    """The path of the tokenizer.json of a model on the hub, cached or downloaded now. Raises DataError on failure."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub import utils as hub

    had_bars, verbosity = not hub.are_progress_bars_disabled(), hub.logging.get_verbosity()
    hub.disable_progress_bars()
    hub.logging.set_verbosity_error()
    try:
        with reading(
            f"data.tokenizer: {name!r} is not a local file, and on the Hugging Face hub it",
            f"on a machine that can reach the hub, {_tokenizer_by_hand(name)}",
        ):
            return Path(hf_hub_download(name, "tokenizer.json"))
    finally:
        hub.logging.set_verbosity(verbosity)
        if had_bars:
            hub.enable_progress_bars()


def by_hand(source: str, include: str, tokenizer: str | None) -> str:
    """How to download `source` by hand and which keys to set then. Empty for a local source."""
    if "://" not in source or source.startswith(("file://", "local://")):
        return ""
    repository, revision, path = _parts(source)
    if repository:
        below = path.split("/") if path else []
        is_file = bool(below) and any(sign in below[-1] for sign in ".*?[")
        wanted = _for_fnmatch("/".join(below if is_file else [*below, include]))
        options = f"--repo-type dataset --include {shlex.quote(wanted)}" + (
            f" --revision {revision}" if revision else ""
        )
        local = "/".join(["DIR", *below])
        download = _download(repository, options, "DIR")
        text = f"on a machine that can reach the hub, {download}; then set data.source={local}"
    else:
        text = "download its files on a machine that can reach it, and set data.source to their location"
        if source.startswith(("s3://", "s3a://")):
            text = f"{_S3_VARIABLES}, or {text}"
    return text + _tokenizer_too(tokenizer)


def make_local_copy(source: str, tokenizer: str | None) -> str:
    """How to make the local copy that a source of `schedules/data` needs, at any path. Empty for any other source."""
    known = next((name for name in LOCAL_COPIES if f"/{source}".endswith(f"/{name}")), None)
    return LOCAL_COPIES[known] + _tokenizer_too(tokenizer) if known else ""


def _for_fnmatch(pattern: str) -> str:
    """A pattern for `hf download`, which matches with fnmatch: its `*` also matches slashes, so `**/` becomes `*`."""
    return re.sub(r"\*+", "*", pattern.replace("**/", "*"))


def _tokenizer_too(tokenizer: str | None) -> str:
    if tokenizer is None or local_tokenizer(tokenizer) is not None:
        return ""
    return f". The tokenizer is also on the hub: {_tokenizer_by_hand(tokenizer)}"


def _tokenizer_by_hand(tokenizer: str) -> str:
    return f"{_download(tokenizer, 'tokenizer.json', 'FOLDER')}; then set data.tokenizer=FOLDER"


def _download(repository: str, what: str, folder: str) -> str:
    return f"`hf download {shlex.quote(repository)} {what} --local-dir {folder}`"
