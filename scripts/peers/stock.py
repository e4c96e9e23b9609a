"""llama-cpp-python's own `Llama`, and a bare `llama_decode` loop, each in a process of its own.

The stock loop with a draft has faults (it does not look at the result of a cache removal, and writes one row of scores
a token into a buffer that is a batch long), so what it does must not reach the measurement. This file is also the
child's program: commands come as JSON lines on its standard input, answers go to its standard output.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from localspec.errors import LocalspecError
from scripts.peers.answers import Answer, Asked, Mark
from scripts.peers.native import ENGINE_SPIN, patient

PROMPT_LOOKUP = "prompt lookup"


class Stock:
    """A child that has one model open.

    Args:
        target: The target's file.
        draft: What drafts: a file, `PROMPT_LOOKUP`, or empty.
        n_ctx: Size of the context.
        threads: Threads that compute.
        bare: No `Llama`, the bare loop.
        spin: How long OpenMP's threads wait busily; empty leaves it as it comes.
    """

    def __init__(
        self,
        target: Path,
        draft: Path | str,
        *,
        n_ctx: int,
        threads: int,
        bare: bool = False,
        spin: str = ENGINE_SPIN,
    ) -> None:
        self._load = {"target": str(target), "draft": str(draft), "n_ctx": n_ctx, "threads": threads}
        self._load["bare"] = bare
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=patient(dict(os.environ), spin),
        )
        try:
            self._call(self._load)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Stock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, asked: Asked, tokens: int) -> Answer:
        """A greedy answer; it ends where the model ends it.

        Raises:
            LocalspecError: It failed; the message says how.
        """
        return self._timed(
            {"messages": [[m.role, m.content] for m in asked.prompt.messages], "tokens": tokens}
        )

    def step(self, asked: Asked, known: tuple[int, ...], tokens: int) -> Answer:
        """The bare loop: evaluate the prompt and the tokens that are known, then decode more of them greedily.

        Raises:
            LocalspecError: It failed.
        """
        return self._timed({"prompt": [*asked.ids, *known], "tokens": tokens})

    def close(self) -> None:
        """End it."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended already
                self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _timed(self, command: dict[str, Any]) -> Answer:
        found = self._call(command)
        times = found["times"]
        return Answer(
            tokens=len(times),
            seconds=times[-1] - times[0] if times else 0.0,
            drafted=found.get("drafted", 0),
            accepted=found.get("accepted", 0),
            marks=tuple(Mark(count, at - times[0]) for count, at in enumerate(times, 1)),
            ids=tuple(found.get("ids", ())),
            text=found.get("text", ""),
        )

    def _call(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            raise LocalspecError(f"llama-cpp-python ended with code {self._process.wait()}.")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise LocalspecError(f"llama-cpp-python: {found['error']}.")
        return found


# ------------------------------------------------------------------------------------------------- in the child


class _Counting:
    """Counts what a stock draft model proposes; the loop itself tells nobody."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.drafted, self.calls = inner, 0, 0

    def __call__(self, input_ids: Any, /, **kwargs: Any) -> Any:
        found = self.inner(input_ids, **kwargs)
        self.calls += 1
        self.drafted += len(found)
        return found


def _stock(load: dict[str, Any]) -> Generator[dict[str, Any], dict[str, Any], None]:
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    drafter: _Counting | None = None
    if load["draft"] == PROMPT_LOOKUP:
        drafter = _Counting(LlamaPromptLookupDecoding())
    elif load["draft"]:
        drafter = _Counting(_our_drafter(load))
    # With a draft its score buffer holds a batch of rows, while each token of the context takes one.
    n_batch = load["n_ctx"] if drafter else 512
    llama = llama_cpp.Llama(
        load["target"],
        n_ctx=load["n_ctx"],
        n_batch=n_batch,
        n_threads=load["threads"],
        n_threads_batch=load["threads"],
        flash_attn=True,  # as the others choose by themselves, as they do the next
        n_gpu_layers=-1,
        draft_model=drafter,
        verbose=False,
    )
    # The others warm up by themselves when they load.
    llama.create_completion([llama.token_bos()], max_tokens=2, temperature=0.0)
    command = yield {}
    while True:
        llama.reset()
        if drafter is not None:
            drafter.drafted = drafter.calls = 0
        stream = llama.create_chat_completion(
            [{"role": role, "content": text} for role, text in command["messages"]],
            max_tokens=command["tokens"],
            temperature=0.0,
            stream=True,
        )
        times, pieces = [], []
        for chunk in stream:
            piece = chunk["choices"][0]["delta"].get("content")
            if piece:
                times.append(time.perf_counter())
                pieces.append(piece)
        found: dict[str, Any] = {"times": times, "text": "".join(pieces)}
        if drafter is not None:
            # It is asked once for every target step but the last.
            found |= {"drafted": drafter.drafted, "accepted": max(len(times) - 1 - drafter.calls, 0)}
        command = yield found


def _our_drafter(load: dict[str, Any]) -> Any:
    from localspec.llama.context import Context
    from localspec.llama.model import Model
    from localspec.spec.draft_model import ModelDrafter

    model = Model(Path(load["draft"]))
    context = Context(model, n_ctx=load["n_ctx"], threads=load["threads"])
    drafter = ModelDrafter(context, name="draft", n_vocab=model.vocab.n_tokens)
    drafter.n_draft_alone = 3
    return drafter


def _bare(load: dict[str, Any]) -> Generator[dict[str, Any], dict[str, Any], None]:
    import ctypes

    import llama_cpp
    import numpy as np

    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(os.fsencode(load["target"]), params)
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch = load["n_ctx"], 512, 512
    settings.n_threads = settings.n_threads_batch = load["threads"]
    context = llama_cpp.llama_init_from_model(model, settings)
    memory = llama_cpp.llama_get_memory(context)
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def decode(ids: list[int]) -> int:
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, len(ids))):
            raise RuntimeError("llama_decode failed")
        row = llama_cpp.llama_get_logits_ith(context, -1)
        address = ctypes.cast(row, ctypes.POINTER(ctypes.c_float))
        return int(np.ctypeslib.as_array(address, (n_vocab,)).argmax())

    command = yield {}
    while True:
        llama_cpp.llama_memory_clear(memory, True)
        prompt = command["prompt"]
        for start in range(0, len(prompt), 512):
            token = decode(prompt[start : start + 512])
        times, ids = [time.perf_counter()], [token]
        while len(times) < command["tokens"]:
            token = decode([token])
            times.append(time.perf_counter())
            ids.append(token)
        command = yield {"times": times, "ids": ids}


def serve() -> None:
    """Answer commands until there are no more. The first one loads."""
    # Loading moves descriptors 1 and 2 elsewhere for a while, and llama.cpp prints: answers get one of their own.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    work: Any = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if work is None:
                work = (_bare if command["bare"] else _stock)(command)
                found = next(work)
            else:
                found = work.send(command)
        except Exception as problem:
            found = {"error": f"{type(problem).__name__}: {problem}"}
        out.write(json.dumps(found) + "\n")
        out.flush()


if __name__ == "__main__":
    serve()
