"""Saved results of `localspec tune`: one TOML file a machine, target and draft, made to be read by people.

A profile is used only for what it was measured with. Another llama-cpp-python, other files or another machine make it
stale: the reason is told, and nothing of it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import re
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import psutil
from pydantic import ValidationError

from localspec import paths
from localspec.errors import LocalspecError, UsageError
from localspec.memory.hardware import seen_gpus
from localspec.models import gguf
from localspec.models.text import printable, shell_word
from localspec.options import OPTIONS
from localspec.settings import Settings, tomllib

FORMAT: Final = 1
DRAFT_SETTINGS: Final = (
    "n_draft",
    "draft_device",
    "draft_gpu_layers",
    "draft_threads",
    "draft_kv",
    "overlap",
)
"""Fields of `Settings` that were measured with one draft and mean nothing with another."""
SETTINGS: Final = ("draft", *DRAFT_SETTINGS, "kv", "flash_attn", "split_mode", "threads", "batch", "ubatch")
"""Fields of `Settings` that a profile may set."""
_PLACES: Final = {"draft_device", "draft_gpu_layers"}
_BATCHES: Final = {"batch", "ubatch"}
OFF: Final = "none"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Machine:
    """What a speed depends on, apart from files and versions."""

    cpu: str
    cores: int
    gpus: tuple[str, ...]

    @property
    def id(self) -> str:
        """A short name."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:6]

    def difference(self, now: Machine) -> str:
        """What is another one, for a sentence; empty when nothing is."""
        if self.cpu != now.cpu or self.cores != now.cores:
            return f"it was made on {self.cpu or 'another processor'} with {self.cores} cores"
        if self.gpus != now.gpus:
            return f"the GPUs were {', '.join(self.gpus) or 'none'}, now {', '.join(now.gpus) or 'none'}"
        return ""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model as it was when it was measured; of a split one, all its parts together."""

    id: str
    """As it is typed."""
    path: str
    size: int
    mtime_ns: int
    """Of the newest part."""

    def difference(self, path: Path) -> str:
        """What has changed, for a sentence; empty when nothing has.

        Args:
            path: Where the model is now.
        """
        name = path.name
        try:
            now = model_file(self.id, path)
        except (LocalspecError, OSError):
            return f"{name} is gone or cannot be read"
        return "" if (now.size, now.mtime_ns) == (self.size, self.mtime_ns) else f"{name} has changed"


@dataclass(frozen=True, slots=True)
class Profile:
    """One saved result."""

    name: str
    when: str
    """Date and time, ISO 8601."""
    machine: Machine
    target: ModelFile
    draft: ModelFile | None
    """The draft model; None for lookup and for no draft."""
    settings: Mapping[str, Any]
    """Values of the fields in `SETTINGS`."""
    versions: Mapping[str, str]
    figures: Mapping[str, float | str] = field(default_factory=dict)
    """What was measured, for people and `--json`."""
    remarks: Sequence[str] = ()
    """Lines of comment at the top of the file; only written."""

    @property
    def draft_name(self) -> str:
        """What drafts: an id, `lookup` or `none`."""
        return str(self.settings.get("draft", OFF))

    def is_of(self, name: str, target: Path) -> bool:
        """Whether it is about this target: the same id, or the same file under another name."""
        return self.target.id == name or Path(self.target.path) == target.absolute()

    @property
    def file(self) -> Path:
        """Where it is kept."""
        return paths.profiles_dir() / f"{self.name}.toml"

    def stale_reason(self, target: Path) -> str:
        """Why it must not be used now, as a part of a sentence; empty when it may.

        Args:
            target: The target's file that is about to be loaded.
        """
        before, now = self.versions.get("llama-cpp-python", ""), engine_version()
        if before != now:
            return f"llama-cpp-python is {now or 'not installed'} now, it was {before or 'not known'}"
        if reason := self.target.difference(target):
            return reason
        if self.draft is not None and (reason := self.draft.difference(Path(self.draft.path))):
            return reason
        return self.machine.difference(this_machine())


@lru_cache(maxsize=1)
def this_machine() -> Machine:
    """The machine that this runs on."""
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 0
    return Machine(_cpu(), cores, tuple(gpu.name for gpu in seen_gpus()))


def _cpu() -> str:
    """The processor's name; Python knows only its architecture on Linux and macOS."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
            return done.stdout.strip()
        found = re.search(r"^model name\s*:\s*(.+)$", _CPUINFO.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def engine_version() -> str:
    """Of llama-cpp-python, empty when it is not installed. Does not import it."""
    try:
        return metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        return ""


def model_file(name: str, path: Path) -> ModelFile:
    """A model as it is now.

    Args:
        name: As it is typed.
        path: Its first file.

    Raises:
        ModelFileError: It is no model.
        OSError: A part cannot be read.
    """
    stats = [part.stat() for part in gguf.read_header(path).files]
    return ModelFile(
        name, str(path.absolute()), sum(s.st_size for s in stats), max(s.st_mtime_ns for s in stats)
    )


def default_name(target: Path, draft: str, machine: Machine) -> str:
    """A profile's name when the person gives none: machine, target and draft tell profiles apart."""
    drafter = Path(draft).stem if draft.lower().endswith(".gguf") else draft
    return f"{_slug(target.stem)}--{_slug(drafter)}--{machine.id}"


def check_name(name: str) -> str:
    """The name, if a profile can be called so.

    Raises:
        UsageError: It cannot be a file's name everywhere, or is `none`, which means "no profile".
    """
    if _NAME.fullmatch(name) is None or name.lower() == OFF:
        raise UsageError(
            f"A profile cannot be called {printable(name)}.",
            why="Allowed: letters, digits, dots, - and _, at most 100; not none.",
            hint="localspec tune --name fast",
        )
    return name


# ------------------------------------------------------------------------------ reading


def load_profile(name: str) -> Profile:
    """A profile by its name.

    Raises:
        UsageError: There is none, or it cannot be read.
    """
    found = paths.profiles_dir() / f"{check_name(name)}.toml"
    if not found.is_file():
        known = [file.stem for file in _files()]
        raise UsageError(
            f"There is no profile called {printable(name)}.",
            why=f"Known: {', '.join(known)}." if known else "None was made yet.",
            hint="localspec tune",
        )
    return _read(found)


def newest_for(name: str, target: Path, draft: str = "") -> tuple[Profile | None, str]:
    """The newest profile of a target, of this machine if there is one.

    Args:
        name: The target's id.
        target: Its first file.
        draft: An id, `lookup` or `none`: only profiles of that draft. Empty = any.

    Returns:
        The profile, and a sentence about files that cannot be read (empty when all can).
    """
    found, problem = [], ""
    for file in _files():
        try:
            profile = _read(file)
        except UsageError as error:
            problem = f"{error.message} {error.why}".strip()
            continue
        if profile.is_of(name, target) and draft in ("", profile.draft_name):
            found.append(profile)
    if not found:
        return None, problem
    if len(found) > 1:
        here = this_machine()
        found = [one for one in found if one.machine == here] or found
    return max(found, key=lambda one: one.when), problem


def apply(profile: Profile, settings: Settings, draft: str) -> tuple[Settings, tuple[str, ...]]:
    """Settings with the profile's values where the person said nothing.

    Args:
        profile: Not stale.
        settings: With what the person set, in flags or in the settings file.
        draft: The draft that the person named (as `draft_name` has it), empty when none was. `DRAFT_SETTINGS` belong
            to the draft, so with another one they are left alone.

    Returns:
        The settings, and the names of the fields that come from the profile.

    Raises:
        UsageError: A value of the profile cannot be.
    """
    left = set(settings.model_fields_set) - {"draft"}
    if draft:
        left.add("draft")
        left |= set(DRAFT_SETTINGS) if draft != profile.draft_name else set()
    for together in (_PLACES, _BATCHES):  # one of them that is set may not go with the profile's other one
        left |= together if left & together else set()
    values = {key: value for key, value in profile.settings.items() if key not in left}
    try:
        made = Settings.model_validate(settings.model_dump(exclude_unset=True) | values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        reason = f"{name} = {first['input']!r} is not allowed; allowed: {OPTIONS[name].allowed}"
        raise _damaged(profile.file, reason) from None
    return made, tuple(values)


def _files() -> list[Path]:
    try:
        return sorted(paths.profiles_dir().glob("*.toml"))
    except OSError:
        return []


def _read(file: Path) -> Profile:
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8-sig"))
        machine, made = data["machine"], data["made_with"]
        settings = {key: value for key, value in data["settings"].items() if key in SETTINGS}
        return Profile(
            name=file.stem,
            when=str(data["when"]),
            machine=Machine(str(machine["cpu"]), int(machine["cores"]), tuple(map(str, machine["gpus"]))),
            target=_model(data["target"]),
            draft=_model(data["draft"]) if "draft" in data else None,
            settings=settings,
            versions={str(key): str(value) for key, value in made.items()},
            figures=dict(data.get("measured", {})),
        )
    except OSError as error:
        raise _damaged(file, error.strerror or str(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(file, f"{type(error).__name__}: {error}") from error


def _model(table: Mapping[str, Any]) -> ModelFile:
    return ModelFile(str(table["id"]), str(table["path"]), int(table["size"]), int(table["mtime_ns"]))


def _damaged(file: Path, reason: str) -> UsageError:
    return UsageError(
        f"The profile {file} cannot be used.", why=f"{printable(reason).rstrip('.')}.", hint="localspec tune"
    )


# ------------------------------------------------------------------------------ writing


def save(profile: Profile) -> Path:
    """Write a profile, whole or not at all; one of the same name is replaced.

    Raises:
        LocalspecError: It cannot be written.
    """
    file = profile.file
    scratch = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(_text(profile), encoding="utf-8")
        scratch.replace(file)
    except (OSError, UnicodeEncodeError) as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise LocalspecError(
            f"The profile {file} cannot be written.",
            why=f"{getattr(error, 'strerror', None) or error}.",
            hint=f"ls -ld {shell_word(str(file.parent))}",
        ) from error
    return file


def _text(profile: Profile) -> str:
    lines = [f"# {printable(line)}".rstrip() for remark in profile.remarks for line in remark.split("\n")]
    lines += ["", f"format = {FORMAT}", f"when = {_value(profile.when)}"]
    lines += _table("settings", profile.settings)
    lines += _table("measured", profile.figures)
    lines += _table("made_with", profile.versions)
    lines += _table("machine", {**asdict(profile.machine), "gpus": list(profile.machine.gpus)})
    lines += _table("target", asdict(profile.target))
    if profile.draft is not None:
        lines += _table("draft", asdict(profile.draft))
    return "\n".join(lines) + "\n"


def _table(name: str, values: Mapping[str, Any]) -> list[str]:
    return ["", f"[{name}]", *(f"{_key(key)} = {_value(value)}" for key, value in values.items())]


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key)


def _value(value: Any) -> str:
    """A value in TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6g}" if "." in f"{value:.6g}" or "e" in f"{value:.6g}" else f"{value:.1f}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(item) for item in value)}]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    escaped = re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\u{ord(found[0]):04x}", escaped)
    return f'"{escaped}"'


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:40] or "model"
