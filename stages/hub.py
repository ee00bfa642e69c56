"""The Hugging Face hub: a tokenizer from it, and how to do without it where it cannot be reached."""

import shlex
from pathlib import Path

from stages.outside import reading


def local_tokenizer(name: str) -> Path | None:
    """Where `name` leads on this machine: a file, or a folder's tokenizer.json. None for a name on the hub."""
    path = Path(name).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    if path.is_file() or name.endswith(".json") or name.startswith((".", "/", "~")) or name.count("/") > 1:
        return path
    return None


def download_tokenizer(name: str) -> Path:
    """The tokenizer.json of a model on the hub, from its cache or downloaded. DataError where it cannot be had."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub import utils as hub

    had_bars, verbosity = not hub.are_progress_bars_disabled(), hub.logging.get_verbosity()
    hub.disable_progress_bars()
    hub.logging.set_verbosity_error()
    try:
        with reading(
            f"data.tokenizer: {name!r} is no file here, and on the Hugging Face hub it",
            f". Where the hub can be reached, {_download(name, 'tokenizer.json')}; then set data.tokenizer=DIR",
        ):
            return Path(hf_hub_download(name, "tokenizer.json"))
    finally:
        hub.logging.set_verbosity(verbosity)
        if had_bars:
            hub.enable_progress_bars()


def by_hand(source: str, include: str, tokenizer: str | None) -> str:
    """What to download, and which keys point to it, where `source` cannot be read. Empty for a local source."""
    if "://" not in source or source.startswith(("file://", "local://")):
        return ""
    kind, _, rest = source.removeprefix("hf://").partition("/")
    if source.startswith("hf://") and kind == "datasets" and rest.count("/") >= 1:
        owner, name, *below = rest.rstrip("/").split("/")
        name, _, revision = name.partition("@")
        is_file = bool(below) and any(sign in below[-1] for sign in ".*?[")
        wanted = "/".join(below if is_file else [*below, include])
        options = f"--repo-type dataset --include {shlex.quote(wanted)}" + (
            f" --revision {revision}" if revision else ""
        )
        local = "/".join(["DIR", *below])
        text = f". Where the hub can be reached, {_download(f'{owner}/{name}', options)}; then set data.source={local}"
    else:
        text = ". Download its files where it can be reached, and set data.source to where they are"
    if tokenizer is not None and local_tokenizer(tokenizer) is None:
        text += f". The tokenizer is on the hub too: {_download(tokenizer, 'tokenizer.json')}, data.tokenizer=DIR"
    return text


def _download(repository: str, what: str) -> str:
    return f"`hf download {shlex.quote(repository)} {what} --local-dir DIR`"
