"""What the slash commands do."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.errors import UsageError
from localspec.options import OPTIONS
from localspec.settings import Settings, check_value
from localspec.spec.stats import Stats
from localspec.tui import text
from localspec.tui.commands import Command, load_again, parse
from localspec.worker.protocol import Configure

if TYPE_CHECKING:
    from localspec.tui.screens.chat import ChatScreen

_LATER = "The measurement begins when this is done; Esc stops what runs."


class Commands:
    """Runs slash commands on a chat.

    Args:
        chat: The screen whose session and widgets the commands change.
    """

    def __init__(self, chat: ChatScreen) -> None:
        self._chat = chat
        self._does: dict[str, Callable[[Command, str], str | None]] = {
            "/help": self._help,
            "/draft": self._draft,
            "/n-draft": self._n_draft,
            "/temp": self._temp,
            "/top-p": self._number,
            "/min-p": self._number,
            "/repeat-penalty": self._number,
            "/presence-penalty": self._number,
            "/frequency-penalty": self._number,
            "/top-k": self._top_k,
            "/seed": self._seed,
            "/max-tokens": self._max_tokens,
            "/think": self._think,
            "/system": self._system,
            "/regenerate": self._regenerate,
            "/drop": self._drop,
            "/copy": self._copy,
            "/colour": self._colour,
            "/thinking": self._thinking,
            "/stats": self._stats,
            "/bench": self._bench,
            "/tune": self._tune,
            "/theme": self._theme,
            "/clear": self._clear,
            "/quit": self._quit,
        }

    def run(self, line: str) -> str | None:
        """Run one command line.

        Returns:
            The confirmation to show, None where the effect is to be seen anyway or comes later.

        Raises:
            UsageError: Unknown command, bad value, or nothing to act on.
        """
        command, argument = parse(line)
        return self._does[command.name](command, argument)

    # ---------------------------------------------------------------- drafting

    def _draft(self, command: Command, argument: str) -> str | None:
        wanted = {"on": True, "off": False}.get(argument.lower())
        if wanted is None:
            raise UsageError(
                f"{command.name} takes on or off, not “{argument}”.",
                why="Another draft has to be loaded. The conversation is kept and goes on with the next load.",
                hint=load_again(f"--draft {shlex.quote(argument)}"),
            )
        return self._configure(Configure(draft_on=wanted), f"Drafting will be {argument.lower()}")

    def _n_draft(self, command: Command, argument: str) -> str | None:
        settings = self._checked(command, argument, "n_draft", str, "auto")
        length, auto = settings.draft_length
        return self._configure(
            Configure(n_draft=length, auto=auto), f"The draft length will be {settings.n_draft}"
        )

    def _configure(self, change: Configure, later: str) -> str | None:
        # The engine's answer is the confirmation: it knows whether there is a draft to turn on.
        self._chat.confirm_draft()
        self._chat.worker.configure(change)
        return None if self._chat.worker.alive else f"{later} after the next load."

    # ---------------------------------------------------------------- sampling

    @staticmethod
    def _checked(
        command: Command, argument: str, field: str, kind: type[float | int | str], example: str
    ) -> Settings:
        """Settings with this one value, by the rule of the flag."""
        try:
            return check_value(field, kind(argument), Settings.model_validate({}))
        except (UsageError, ValueError):
            allowed = OPTIONS[field].allowed
            raise UsageError(
                f"{command.name} takes {allowed}, not “{argument}”.", hint=f"{command.name} {example}"
            ) from None

    def _sample(self, **changes: Any) -> None:
        session = self._chat.session
        session.sampling = replace(session.sampling, **changes)

    def _when(self) -> str:
        return " from the next answer on" if self._chat.busy else ""

    def _temp(self, command: Command, argument: str) -> str:
        value = self._checked(command, argument, "temperature", float, "0.7").temperature
        self._sample(temperature=value)
        greedy = ": always the most likely token" if value == 0 else ""
        return f"Temperature is {value:g}{self._when()}{greedy}."

    def _number(self, command: Command, argument: str) -> str:
        field = command.name[1:].replace("-", "_")
        value = getattr(self._checked(command, argument, field, float, "0.5"), field)
        self._sample(**{field: value})
        return f"{command.name[1:]} is {value:g}{self._when()}."

    def _top_k(self, command: Command, argument: str) -> str:
        value = self._checked(command, argument, "top_k", int, "40").top_k
        self._sample(top_k=value)
        return f"top-k is {value}{self._when()}{'' if value else ': all tokens'}."

    def _seed(self, command: Command, argument: str) -> str:
        value = self._checked(command, argument, "seed", int, "4").seed
        self._sample(seed=value)
        return f"The seed is {value}{self._when()}."

    def _max_tokens(self, command: Command, argument: str) -> str:
        value = self._checked(command, argument, "max_tokens", int, "512").max_tokens
        self._chat.session.max_tokens = value
        return f"An answer has {f'at most {value:,} tokens' if value else 'no limit'}{self._when()}."

    def _think(self, command: Command, argument: str) -> str:
        wanted = {"on": True, "off": False, "auto": None}
        if argument.lower() not in wanted:
            raise UsageError(f"{command.name} takes on, off or auto, not “{argument}”.", hint="/think off")
        think = self._chat.session.think = wanted[argument.lower()]
        ready = self._chat.worker.ready
        if think is not None and ready is not None and not ready.knows_thinking:
            return "Set, but this model's template does not know how to switch thinking on or off."
        does = {
            True: "thinks first",
            False: "does not think first",
            None: "thinks first where its template says so",
        }
        return f"The model {does[think]}{self._when() or ', from the next answer on'}."

    # ------------------------------------------------------------ conversation

    def _system(self, command: Command, argument: str) -> str:
        session = self._chat.session
        if not argument:
            said = session.system
            return f"System message: {said}" if said else "There is no system message. /system TEXT sets one."
        session.set_system("" if argument == "clear" else argument)
        state = "cleared" if argument == "clear" else "set"
        return f"System message {state}{self._when() or ' for the next answer'}."

    def _regenerate(self, command: Command, argument: str) -> None:
        if not self._chat.session.messages:
            raise UsageError("There is nothing to answer yet.")
        self._chat.when_idle(self._chat.regenerate, stop=True)

    def _drop(self, command: Command, argument: str) -> None:
        self._chat.when_idle(self._chat.drop_oldest, stop=True)

    def _clear(self, command: Command, argument: str) -> None:
        self._chat.when_idle(self._chat.clear, stop=True)

    # ----------------------------------------------------------------- measure

    def _bench(self, command: Command, argument: str) -> str | None:
        waits = self._chat.busy
        self._chat.when_idle(self._chat.bench)
        return _LATER if waits else None

    def _tune(self, command: Command, argument: str) -> str | None:
        waits = self._chat.busy
        self._chat.when_idle(self._chat.tune)
        return _LATER if waits else None

    # ------------------------------------------------------------------ screen

    def _help(self, command: Command, argument: str) -> None:
        self._chat.action_help()

    def _quit(self, command: Command, argument: str) -> None:
        self._chat.leave()

    def _colour(self, command: Command, argument: str) -> None:
        self._chat.action_colour()

    def _thinking(self, command: Command, argument: str) -> None:
        self._chat.action_thinking()

    def _theme(self, command: Command, argument: str) -> str:
        app = self._chat.app
        names = sorted(app.available_themes)
        if not argument:
            return f"The theme is {app.theme}. There are: {', '.join(names)}."
        if argument not in names:
            raise UsageError(f"There is no theme “{argument}”.", why=f"There are: {', '.join(names)}.")
        app.theme = argument
        return f"The theme is {argument}."

    def _copy(self, command: Command, argument: str) -> str | None:
        answer = self._chat.last_answer()
        if not answer:
            raise UsageError("There is no answer to copy yet.")
        if not argument:
            self._chat.copy(answer)
            return None
        try:
            path = Path(argument).expanduser()
            with path.open("x", encoding="utf-8") as file:
                file.write(answer)
        except FileExistsError:
            raise UsageError(f"{path} exists; it is left as it is.", hint="/copy ANOTHER-FILE") from None
        except (OSError, RuntimeError, ValueError) as error:  # also: a user that does not exist, a zero byte
            why = f"{getattr(error, 'strerror', None) or str(error).rstrip('.')}."
            raise UsageError(
                f"{text.one_line(argument, 60)} cannot be written.", why=why, hint="/copy ~/answer.md"
            ) from error
        return f"Saved the last answer to {path}."

    def _stats(self, command: Command, argument: str) -> str:
        stats = self._chat.figures.stats
        if not stats.prompt_tokens:
            raise UsageError("There are no figures yet: nothing was answered.")
        rounds = f"{stats.rounds:,} rounds: drafted {stats.drafted:,}, accepted {stats.accepted:,}"
        mean = stats.mean_accepted_length
        lines = [
            f"prompt    {stats.prompt_tokens:,} tokens, {stats.reused_tokens:,} of them reused; "
            f"{text.rate(stats.prompt_tok_s)} tok/s",
            f"answer    {stats.completion_tokens:,} tokens; first after {text.seconds(stats.ttft_s)}, "
            f"then {text.rate(stats.decode_tok_s)} tok/s",
            f"drafting  {rounds} ({text.percent(stats.acceptance_rate)}); "
            f"mean accepted length {text.NOTHING if mean is None else format(mean, '.2f')}",
            *_sources(stats),
            _positions("accepted at position, of those that got there", stats.per_position),
            _positions("the same, of all that were drafted", stats.per_position_unconditional),
            f"time      draft {text.seconds(stats.draft_s)}, verify {text.seconds(stats.verify_s)}, "
            f"rest {text.seconds(stats.other_s)}",
        ]
        return "\n".join(line for line in lines if line)


def _sources(stats: Stats) -> list[str]:
    """A line for each source of drafts, where there is more than one."""
    if len(stats.by_source) < 2:
        return []
    return [
        f"   {text.one_line(name, 40)}: {source.rounds:,} rounds: drafted {source.drafted:,}, accepted "
        f"{source.accepted:,} ({text.percent(source.acceptance_rate)})"
        for name, source in stats.by_source.items()
    ]


def _positions(label: str, shares: tuple[float, ...]) -> str:
    return f"{label}: " + ", ".join(text.percent(share) for share in shares) if shares else ""
