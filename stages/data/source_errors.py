"""Translates every error of a file system or hub client into one message; no other module does.

The libraries that read sources and tokenizers each raise their own errors: httpx, requests, aiohttp, botocore, the
Hugging Face hub, decompressors, plain OSErrors. This module handles all of them without naming their classes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

from model.errors import UserError

MOST_SAID = 300
"""The most characters of another library's message to include."""

PACKAGES = {"libarchive": "libarchive-c", "smbclient": "smbprotocol"}
"""Modules whose package has another name."""

HUB_ANSWERS = {
    "GatedRepo": ": the dataset is gated; accept its terms on its page on the Hugging Face hub, then give a token of"
    " that account in HF_TOKEN or by `hf auth login`",
    "RepoNotFound": ": no such dataset, or a private one; check its name, or give a token with read access in HF_TOKEN"
    " or by `hf auth login`",
}
"""What the codes of the Hugging Face hub mean to a user."""

REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class DataError(UserError):
    """Data that cannot be used as configured. The message names the key, the value and a way to fix it."""


class Unreadable(DataError):
    """A text or a tokenizer that is missing or cannot be opened here."""


class Interrupted(DataError):
    """Work that stopped for no fault of the text. What is done stays, and the same command resumes it."""


@contextmanager
def reading(what: str, way_out: str = "") -> Iterator[None]:
    """Turns any error inside the block into a DataError: `what` cannot be read, the reason, and how to fix it.

    It is Unreadable, except for text that is not UTF-8.

    `what` is a key with its value. `way_out` starts in lower case, because it may follow the advice to install a
    missing package.
    """
    try:
        yield
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"{what} is not UTF-8 text ({error})") from error
    except Exception as error:  # every library has its own error classes
        package = _missing_package(error)
        both = " and " if way_out.startswith("set ") else ", or "  # a store needs its package and its credentials
        ways = both.join(way for way in (package and f"to read it, `pip install {package}`", way_out) if way)
        advice = f". {ways[0].upper()}{ways[1:]}" if ways else ""
        raise Unreadable(f"{what} cannot be read ({reason(error)}){advice}") from error


def is_missing(error: Exception) -> bool:
    """Whether `error` means that the file does not exist. A server that denies access, or that cannot be reached, is a
    different error.
    """
    status = http_status(error)
    if status is not None:
        return status == HTTPStatus.NOT_FOUND
    others = [
        cause for cause in _causes(error) if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
    ]
    return isinstance(error, FileNotFoundError) and not others


def reason(error: BaseException) -> str:
    """Why something could not be read: the server's answer, or the earliest cause with a message."""
    if status := http_status(error):
        answer = f"the server answered {status.value} {status.phrase}"
        if (from_store := _store_answer(error)) is not None:
            code = str(from_store.get("Error", {}).get("Code", ""))  # the status again if the store sent no text
            answer += f": {code}" if code.isalpha() else ""
        elif (code := _hub_code(error)) in HUB_ANSWERS:
            answer += HUB_ANSWERS[code]
        elif status in REFUSED:
            answer += (
                "; private and gated data needs credentials with read access: for the Hugging Face hub, a token in "
                "HF_TOKEN or from `hf auth login`"
            )
        return answer
    texts = [" ".join(str(getattr(cause, "strerror", None) or cause).split()) for cause in _causes(error)]
    return next((_shortened(text) for text in reversed(texts) if text), type(error).__name__)


def _shortened(text: str) -> str:
    """`text`, cut after a word if it is longer than MOST_SAID characters."""
    if len(text) <= MOST_SAID:
        return text
    room = MOST_SAID - len("...")
    return (text[: room + 1].rpartition(" ")[0] or text[:room]) + "..."


def _missing_package(error: BaseException) -> str | None:
    """The package of a module that could not be imported; None if `error` has another cause."""
    for cause in _causes(error):
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            module = cause.name.partition(".")[0]
            return PACKAGES.get(module, module)
    return None


def _causes(error: BaseException) -> list[BaseException]:
    """`error`, its cause, and so on down to the first cause."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
    return causes


def _store_answer(error: BaseException) -> dict[str, Any] | None:
    """The answer of an S3 store, as botocore's errors carry it; None if `error` has another cause."""
    answers = (getattr(cause, "response", None) for cause in _causes(error))
    return next((answer for answer in answers if isinstance(answer, dict)), None)


def _hub_code(error: BaseException) -> str:
    """Why the Hugging Face hub refused, in its own code; empty if it gave none."""
    headers = (getattr(getattr(cause, "response", None), "headers", None) for cause in _causes(error))
    codes = (found.get("X-Error-Code") for found in headers if isinstance(found, Mapping))
    return next((str(code) for code in codes if code), "")


def http_status(error: BaseException) -> HTTPStatus | None:
    """The HTTP status that an error carries, or None."""
    for cause in _causes(error):
        response: Any = getattr(cause, "response", None)
        if isinstance(response, dict):  # botocore
            found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:
            found = getattr(response, "status_code", None) or getattr(cause, "status", None)  # `status`: aiohttp
        with suppress(ValueError):  # not an HTTP status
            if (status := HTTPStatus(found)) >= HTTPStatus.BAD_REQUEST:
                return status
    return None
