"""Whatever a file system or a hub's client raises, as one message. The only place that translates their errors.

Sources and tokenizers are read through libraries that each raise errors of their own: of httpx, requests, aiohttp or
botocore, of the Hugging Face hub, of a decompressor, plain OSErrors. None of their classes is named here.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

from model.errors import UserError

MOST_SAID = 300
"""Characters of another library's message that are repeated."""

PACKAGES = {"libarchive": "libarchive-c", "smbclient": "smbprotocol"}
"""Packages of modules that are named otherwise."""

REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


class DataError(UserError):
    """Data that cannot be used, or not as described, in one sentence: the field, the value, the way out."""


@contextmanager
def reading(what: str, way_out: str = "") -> Iterator[None]:
    """Raises a DataError for any error inside: `what`, the key and its value, cannot be read, why, and the way out.

    The way out begins in lower case: where a package is missing, it is the other thing to do.
    """
    try:
        yield
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"{what} is not UTF-8 text ({error})") from error
    except Exception as error:  # every library has errors of its own
        package = _missing_package(error)
        ways = ", or ".join(way for way in (package and f"to read it, `pip install {package}`", way_out) if way)
        advice = f". {ways[0].upper()}{ways[1:]}" if ways else ""
        raise DataError(f"{what} cannot be read ({reason(error)}){advice}") from error


def is_missing(error: Exception) -> bool:
    """Whether `error` says that something is not there. A server that refuses to say so is another matter."""
    status = _http_status(error)
    return status == HTTPStatus.NOT_FOUND or (status is None and isinstance(error, FileNotFoundError))


def reason(error: BaseException) -> str:
    """Why something could not be read: what the server answered, or the first cause that says anything."""
    if status := _http_status(error):
        answer = f"the server answered {status.value} {status.phrase}"
        if status in REFUSED:
            answer += (
                "; what is private or gated needs credentials that may read it, on the Hugging Face hub a token in "
                "HF_TOKEN or from `hf auth login`"
            )
        return answer
    texts = [" ".join(str(getattr(cause, "strerror", None) or cause).split()) for cause in _causes(error)]
    return next((_shortened(text) for text in reversed(texts) if text), type(error).__name__)


def _shortened(text: str) -> str:
    """`text`, up to MOST_SAID characters of it, cut after a word."""
    if len(text) <= MOST_SAID:
        return text
    room = MOST_SAID - len("...")
    return (text[: room + 1].rpartition(" ")[0] or text[:room]) + "..."


def _missing_package(error: BaseException) -> str | None:
    """The package whose module could not be found; None where `error` is about something else."""
    for cause in _causes(error):
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            module = cause.name.partition(".")[0]
            return PACKAGES.get(module, module)
    return None


def _causes(error: BaseException) -> list[BaseException]:
    """`error`, what caused it, and so on to the first cause."""
    causes = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
    return causes


def _http_status(error: BaseException) -> HTTPStatus | None:
    """The status of the response that an error is about; None where it is about none."""
    for cause in _causes(error):
        response: Any = getattr(cause, "response", None)
        if isinstance(response, dict):  # botocore
            found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:
            found = getattr(response, "status_code", None) or getattr(cause, "status", None)  # `status`: aiohttp
        with suppress(ValueError):  # where it is no status
            if (status := HTTPStatus(found)) >= HTTPStatus.BAD_REQUEST:
                return status
    return None
