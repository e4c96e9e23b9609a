"""Settings: defaults < the person's `settings.toml` < flags; and what `run` remembers from the last time."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import json
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from localspec import paths
from localspec.errors import UsageError
from localspec.models.text import edit_command, printable, shell_word, shown
from localspec.options import AUTO_N_DRAFT, KV_TYPES, MAX_N_DRAFT, MIN_CTX, OPTIONS
from localspec.spec.events import Sampling

# Python 3.10 has no tomllib; tomli is the same under another name.
tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

Count = Annotated[int, Field(ge=0, strict=True)]
Layers = Annotated[int, Field(ge=-1, strict=True)]


class Settings(BaseModel):
    """Everything that a person can set. The words of each field are in `localspec.options`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str = Field("qwen3.8-27b", min_length=1)
    draft: str = ""
    """Empty = the last one used with the target, else the catalogue's, where it is on disk."""
    lookup: tuple[str, ...] = ()
    """Text files that lookup searches too."""
    batch: int = Field(512, ge=8, le=8192, strict=True)
    ubatch: Count = 0
    n_draft: int | str = "auto"
    """A number, `auto` or `auto:N`; see `draft_length`."""
    temperature: float = Field(0.7, ge=0, le=5, allow_inf_nan=False)
    top_p: float = Field(0.95, gt=0, le=1)
    top_k: Count = 40
    min_p: float = Field(0.0, ge=0, le=1)
    repeat_penalty: float = Field(1.0, gt=0, le=5)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    penalty_last_n: Count = 64
    seed: int | None = Field(None, ge=0, lt=2**64, strict=True)
    """None = a new one for every conversation."""
    ctx: Count = 8192
    gpu_layers: Layers = -1
    draft_gpu_layers: Layers = -1
    draft_device: str = Field("auto", pattern=r"^[^\x00-\x1f\x7f-\x9f]{1,64}$")
    draft_threads: int = Field(0, ge=0, le=512, strict=True)
    draft_kv: str = ""
    """Empty = as `kv`."""
    overlap: Literal["auto", "on", "off"] = "auto"
    kv: str = "f16"
    flash_attn: Literal["auto", "on", "off"] = "auto"
    split_mode: Literal["layer", "row", "none"] = "layer"
    threads: int = Field(0, ge=0, le=512, strict=True)
    system: str = ""
    max_tokens: Count = 0
    think: bool | None = Field(None, strict=True)
    show_drafted: bool = Field(False, strict=True)
    theme: str = ""

    @field_validator(
        "temperature",
        "top_p",
        "min_p",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        mode="before",
    )
    @classmethod
    def _number(cls, value: object) -> object:
        if isinstance(value, (bool, str)):
            raise ValueError("not a number")
        return value

    @field_validator("overlap", "flash_attn", "split_mode", mode="before")
    @classmethod
    def _word(cls, value: object) -> object:
        return value.strip().lower() if isinstance(value, str) else value

    @field_validator("ctx")
    @classmethod
    def _context(cls, value: int) -> int:
        if 0 < value < MIN_CTX:
            raise ValueError("too small")
        return value

    @field_validator("kv", "draft_kv")
    @classmethod
    def _cache_type(cls, value: str, info: ValidationInfo) -> str:
        if value.lower() not in KV_TYPES and (value or info.field_name == "kv"):
            raise ValueError("unknown type")
        return value.lower()

    @field_validator("draft_device")
    @classmethod
    def _device(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("empty")
        return value.strip().lower() if value.strip().lower() in ("auto", "cpu") else value.strip()

    @field_validator("ubatch")
    @classmethod
    def _physical_batch(cls, value: int, info: ValidationInfo) -> int:
        if value and not 8 <= value <= info.data.get("batch", value):
            raise ValueError("not within the batch")
        return value

    @field_validator("n_draft", mode="before")
    @classmethod
    def _length(cls, value: object, info: ValidationInfo) -> object:
        text = value.strip().lower() if isinstance(value, str) else value
        length = text.removeprefix("auto:") if isinstance(text, str) else text
        if isinstance(length, str) and length.isdecimal():
            length = int(length)
            text = f"auto:{length}" if isinstance(text, str) and text.startswith("auto") else length
        if length == "auto":
            return "auto"
        # A round verifies n_draft + 1 tokens in one batch, computed at once.
        batch = info.data.get("ubatch") or info.data.get("batch", 512)
        if type(length) is not int or not 0 <= length <= min(MAX_N_DRAFT, batch - 1):
            raise ValueError("not a draft length")
        return text

    @property
    def draft_length(self) -> tuple[int, bool]:
        """The greatest draft length, and whether each round's is chosen by price."""
        if isinstance(self.n_draft, int):
            return self.n_draft, False
        cap = self.n_draft.removeprefix("auto").removeprefix(":")
        return int(cap) if cap else min(AUTO_N_DRAFT, (self.ubatch or self.batch) - 1), True

    @property
    def lookup_files(self) -> tuple[str, ...]:
        """The files of `lookup`, absolute."""
        return tuple(str(_of_person(file).absolute()) for file in self.lookup)

    def sampling(self) -> Sampling:
        """The part that chooses tokens; a seed of None becomes 0, which a session replaces."""
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repeat_penalty=self.repeat_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            penalty_last_n=self.penalty_last_n,
            seed=self.seed or 0,
        )


