"""The slash commands: what there is, and how a typed line is read. What they do is in the chat screen."""

from __future__ import annotations

import difflib
import shlex
from dataclasses import dataclass

from localspec.errors import UsageError
from localspec.options import OPTIONS


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command."""

    name: str
    argument: str
    """What may follow it, for the help and the suggestions; empty when nothing may."""
    help: str
    aliases: tuple[str, ...] = ()
    needs_argument: bool = False


COMMANDS = (
    Command("/help", "", "keys, commands and what each figure means"),
    Command(
        "/draft", "on|off", "turn drafting on or off, in the middle of an answer too", needs_argument=True
    ),
    Command(
        "/n-draft", "N|auto", "draft length: tokens drafted a round; auto goes by price", needs_argument=True
    ),
    Command("/temp", "X", "temperature; 0 always takes the most likely token", needs_argument=True),
    Command("/top-p", "X", "keep the most likely tokens up to this share (0-1)", needs_argument=True),
    Command("/top-k", "N", "keep the N most likely tokens; 0 keeps all", needs_argument=True),
    Command("/min-p", "X", "drop tokens below this share of the best one (0-1)", needs_argument=True),
    Command(
        "/repeat-penalty", "X", "make tokens that came lately less likely; 1 is off", needs_argument=True
    ),
    Command("/presence-penalty", "X", "lower what came lately by this much; 0 is off", needs_argument=True),
    Command("/frequency-penalty", "X", "the same for each time that it came; 0 is off", needs_argument=True),
    Command("/seed", "N", "the number that names the text", needs_argument=True),
    Command("/max-tokens", "N", "longest answer in tokens; 0 has no limit", needs_argument=True),
    Command(
        "/think",
        "on|off|auto",
        "let the model think first; auto leaves it to its template",
        needs_argument=True,
    ),
    Command("/system", "[TEXT|clear]", "show, set or clear the system message"),
    Command("/regenerate", "", "answer the last message again, with a new seed", ("/retry",)),
    Command("/drop", "", "make room: forget the oldest message and its answer, then answer what is open"),
    Command("/copy", "[FILE]", "copy the last answer, or save it to a file"),
    Command("/colour", "", "colour accepted draft tokens apart from the target's own (F4)", ("/color",)),
    Command("/thinking", "", "fold or unfold the thinking (F3)"),
    Command("/stats", "", "all figures of the last answer in words (F2 draws them)"),
    Command("/bench", "", "measure this pair with and without its draft; the conversation stays"),
    Command("/tune", "", "find and save the fastest drafter and length; the conversation stays"),
    Command("/theme", "[NAME]", "show or change the colours"),
    Command("/clear", "", "forget the conversation and both caches"),
    Command("/quit", "", "leave", ("/exit", "/q")),
)

_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}

LOAD_FLAGS = {
    f"/{option.flag[2:]}": option
    for option in OPTIONS.values()
    if option.flag.startswith("--") and "/" not in option.flag and f"/{option.flag[2:]}" not in _BY_NAME
}
"""What is chosen when the models load: typed as a command, the chat says how to load with it."""
_OTHER_TARGET = ("/target", "/model", "/load")


def is_command(text: str) -> bool:
    """Whether a typed text is a command: one line that starts with a single slash and a letter or nothing."""
    first = text.lstrip().split(maxsplit=1)[0] if text.strip() else ""
    return first.startswith("/") and not first.startswith("//") and "/" not in first[1:]


def as_message(text: str) -> str:
    """The message that a typed text stands for: `//` at its start is one literal slash."""
    return text[1:] if text.startswith("//") else text


def parse(text: str) -> tuple[Command, str]:
    """Read a command line.

    Args:
        text: What was typed, for which `is_command` is true.

    Returns:
        The command and its argument, which may span lines.

    Raises:
        UsageError: Nobody knows the command, or its argument is missing or one too many.
    """
    word, _, argument = text.strip().partition(" ")
    if "\n" in word:
        word, _, argument = text.strip().partition("\n")
    argument = argument.strip()
    command = _BY_NAME.get(word.lower())
    if command is None:
        _tell_how_to_load(word.lower(), argument)
        near = difflib.get_close_matches(word.lower(), _BY_NAME, n=3, cutoff=0.5)
        names = near or [each.name for each in COMMANDS]
        raise UsageError(
            f"There is no command {word}.",
            why=("Near it: " if near else "There are: ") + ", ".join(names) + ".",
            hint="/help lists them; start a message with // to send a slash",
        )
    if argument and not command.argument:
        raise UsageError(f"{command.name} takes nothing after it.", hint=command.name)
    if not argument and command.needs_argument:
        raise UsageError(
            f"{command.name} needs a value: {command.help}.", hint=f"{command.name} {command.argument}"
        )
    return command, argument


def load_again(words: str) -> str:
    """What to type on the command line to go on with this conversation and other models or settings."""
    return f"localspec run {words} --continue"


def _tell_how_to_load(word: str, argument: str) -> None:
    """Refuse what only a load can change, with what to type for it; anything else is no business of this.

    Raises:
        UsageError: `word` names a setting of the load, or another target.
    """
    option = LOAD_FLAGS.get(word)
    if option is None and word not in _OTHER_TARGET:
        return
    given = shlex.quote(argument) if argument else ""
    if option is None:
        hint, allowed = load_again(given or "TARGET"), ""
    else:
        hint = load_again(f"{option.flag} {given or option.default or 'FILE'}")
        allowed = f"It may be {option.allowed}. "
    raise UsageError(
        f"{word[1:]} is chosen when the models load.",
        why=f"{allowed}Leave with /quit; the conversation is kept and goes on with the next load.",
        hint=hint,
    )


def suggestions(text: str) -> list[Command]:
    """The commands that a text being typed could become; none once an argument has begun."""
    if not text.startswith("/") or text.startswith("//") or any(space in text for space in " \n\t"):
        return []
    typed = text.lower()
    return [each for each in COMMANDS if any(name.startswith(typed) for name in (each.name, *each.aliases))]
