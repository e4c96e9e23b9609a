"""What every measurement does with a worker: load a pair, ask from empty caches, take the window of the answer."""

from __future__ import annotations

from collections.abc import Callable

from localspec.errors import LocalspecError, UsageError
from localspec.measure import figures
from localspec.measure.figures import Window
from localspec.measure.prompts import Prompt
from localspec.spec.events import Finished, Round, Sampling
from localspec.spec.stats import Stats
from localspec.worker.process import Worker
from localspec.worker.protocol import Event, Generate, Load, LoadProgress, Ready

WARM_UP_TOKENS = 16
TOLD_TIME = 1_767_268_800.0
"""What a template that tells the time is told, noon of 2026-01-01 in UTC: one text on every day, with and without a
draft, though midnight passes between the two."""


class StoppedError(Exception):
    """The person wants no more."""


def load_pair(worker: Worker, load: Load, progress: Callable[[LoadProgress], None]) -> Ready:
    """Load a pair.

    Args:
        worker: Has nothing running.
        load: The pair.
        progress: Told how far it is.

    Raises:
        LocalspecError: It cannot be loaded, or the load was stopped.
    """
    ready: Ready | None = None
    for event in worker.load(load):
        if isinstance(event, LoadProgress):
            progress(event)
        elif isinstance(event, Ready):
            ready = event
    if ready is None:
        raise LocalspecError("The engine did not load the pair.", hint="localspec doctor")
    return ready


def full_length(prompt: Prompt, sampling: Sampling, tokens: int, think: bool | None) -> Generate:
    """The command for an answer that has this many tokens in any case: an end of generation is passed over."""
    return Generate(
        request=0,
        messages=prompt.messages,
        sampling=sampling,
        max_tokens=tokens,
        think=think,
        ignore_eos=True,
        now=TOLD_TIME,
    )


def ask(
    worker: Worker,
    command: Generate,
    cancelled: Callable[[], bool],
    hear: Callable[[Event], None] = lambda event: None,
) -> tuple[list[Stats], Finished]:
    """One answer from empty caches.

    Args:
        worker: Has nothing running, and drafts as it should.
        command: What is asked.
        cancelled: Whether the person wants no more; asked once, at the end.
        hear: Told every event.

    Returns:
        The counters at the end of each round, and the end of the answer.

    Raises:
        StoppedError: The person wants no more.
        LocalspecError: The answer failed.
    """
    worker.clear()
    rounds: list[Stats] = []
    finished: Finished | None = None
    for event in worker.generate(command):
        if isinstance(event, Round):
            rounds.append(event.stats)
        elif isinstance(event, Finished):
            finished = event
        hear(event)
    assert finished is not None
    if finished.reason == "cancelled" or cancelled():
        raise StoppedError
    return rounds, finished


def window_of(
    rounds: list[Stats], finished: Finished, prompt: Prompt, *, skip: int, tokens: int, program: str
) -> Window:
    """The part of an answer that counts.

    Args:
        rounds: The counters at the end of each round.
        finished: The end of the answer.
        prompt: What was asked.
        skip: Tokens left out at the start.
        tokens: Tokens of the answer.
        program: The command that measures, for the hint.

    Raises:
        UsageError: The answer ended too early, because the context was full.
    """
    window = figures.window(rounds, skip, tokens)
    if window is None:
        size, asked = finished.context_size, finished.stats.prompt_tokens
        raise UsageError(
            f"The answer to the prompt {prompt.kind!r} ended after {len(finished.token_ids)} tokens"
            f" ({finished.reason}); {skip} of them are left out.",
            why=f"The context holds {size} tokens, {asked} of them are the prompt.",
            hint=f"localspec {program} --ctx {2 * size}",
        )
    return window
