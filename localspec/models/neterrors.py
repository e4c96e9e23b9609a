"""What went wrong on the network, in sentences: which host, why, and what to type next."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from localspec.errors import DownloadError
from localspec.models.text import printable, variables_like, with_variable, without_variables

_REPO = re.compile(r"/([^/]+/[^/]+)/(?:tree|resolve)/")
_HOME = "https://huggingface.co"
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


class NoConnectionError(DownloadError):
    """The host gave no answer at all."""


def host_of(url: str) -> str:
    """The host of an address, with its port where one is given, without user and password."""
    return printable(urlsplit(url).netloc.rpartition("@")[2])


def checked_endpoint(value: str) -> str:
    """The hub's address as it is.

    Raises:
        DownloadError: It is no address of the web.
    """
    if _is_address(value):
        return value
    mended = f"https://{value.removeprefix('//')}"
    usable = "://" not in value and _is_address(mended)
    raise DownloadError(
        f"HF_ENDPOINT is {printable(value)}, which is no address.",
        why="It has to begin with https:// or http://, with a host behind it.",
        hint=with_variable("HF_ENDPOINT", mended) if usable else without_variables("HF_ENDPOINT"),
    )


def _is_address(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that do not close, a port out of range
        return False


def is_certificate(problem: BaseException) -> bool:
    """Whether a connection failed since the host's certificate is not trusted."""
    return "CERTIFICATE_VERIFY_FAILED" in str(problem)


def explain_client(problem: BaseException) -> DownloadError:
    """The error for an environment with which no connection can be made."""
    reason = _reason(problem)
    if isinstance(problem, OSError):
        named = [name for name in _CERTIFICATES if os.environ.get(name)]
        wrong = [name for name in named if not Path(os.environ[name]).exists()] or named
        return DownloadError(
            "The certificates that the environment names cannot be read.",
            why=f"{printable(' '.join(f'{name}={os.environ[name]}' for name in wrong))}: {reason}.",
            hint=without_variables(*wrong) if wrong else variables_like("SSL"),
        )
    if isinstance(problem, ImportError) and "socks" in reason.lower():
        return DownloadError(
            "The proxy of the environment is a SOCKS one, which needs one library more.",
            why="socksio is not installed beside localspec.",
            hint=f"{shlex.quote(sys.executable)} -m pip install socksio",
        )
    return DownloadError(
        "The proxy of the environment cannot be used.", why=f"{reason}.", hint=variables_like("proxy")
    )


def _reason(problem: BaseException) -> str:
    """What somebody else's error says, to be followed by a full stop."""
    return printable(str(problem)).rstrip(". ") or type(problem).__name__


def explain_network(problem: BaseException, url: str) -> NoConnectionError:
    """The error for a request that got no answer."""
    request = getattr(problem, "_request", None)
    host = host_of(str(request.url)) if request is not None else host_of(url)
    reason = _reason(problem)
    if is_certificate(problem):
        return NoConnectionError(
            f"The certificate of {host} is not trusted on this machine.",
            why=f"A company proxy or a virus scanner may sit in between ({reason}).",
            hint=with_variable("SSL_CERT_FILE", "/path/to/the/certificate-of-your-company.pem"),
        )
    kind = type(problem).__name__
    if kind == "ProxyError":
        return NoConnectionError(
            f"The proxy would not pass us on to {host}.",
            why=f"It says: {reason}.",
            hint=variables_like("proxy"),
        )
    if "Timeout" in kind:
        return NoConnectionError(
            f"{host} sent nothing for too long.",
            why="The network or the host is too slow or down.",
            hint=f"curl -I {_origin(url)}",
        )
    if kind == "ConnectError":
        return NoConnectionError(
            f"{host} cannot be reached.", why=f"The system says: {reason}.", hint=f"curl -I {_origin(url)}"
        )
    return NoConnectionError(
        f"The connection to {host} broke.", why=f"The system says: {reason}.", hint=f"curl -I {_origin(url)}"
    )


def explain_status(response: Any) -> DownloadError:
    """The error for an answer with a status that is no success."""
    url, status = str(response.url), response.status_code
    host = host_of(url)
    repo = _repo_of(url)
    code = response.headers.get("X-Error-Code", "")
    said = response.headers.get("X-Error-Message", "")
    if repo and (status in (401, 403, 404) or code):
        found = _explain_repo(response, repo, host, code, said)
        if found is not None:
            return found
    if status == 429:
        return DownloadError(
            f"{host} asks us to slow down (429).",
            why="Too many requests came from this address; with a token the limit is higher.",
            hint="hf auth login",
        )
    if status >= 500:
        return DownloadError(
            f"{host} has a problem of its own ({status}).",
            why="It may pass; nothing here is wrong.",
            hint=f"curl -I {_origin(url)}",
        )
    return DownloadError(
        f"{host} refused the request ({status}).",
        why=f"The address was {printable(unquote(url.split('?', maxsplit=1)[0]))}.",
        hint=f"curl -I {_origin(url)}",
    )


def wrong_token(message: str, repo: str) -> DownloadError:
    """The error for an access token that is of no use."""
    return DownloadError(
        message,
        why="HF_TOKEN (or the stored login) is wrong or has expired; public models need none.",
        hint=with_variable("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1", f"localspec pull {repo}"),
    )


def _explain_repo(response: Any, repo: str, host: str, code: str, said: str) -> DownloadError | None:
    status = response.status_code
    with_token = "authorization" in _first_request(response).headers
    page = f"{os.environ.get('HF_ENDPOINT', _HOME).rstrip('/')}/{repo}"
    if code == "GatedRepo":
        return DownloadError(
            f"{repo} is gated: its licence has to be accepted first.",
            why=f"Accept it at {page}{'' if with_token else ', then log in so that the hub knows you'}.",
            hint=f"localspec pull {repo}" if with_token else "hf auth login",
        )
    if (status == 401 and with_token and code != "RepoNotFound") or "Invalid credentials" in said:
        return wrong_token(f"{host} does not accept your access token.", repo)
    if code == "EntryNotFound":
        file = unquote(urlsplit(str(_first_request(response).url)).path.rpartition("/")[2])
        return DownloadError(
            f"{repo} has no file {printable(file)} any more.",
            why="Publishers rename and withdraw files.",
            hint=f"localspec pull {repo}",
        )
    if code == "RevisionNotFound":
        return DownloadError(f"{repo} has no branch `main`.", why="It may be empty.", hint=f"curl -I {page}")
    if status == 403:
        return DownloadError(
            f"{host} does not let you read {repo} (403).",
            why="Your token may lack the permission, or the repository is disabled."
            if with_token
            else "It may need a login.",
            hint="hf auth whoami" if with_token else "hf auth login",
        )
    if status in (401, 404):
        return DownloadError(
            f"{host} has no model {repo}.",
            why="The name may be mistyped; a private one looks the same to whoever may not read it.",
            hint="localspec models",
        )
    return None


def _first_request(response: Any) -> Any:
    return response.history[0].request if response.history else response.request


def _repo_of(url: str) -> str:
    found = _REPO.search(unquote(urlsplit(url).path))
    return printable(found[1]) if found else ""


def _origin(url: str) -> str:
    return f"{urlsplit(url).scheme}://{host_of(url)}"
