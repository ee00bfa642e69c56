"""Turns every error of a file system, a store or the hub into one message, without naming the libraries' classes."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

from model.errors import UserError

MOST_SAID = 300
"""The most characters of another library's message to include."""

REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)

PACKAGES = {"libarchive": "libarchive-c", "sklearn": "scikit-learn", "smbclient": "smbprotocol"}
"""Modules whose package has another name."""


class DataError(UserError):
    """Data that cannot be used as configured. The message names the key, the value and a way to fix it."""


class Unreadable(DataError):
    """A text or a tokenizer that is missing or cannot be opened here."""


class Interrupted(DataError):
    """Work that stopped for no fault of the text. What is done stays, and the same command resumes it."""


@contextmanager
def reading(what: str, way_out: str = "") -> Iterator[None]:
    """Turns any error inside the block into a DataError: `what` cannot be read, the reason, and how to fix it.

    It is Unreadable, except for text that is not UTF-8. `what` is a key with its value. `way_out` starts in lower case,
    because it may follow the advice to install a missing package.
    """
    try:
        yield
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"{what} is not UTF-8 text ({error})") from error
    except Exception as error:  # every library has its own error classes
        names = (cause.name for cause in _causes(error) if isinstance(cause, ModuleNotFoundError) and cause.name)
        modules = (name.partition(".")[0] for name in names)
        install = next((f"to read it, `pip install {PACKAGES.get(module, module)}`" for module in modules), "")
        ways = ", or ".join(way for way in (install, way_out) if way)
        advice = f". {ways[0].upper()}{ways[1:]}" if ways else ""
        raise Unreadable(f"{what} cannot be read ({reason(error)}){advice}") from error


def is_missing(error: Exception) -> bool:
    """Whether `error` means that the file does not exist, and not that a server denies access or is unreachable."""
    if (status := http_status(error)) is not None:
        return status == HTTPStatus.NOT_FOUND
    others = [c for c in _causes(error) if isinstance(c, OSError) and not isinstance(c, FileNotFoundError)]
    return isinstance(error, FileNotFoundError) and not others


def reason(error: BaseException) -> str:
    """Why something could not be read: the server's answer, or the earliest cause with a message."""
    status = http_status(error)
    if status is None:
        texts = [" ".join(str(getattr(cause, "strerror", None) or cause).split()) for cause in _causes(error)]
        text = next((text for text in reversed(texts) if text), type(error).__name__)
        return text if len(text) <= MOST_SAID else f"{text[: MOST_SAID - 3]}..."
    advice = (
        "; private data needs credentials with read access: for the Hugging Face hub, a token in HF_TOKEN or from `hf"
        " auth login`; if the dataset is gated, accept its terms on its page"
    )
    return f"the server answered {status.value} {status.phrase}{advice if status in REFUSED else ''}"


def http_status(error: BaseException) -> HTTPStatus | None:
    """The HTTP status that an error carries, or None."""
    for cause in _causes(error):
        code: Any = getattr(getattr(cause, "response", None), "status_code", None) or getattr(cause, "status", None)
        with suppress(ValueError):  # not an HTTP status
            if (status := HTTPStatus(code)) >= HTTPStatus.BAD_REQUEST:
                return status
    return None


def _causes(error: BaseException) -> list[BaseException]:
    """`error`, its cause, and so on down to the first cause."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
    return causes
