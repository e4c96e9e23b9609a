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
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from localspec.errors import LoadError, LocalspecError
from localspec.spec.events import Sampling
from scripts.peers.answers import Answer, Asked

NGRAMS: dict[str, tuple[str, ...]] = {
    "ngram-simple": (),
    "ngram-simple 4/16": ("--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "16"),
    "ngram-map-k": (),
    "ngram-map-k4v 8/8/2": (
        *("--spec-ngram-map-k4v-size-n", "8", "--spec-ngram-map-k4v-size-m", "8"),
        *("--spec-ngram-map-k4v-min-hits", "2"),
    ),
    "ngram-mod": (),
    "ngram-mod 8/4-32": (
        *("--spec-ngram-mod-n-match", "8", "--spec-ngram-mod-n-min", "4"),
        *("--spec-ngram-mod-n-max", "32"),
    ),
    "ngram-cache": (),
}
"""Kinds of llama.cpp that draft without a model, with flags: its defaults, the example that its documentation gives
for repetitions, and shorter keys, since its defaults are made for contexts much longer than these prompts."""
DEFAULT_LENGTH, DEFAULT_P_MIN = 3, 0.0
"""What `--spec-type draft-simple` does when nothing else is said."""
ENGINE_SPIN = "1000"
"""How long OpenMP's threads wait busily in our engine (see `localspec.worker.child`), and so in the others."""
_START_SECONDS, _ANSWER_SECONDS = 180.0, 1800.0
_ANSWERED = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy has no business here


def patient(environment: dict[str, str], spin: str = ENGINE_SPIN) -> dict[str, str]:
    """An environment for a rival: its threads wait as our engine's do, unless somebody chose for all.

    Args:
        environment: Of the process.
        spin: How long they wait busily; empty leaves it as it comes.
    """
    if not spin or "OMP_WAIT_POLICY" in environment:
        return environment
    return {"GOMP_SPINCOUNT": spin, **environment}


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


@dataclass(frozen=True, slots=True)
class Rival:
    """One configuration of llama.cpp.

    Attributes:
        name: What it is called in the table.
        flags: How the server is started.
        remembers: It drafts out of what earlier answers said too, so each answer needs a server of its own: otherwise
            a repeated prompt would be replayed.
        length: Of a draft by a model alone without a gate, which can be compared with a fixed length; else 0.
    """

    name: str
    flags: tuple[str, ...]
    remembers: bool = False
    length: int = 0


def by_model(draft: Path, length: int, p_min: float = DEFAULT_P_MIN) -> Rival:
    """Drafts by a model. Without a type the server loads the model and does not draft."""
    flags = ("--spec-type", "draft-simple", *_model_flags(draft, length, p_min))
    return Rival(simple(length, p_min), flags, length=length if p_min == DEFAULT_P_MIN else 0)


def by_ngram(name: str) -> Rival:
    """Drafts out of the text itself.

    Args:
        name: One of `NGRAMS`.
    """
    return Rival(name, ("--spec-type", _kind(name), *NGRAMS[name]), remembers=True)


def mixed(name: str, draft: Path, length: int) -> Rival:
    """Both: a draft by a model wherever the text itself gives none."""
    flags = ("--spec-type", f"draft-simple,{_kind(name)}", *NGRAMS[name])
    return Rival(
        f"{name} + k={length}", (*flags, *_model_flags(draft, length, DEFAULT_P_MIN)), remembers=True
    )


def simple(length: int, p_min: float = DEFAULT_P_MIN) -> str:
    """The name of llama.cpp's drafts by a model."""
    return f"draft-simple k={length} p-min {p_min:g}"


def _kind(name: str) -> str:
    return name.split(" ", maxsplit=1)[0]


def _model_flags(draft: Path, length: int, p_min: float) -> tuple[str, ...]:
    flags = ("--spec-draft-model", str(draft), "--spec-draft-n-max", str(length))
    return (*flags, "--spec-draft-p-min", str(p_min))


class Server:
    """One running server with one loaded pair; how it drafts cannot be changed while it runs.

    Args:
        program: The binary.
        target: The target's file.
        rival: How it drafts; None is plain decoding.
        n_ctx: Size of the context.
        threads: Threads that compute.

    Raises:
        LoadError: It did not come up. One that remembers has a process for each answer, and fails when it is asked.
    """

    def __init__(
        self,
        program: Path,
        target: Path,
        rival: Rival | None,
        *,
        n_ctx: int,
        threads: int,
        n_batch: int = 512,
    ) -> None:
        fixed = ["--model", str(target), "--host", "127.0.0.1", "--parallel", "1", "--ctx-size", str(n_ctx)]
        fixed += ["--batch-size", str(n_batch), "--ubatch-size", str(n_batch), "--offline", "--no-webui"]
        for flag in ("--threads", "--threads-batch", "--threads-draft", "--threads-batch-draft"):
            fixed += [flag, str(threads)]
        self._command = [str(program), *fixed, *(rival.flags if rival else ())]
        self._process: subprocess.Popen[bytes] | None = None
        self._remembers = rival is not None and rival.remembers
        if not self._remembers:  # which has a process for each answer
            self._start()

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
        if self._remembers:
            self._start()
        body = request(asked.ids, sampling, tokens)
        try:
            answer = self._http("/completion", body, _ANSWER_SECONDS)
        except OSError as problem:
            raise LocalspecError(
                f"llama-server did not answer: {problem}.", why=self._last_words()
            ) from problem
        finally:
            if self._remembers:
                self.close()
        return read_answer(answer, len(asked.ids))

    def close(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.close()

    def _start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._address = f"http://127.0.0.1:{port}"
        self._log = tempfile.NamedTemporaryFile(prefix="llama-server-", suffix=".log")  # noqa: SIM115 - closed in close
        self._process = subprocess.Popen(
            [*self._command, "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=patient(
                {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_ARG_")}
            ),
        )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end:
            if self._process is None or self._process.poll() is not None:
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