def _of_person(file: str) -> Path:
    """The path with `~` filled in; `~NAME` of nobody stays as it is, and is then a file that does not exist."""
    try:
        return Path(file).expanduser()
    except RuntimeError:
        return Path(file)


def load_settings(flags: Mapping[str, Any] | None = None, file: Path | None = None) -> Settings:
    """Defaults, then the settings file, then flags.

    Args:
        flags: Field names with values; None as a value means "not given".
        file: The default is `paths.settings_file()`; a file that does not exist is an empty one.

    Raises:
        UsageError: A value cannot be; it names the file or the flag, the field, the value and what is
        allowed.
    """
    file = file or paths.settings_file()
    from_file = _read(file)
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    _validate(from_file, file)
    return _validate(from_file | given, None)


def check_value(name: str, value: Any, settings: Settings) -> Settings:
    """A copy of the settings with one field changed, for commands such as `/temp 0.3`.

    Raises:
        UsageError: The value cannot be; the sentence is the same as for the flag.
    """
    return _validate(settings.model_dump() | {name: value}, None)


def _read(file: Path) -> dict[str, Any]:
    try:
        if not file.exists() and not file.is_symlink():  # a link to nothing is no wish for the defaults
            return {}
        return dict(tomllib.loads(file.read_text(encoding="utf-8-sig")))
    except UnicodeDecodeError as error:
        why = f"The byte at {error.start:,} does not belong there."
        raise UsageError(f"{shown(file)} is not text in UTF-8.", why=why, hint=edit_command(file)) from error
    except tomllib.TOMLDecodeError as error:
        why = f"{printable(str(error))}."
        raise UsageError(f"{shown(file)} is not valid TOML.", why=why, hint=edit_command(file)) from error
    except RecursionError as error:
        why = "It is nested too deeply."
        raise UsageError(f"{shown(file)} cannot be read.", why=why, hint=edit_command(file)) from error
    except OSError as error:
        why, hint = f"{error.strerror or error}.", f"ls -l {shell_word(file)}"
        raise UsageError(f"{shown(file)} cannot be read.", why=why, hint=hint) from error


def _validate(values: Mapping[str, Any], file: Path | None) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise _sentences(error.errors()[0], file) from None


def _sentences(problem: Any, file: Path | None) -> UsageError:
    """One problem of pydantic's list in our words."""
    name = str(problem["loc"][0]) if problem["loc"] else ""
    hint = edit_command(file) if file is not None else "localspec run --help"
    if problem["type"] == "extra_forbidden":
        # Many know a setting by its flag: `temp`, `n-draft`.
        words = {option.flag.partition("/")[0].removeprefix("--"): key for key, option in OPTIONS.items()}
        near = [words[name]] if name in words else difflib.get_close_matches(name, OPTIONS, n=1)
        why = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(OPTIONS)}."
        where = shown(file) if file is not None else "Settings"
        return UsageError(f"{where}: there is no setting {name!r}.", why=why, hint=hint)
    option = OPTIONS[name]
    value = problem["input"]
    quoted = json.dumps(value, default=str, ensure_ascii=False)
    if file is not None:
        message = f"{shown(file)}: {name} = {quoted} is not allowed."
    else:
        typed = value if isinstance(value, str) and value.strip() else quoted
        message = f"{option.flag.partition('/')[0] or name} {typed} is not allowed."
    return UsageError(message, why=f"Allowed: {option.allowed}.", hint=hint)


# ----------------------------------------------------------------------- state

_REMEMBERED_DRAFTS = 50


@dataclass(frozen=True, slots=True)
class State:
    """What `run` remembers."""

    target: str = ""
    """The last target, as `ModelRef.id`."""
    drafts: dict[str, str] = field(default_factory=dict)
    """The last draft of each target: a `ModelRef.id`, `lookup` or `none`."""


def load_state(file: Path | None = None) -> State:
    """Read the state; a missing or damaged file is an empty state."""
    try:
        data = json.loads((file or paths.state_file()).read_text(encoding="utf-8"))
        drafts = data.get("drafts", {})
        pairs = drafts.items() if isinstance(drafts, dict) else ()
        kept = {k: v for k, v in pairs if isinstance(v, str)}
        target = data.get("target", "")
        return State(target if isinstance(target, str) else "", kept)
    except (OSError, ValueError, AttributeError, RecursionError):
        return State()


def remember(target: str, draft: str, file: Path | None = None) -> None:
    """Keep the pair for the next start. A state that cannot be written is no reason to stop anything.

    Args:
        target: `ModelRef.id` of the target.
        draft: `ModelRef.id` of the draft, `lookup`, or `none`.
        file: The default is `paths.state_file()`.
    """
    file = file or paths.state_file()
    drafts = load_state(file).drafts
    drafts.pop(target, None)
    drafts[target] = draft
    newest = dict(list(drafts.items())[-_REMEMBERED_DRAFTS:])
    scratch = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps({"target": target, "drafts": newest}, indent=1), encoding="utf-8")
        scratch.replace(file)  # whole or not at all, with two programs at once too
    except OSError:
        with contextlib.suppress(OSError):
            scratch.unlink()
