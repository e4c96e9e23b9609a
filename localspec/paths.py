"""Every path that localspec reads or writes. `LOCALSPEC_HOME` puts them all under one folder."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from localspec.errors import UsageError

_APP = "localspec"


def _base(kind: str) -> Path:
    home = os.environ.get("LOCALSPEC_HOME")
    if home:
        try:
            return Path(home).expanduser().absolute() / kind
        except RuntimeError:
            raise UsageError(
                f"LOCALSPEC_HOME is {home}, and there is no such user.",
                why="A path that begins with ~NAME means the home of NAME.",
                hint="unset LOCALSPEC_HOME",
            ) from None
    found: dict[str, str] = {
        "config": platformdirs.user_config_dir(_APP, appauthor=False),
        "data": platformdirs.user_data_dir(_APP, appauthor=False),
        "state": platformdirs.user_state_dir(_APP, appauthor=False),
        "cache": platformdirs.user_cache_dir(_APP, appauthor=False),
    }
    return Path(found[kind])


def config_dir() -> Path:
    """What the person edits: `settings.toml`, `models.toml`."""
    return _base("config")


def settings_file() -> Path:
    """The person's settings."""
    return config_dir() / "settings.toml"


def user_models_file() -> Path:
    """The person's own catalogue, added to ours."""
    return config_dir() / "models.toml"


def models_dir() -> Path:
    """Models that do not come from the hub's cache (the demo pair)."""
    return _base("data") / "models"


def conversations_dir() -> Path:
    """Stored conversations, one JSON Lines file each."""
    return _base("data") / "conversations"


def profiles_dir() -> Path:
    """Measured settings, one TOML file a machine, target and draft."""
    return _base("data") / "profiles"


def state_file() -> Path:
    """What `localspec run` remembers from the last time (the last pair)."""
    return _base("state") / "state.json"


def log_dir() -> Path:
    """Logs of the engine's process and of the interface."""
    return _base("state") / "logs"


def cache_dir() -> Path:
    """What can be made again: vocabulary digests, half-made files."""
    return _base("cache")


def catalog_file() -> Path:
    """Our `models.toml`: beside the package in a checkout, inside it in a wheel."""
    inside = Path(__file__).with_name("models.toml")
    return inside if inside.is_file() else Path(__file__).parent.parent / "models.toml"
