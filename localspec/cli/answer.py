"""One answer without a screen: the text to stdout as it comes, everything else to stderr."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from localspec.chat.thinking import note, segments
from localspec.cli import output
from localspec.cli.shared import INTERRUPTED, new_session
from localspec.errors import LocalspecError
from localspec.spec.events import Finished, PromptProgress, Round
from localspec.worker.process import Worker
from localspec.worker.protocol import LoadProgress, Notice, Ready

if TYPE_CHECKING:
    from localspec.chat.session import Session
    from localspec.launch import Launch
    from localspec.settings import Settings
    from localspec.worker.protocol import Event


def answer(
    text: str, launch: Launch, settings: Settings, *, stops: tuple[str, ...] = (), as_json: bool
) -> int:
    """Load, answer one prompt, print.

    Args:
        text: The prompt.
        launch: What to load; nothing is missing.
        settings: Everything else.
        stops: Texts that end the answer; it does not hold them.
        as_json: Print one object in place of the text.

    Returns:
        The exit code: 0, or 130 when the answer was stopped with Ctrl+C.

    Raises:
        LocalspecError: The load or the answer failed. What had come of the answer is on stdout.
    """
    assert launch.load is not None
    with Worker() as worker, ctrl_c_stops(worker) as interrupted:
        try:
            ready = _load(worker, launch, interrupted)
            if settings.think is not None and not ready.knows_thinking:
                output.say(
                    "The chat template of this model has no switch for thinking; the flag changes nothing."
                )
            session = new_session(worker, settings, stops=stops)
            finished = _stream(_stopping(session.ask(text), worker, interrupted), show=not as_json)
        except LocalspecError:
            if not interrupted:
                raise
            return INTERRUPTED  # a load that was stopped is no fault to report
        if as_json:
            output.write_json(_object(finished, session, launch, settings, ready))
        else:
            _report(finished, session)
        return INTERRUPTED if finished.reason == "cancelled" else 0


@contextmanager
def ctrl_c_stops(worker: Worker) -> Iterator[list[bool]]:
    """The first Ctrl+C stops what runs and lets it end in order, the second one leaves.

    Yields:
        A list that is empty until the first one.
    """
    interrupted: list[bool] = []

    def stop(number: int, frame: Any) -> None:
        if interrupted:
            raise KeyboardInterrupt
        interrupted.append(True)
        worker.stop()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _stopping(events: Iterable[Event], worker: Worker, interrupted: list[bool]) -> Iterator[Event]:
    """The events, with the stop given again: a Ctrl+C between two requests reached neither of them."""
    for event in events:
        if interrupted:
            worker.stop()
        yield event


def _load(worker: Worker, launch: Launch, interrupted: list[bool]) -> Ready:
    assert launch.load is not None
    for sentence in launch.notes:
        output.say(sentence)
    line = StatusLine()
    ready: Ready | None = None
    for event in _stopping(worker.load(launch.load), worker, interrupted):
        if isinstance(event, LoadProgress):
            line.show(f"{event.doing}: {event.fraction:.0%}")
        elif isinstance(event, Ready):
            ready = event
    line.clear()
    assert ready is not None
    launch.remember()
    for sentence in ready.notes:
        output.say(sentence)
    output.say(output.draft_line(ready.draft))
    return ready


def _stream(events: Iterable[Event], *, show: bool) -> Finished:
    line = StatusLine()
    finished: Finished | None = None
    thought = written = ""
    try:
        for event in events:
            if isinstance(event, PromptProgress) and event.done < event.total:
                line.show(f"Reading the prompt: {event.done} of {event.total} tokens")
            elif isinstance(event, Notice):
                line.clear()
                for sentence in event.sentences:
                    output.say(sentence)
            elif isinstance(event, Round):
                line.clear()
                for part in segments(event.pieces):
                    if part.thinking:
                        thought = _think(thought, part.text)
                    elif show:
                        thought = _end_thinking(thought)
                        output.write(part.text)
                        written = part.text
            elif isinstance(event, Finished):
                finished = event
    finally:
        line.clear()
        _end_thinking(thought)
        if show and written and not written.endswith("\n"):
            output.write("\n")
    assert finished is not None
    return finished


def _think(before: str, text: str) -> str:
    """Show thinking to a person only; stdout never gets it."""
    if not output.is_terminal(sys.stderr):
        return ""
    output.say_dim(text)
    return text or before


def _end_thinking(last: str) -> str:
    if last:
        output.say("" if last.endswith("\n") else "\n")
    return ""


def _report(finished: Finished, session: Session) -> None:
    said = note(finished.reason, content=finished.text, thinking=finished.thinking)
    if said:
        output.say(f"({said})")
    output.say(output.figures(finished.stats, finished.draft))
    if session.sampling.temperature > 0:
        output.say(f"seed {session.seed} (the same text again: --seed {session.seed})")


def _object(
    finished: Finished, session: Session, launch: Launch, settings: Settings, ready: Ready
) -> dict[str, Any]:
    """What `--json` prints. The names are an interface."""
    used = settings.model_dump() | {
        "target": launch.target.id,
        "draft": launch.draft_name,
        "profile": launch.profile or None,
        "seed": session.seed,
        "stop": list(session.stops),
        "ctx": finished.context_size,
        "threads": ready.threads,
    }
    for shown_only in ("theme", "show_drafted"):
        del used[shown_only]
    return {
        "text": finished.text,
        "thinking": finished.thinking,
        "token_ids": list(finished.token_ids),
        "finish_reason": finished.reason,
        "draft": {
            "state": finished.draft.state,
            "reason": finished.draft.reason,
            "name": finished.draft.name,
            "predicted_speedup": finished.draft.predicted,
            "overlap": finished.draft.overlap,
            "overlap_reason": finished.draft.no_overlap,
        },
        "stats": finished.stats.to_json(),
        "device": {
            "target": ready.target.device,
            "draft": ready.draft_model.device if ready.draft_model else None,
        },
        "settings": used,
    }


class StatusLine:
    """One line on a terminal's stderr that is written over and taken away again."""

    def __init__(self) -> None:
        self._shown = False
        self._at = 0.0
        self._live = output.can_draw(sys.stderr)

    def show(self, text: str) -> None:
        """Write it over what is there, ten times a second at most."""
        now = time.monotonic()
        if self._live and now - self._at > 0.1:
            self._at, self._shown = now, True
            sys.stderr.write(f"\r\x1b[K{output.printable(text)}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Take it away."""
        if self._shown:
            self._shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
