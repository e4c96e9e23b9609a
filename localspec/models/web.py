"""Requests that are tried again: the small ones whole, and the rules for the big ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from localspec.errors import DownloadError
from localspec.models.neterrors import explain_client, explain_network, explain_status, is_certificate

PASSING = (408, 425, 429, 500, 502, 503, 504, 509, 520, 522, 524)
"""Statuses of trouble that may pass."""
PATIENCE = 120.0
"""Seconds that a server may ask us to wait; beyond that a person decides."""
FIRST_PAUSE = 1.0
"""Seconds before the first further try; doubled each time, 16 at most."""
_TRIES = 3  # enough to tell "no network" from a hiccup, while nothing has come yet


class TryAgainError(Exception):
    """A failure that may pass."""

    def __init__(self, error: DownloadError, pause: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.pause = pause


def retry_after(response: Any) -> float:
    """Seconds that a server asks to wait, 0 if it does not say."""
    value = response.headers.get("Retry-After", "").strip()
    return float(value) if value.isdigit() else 0.0


@contextmanager
def network(url: str) -> Iterator[None]:
    """Turn httpx's errors into ones that are tried again, or into final ones."""
    errors = http_module()
    try:
        yield
    except errors.TransportError as problem:
        error = explain_network(problem, url)
        if is_certificate(problem) or isinstance(problem, (errors.ProxyError, errors.UnsupportedProtocol)):
            raise error from problem
        raise TryAgainError(error) from problem
    except errors.HTTPError as problem:
        raise explain_network(problem, url) from problem


def wait(failure: DownloadError, tries: int, asked: float, note: Callable[[str], None]) -> None:
    """Wait before another try, longer each time, and say so.

    Args:
        failure: What went wrong.
        tries: How often in a row it has, from 1.
        asked: Seconds that the server wants us to wait at least.
        note: Gets the sentence.
    """
    pause = max(asked, FIRST_PAUSE * min(16.0, 2.0 ** (tries - 1)))
    note(f"{failure.message} Trying again in {pause:.0f} s.")
    time.sleep(pause)


def ask(
    client: Any,
    method: str,
    url: str,
    headers: dict[str, str],
    *,
    timeout: float,
    accept: tuple[int, ...] = (200,),
    note: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Any:
    """One small request, tried again like a download.

    Returns:
        The response, with a status of `accept`.

    Raises:
        DownloadError: Refused, or given up.
    """
    tries = 0
    while True:
        tries += 1
        try:
            with network(url):
                response = client.request(method, url, headers=headers, timeout=timeout, **options)
            if response.status_code in accept:
                return response
            if response.status_code not in PASSING:
                raise explain_status(response)
            failure, asked = explain_status(response), retry_after(response)
        except TryAgainError as passing:
            failure, asked = passing.error, passing.pause
        if tries == _TRIES or asked > PATIENCE:
            raise failure
        wait(failure, tries, asked, note)


def session() -> Any:
    """huggingface_hub's HTTP client, with the proxies and certificates of the environment.

    Raises:
        DownloadError: The environment names a proxy or certificates that cannot be used.
    """
    from huggingface_hub import get_session  # noqa: PLC0415 - 0.2 s that only downloads need

    try:
        return get_session()
    except Exception as problem:  # each library that is asked for a part of it has its own kinds
        raise explain_client(problem) from problem


def http_module() -> Any:
    """The HTTP library that this huggingface_hub is built on: httpx2 from version 2 on, httpx before."""
    return import_module(type(session()).__module__.partition(".")[0])
