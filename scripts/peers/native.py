"""llama.cpp's own server, built from the source that the wheel was built from. Speaks HTTP on this machine only."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from localspec.errors import LoadError, LocalspecError
from localspec.spec.events import Sampling
from scripts.peers.answers import Answer, Asked

NGRAM_TYPES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
"""Kinds of llama.cpp that draft without a model, each at its own defaults."""
DEFAULT_LENGTH, DEFAULT_P_MIN = 3, 0.0
"""What `--spec-type draft-simple` does when nothing else is said."""
_START_SECONDS, _ANSWER_SECONDS = 180.0, 1800.0
_ANSWERED = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy has no business here


def find_server(folder: Path) -> Path:
    """`llama-server` in a build folder of llama.cpp.

    Raises:
        LoadError: It is not there.
    """
    for place in (folder, folder / "bin", folder / "build" / "bin"):
        for name in ("llama-server", "llama-server.exe"):
            if (place / name).is_file():
                return place / name
    raise LoadError(f"There is no llama-server in {folder}.", hint="scripts/build_llama_cpp")


def about(server: Path) -> dict[str, str]:
    """What a build says about itself: its `version`, and the CPU `instructions` that it computes with."""
    # It tells its instructions only before it loads something, and only when it is asked to talk much.
    nothing = [
        "--log-verbosity",
        "4",
        "--offline",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--model",
        "none.gguf",
    ]
    return {
        "version": " ".join(re.findall(r"version: .*|built with .*", _said(server, "--version"))),
        "instructions": " ".join(
            re.findall(r"system_info: .*?(CPU : .*?)[ |]*$", _said(server, *nothing), re.MULTILINE)
        ),
    }


def _said(program: Path, *arguments: str) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=60)
        return done.stdout + done.stderr
    return ""


def draft_flags(draft: Path, length: int, p_min: float) -> list[str]:
    """Flags for drafts by a model. Without a type the server loads the model and does not draft."""
    flags = ["--spec-type", "draft-simple", "--spec-draft-model", str(draft)]
    return [*flags, "--spec-draft-n-max", str(length), "--spec-draft-p-min", str(p_min)]


def ngram_flags(kind: str) -> list[str]:
    """Flags for drafts out of the text itself."""
    return ["--spec-type", kind]


class Server:
    """One running server with one loaded pair; how it drafts cannot be changed while it runs.

    Args:
        program: The binary.
        target: The target's file.
        flags: How it drafts.
        n_ctx: Size of the context.
        threads: Threads that compute.

    Raises:
        LoadError: It did not come up.
    """

    def __init__(
        self,
        program: Path,
        target: Path,
        flags: Sequence[str],
        *,
        n_ctx: int,
        threads: int,
        n_batch: int = 512,
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        fixed = ["--host", "127.0.0.1", "--port", str(port), "--parallel", "1", "--ctx-size", str(n_ctx)]
        fixed += ["--batch-size", str(n_batch), "--ubatch-size", str(n_batch), "--offline", "--no-webui"]
        for flag in ("--threads", "--threads-batch", "--threads-draft", "--threads-batch-draft"):
            fixed += [flag, str(threads)]
        self._address = f"http://127.0.0.1:{port}"
        self._log = tempfile.NamedTemporaryFile(prefix="llama-server-", suffix=".log")  # noqa: SIM115 - closed in close
        self._process = subprocess.Popen(
            [str(program), "--model", str(target), *fixed, *flags],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if not name.startswith("LLAMA_ARG_")},
        )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, asked: Asked, sampling: Sampling, tokens: int) -> Answer:
        """An answer of this many tokens from an empty cache.

        Raises:
            LocalspecError: It did not answer, or not with what was asked for.
        """
        body = request(asked.ids, sampling, tokens)
        try:
            answer = self._http("/completion", body, _ANSWER_SECONDS)
        except OSError as problem:
            raise LocalspecError(
                f"llama-server did not answer: {problem}.", why=self._last_words()
            ) from problem
        return read_answer(answer, len(asked.ids))

    def close(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()

    def _wait(self) -> None:
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError, ValueError):
                if self._http("/health", None, 2).get("status") == "ok":
                    return
            time.sleep(0.1)
        raise LoadError("llama-server did not come up.", why=self._last_words())

    def _http(self, path: str, body: dict[str, Any] | None, timeout: float) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(self._address + path, data=data, headers=headers)
        with _ANSWERED.open(asked, timeout=timeout) as response:
            found = json.load(response)
        return found if isinstance(found, dict) else {}

    def _last_words(self) -> str:
        lines = Path(self._log.name).read_text(errors="replace").splitlines()
        return " ".join(line.strip() for line in lines[-3:])[-400:]


def request(ids: Sequence[int], sampling: Sampling, tokens: int) -> dict[str, Any]:
    """What the server is asked: the same distribution, shaped in the same order, as localspec's."""
    return {
        "prompt": list(ids),
        "n_predict": tokens,
        "ignore_eos": True,
        "cache_prompt": False,
        "return_tokens": True,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "seed": sampling.seed,
        "samplers": ["temperature", "top_k", "top_p", "min_p"],
    }


def read_answer(answer: dict[str, Any], prompt_tokens: int) -> Answer:
    """The server's own account of an answer.

    Raises:
        LocalspecError: It is not what was asked for.
    """
    try:
        timings = answer["timings"]
        read = timings["cache_n"] + timings["prompt_n"]
        found = Answer(
            tokens=int(timings["predicted_n"]),
            seconds=float(timings["predicted_ms"]) / 1000,
            drafted=int(timings.get("draft_n", 0)),
            accepted=int(timings.get("draft_n_accepted", 0)),
            ids=tuple(int(token) for token in answer.get("tokens", ())),
        )
    except (KeyError, TypeError, ValueError) as problem:
        raise LocalspecError(f"llama-server's answer has no {problem}.") from problem
    if timings["cache_n"] or read != prompt_tokens:
        raise LocalspecError(
            f"llama-server read {timings['prompt_n']} tokens and had {timings['cache_n']}; {prompt_tokens} were asked."
        )
    return found
