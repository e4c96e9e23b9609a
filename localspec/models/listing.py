"""Which files of a repository are the model that was asked for.

Publishers put many files side by side: quants, split quants, projectors, prediction heads, importance matrices. A
quant word is matched whole and without case, never by part: a name that does not fit is an error with the
list of what there is, and no bigger file is ever taken in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from localspec.errors import DownloadError
from localspec.models.text import printable, shell_word

_SHARD = re.compile(r"^(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})$", re.IGNORECASE)
# From the first quant token at a word boundary to the end: `UD-Q4_K_M`, `q8_0`, `MXFP4`, `Q4_K_M-imat`.
_QUANT = re.compile(
    r"(?:^|[-_. ])(?P<quant>(?:(?:UD|I1)[-_.])?"
    r"(?:I?Q\d|TQ\d|MXFP\d|NVFP\d|BF16|FP?16|FP?32|FP8)(?:[-_.].*)?)$",
    re.IGNORECASE,
)
_SIDECAR = re.compile(
    r"^(?:mtp-|dflash-|eagle\d-|dspark-|imatrix|ggml-vocab)|mmproj|-mtp(?:-|$)|[-_.]imatrix|"
    r"(?:^|[-_.])(?:lora|adapter)(?:[-_.]|$)",
    re.IGNORECASE,
)
_WEIGHTED = "i1_"
"""In front of a quant word: made with an importance matrix, of the same type and size."""
_FAVOURITES = ("q4_k_m", "ud_q4_k_m", f"{_WEIGHTED}q4_k_m")


@dataclass(frozen=True, slots=True)
class RepoFile:
    """One file of a repository."""

    path: str
    """In the repository."""
    size: int
    """Bytes."""
    sha256: str = ""
    """Where the hub states one."""
    oid: str = ""
    """git's name for its content."""

    @property
    def etag(self) -> str:
        """What its blob is called in the hub's cache."""
        return self.sha256 or self.oid


@dataclass(frozen=True, slots=True)
class Item:
    """One model: a file, or all shards of a split one in order."""

    name: str
    """Path without shard number and `.gguf`."""
    quant: str
    """The quant word as written, or empty."""
    files: tuple[RepoFile, ...]
    shards: int
    """How many files there should be."""
    sidecar: bool

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def complete(self) -> bool:
        """No shard is missing."""
        return len(self.files) == self.shards


def quant_word(path: str) -> str:
    """The quant word of a file's name (`UD-Q4_K_M`), or of the folder it lies in, or empty."""
    file = PurePosixPath(path.replace("\\", "/"))
    stem = _stem(file.name)
    shard = _SHARD.match(stem)
    found = _QUANT.search(shard["stem"] if shard else stem)
    if found:
        return found["quant"]
    folder = _QUANT.fullmatch(file.parent.name)
    return folder["quant"] if folder else ""


def is_sidecar(path: str) -> bool:
    """Whether a GGUF file goes beside a model: projector, prediction head, imatrix, adapter, vocabulary."""
    parts = PurePosixPath(path)
    return bool(_SIDECAR.search(_stem(parts.name))) or any(part.lower() == "mtp" for part in parts.parts[:-1])


def items(files: Iterable[RepoFile]) -> list[Item]:
    """The models of a listing: GGUF files with the shards of each split one put together, sorted by size."""
    groups: dict[tuple[str, int], list[tuple[int, RepoFile]]] = {}
    for file in files:
        if not file.path.lower().endswith(".gguf"):
            continue
        stem = _stem(file.path)
        shard = _SHARD.match(stem)
        key = (shard["stem"], int(shard["count"])) if shard else (stem, 0)
        groups.setdefault(key, []).append((int(shard["index"]) if shard else 1, file))
    found = [
        Item(
            name=stem,
            quant=quant_word(members[0][1].path),
            files=tuple(file for _, file in sorted(members, key=lambda member: member[0])),
            shards=count or 1,
            sidecar=is_sidecar(stem + ".gguf"),
        )
        for (stem, count), members in groups.items()
    ]
    return sorted(found, key=lambda item: (item.size, item.name))


def choose(files: Iterable[RepoFile], *, repo: str, quant: str = "", candidates: Sequence[str] = ()) -> Item:
    """The one model that is meant.

    Args:
        files: The whole listing of the repository.
        repo: `owner/name`, for messages.
        quant: A quant word (`q4_k_m`), or the path or name of a file, or empty.
        candidates: File names to look for first, the likeliest first. Case does not matter.

    Returns:
        A complete item.

    Raises:
        DownloadError: Nothing fits, several fit, or shards are missing; lists what there is, with sizes.
    """
    everything = items(files)
    quant = _SHARD.sub(r"\g<stem>", quant)  # as it is copied from a part's name
    for name in (*candidates, *([quant] if quant.lower().endswith(".gguf") else [])):
        named = [item for item in everything if _is_called(item, name)]
        if len(named) == 1:
            return _whole(named[0], repo)
    models = [item for item in everything if not item.sidecar]
    if not models:
        raise _nothing(repo, everything)
    if quant:
        fits = (
            [item for item in models if _fold(item.quant) == _fold(quant)]
            or [item for item in models if _fold(item.quant) == f"{_WEIGHTED}{_fold(quant)}"]
            or [item for item in models if _is_called(item, quant)]
            or _by_rest(models, quant)
        )
    else:
        fits = _unasked(models)
    fits = _prefer_single(fits)
    if len(fits) == 1:
        return _whole(fits[0], repo)
    raise _no_match(repo, quant, models) if not fits else _ambiguous(repo, quant, fits)


def _stem(name: str) -> str:
    return name[:-5] if name.lower().endswith(".gguf") else name


def _fold(word: str) -> str:
    return re.sub(r"[-_. ]", "_", word.lower())


def _is_called(item: Item, name: str) -> bool:
    """The name is that of the model or of one of its files, with or without its folder and `.gguf`."""
    wanted = _stem(name.lower())
    called = (item.name, *(_stem(file.path) for file in item.files))
    return any(wanted in (each.lower(), PurePosixPath(each.lower()).name) for each in called)


def _by_rest(models: list[Item], quant: str) -> list[Item]:
    """Names without a quant token (`M-Compact`, `M-I-Compact`): compare what follows the shared start."""
    models = [item for item in models if not item.quant]
    words = [_fold(PurePosixPath(item.name).name).split("_") for item in models]
    shared = 0
    while words and all(len(w) > shared + 1 for w in words) and len({w[shared] for w in words}) == 1:
        shared += 1
    wanted = _fold(quant).split("_")
    return [item for item, w in zip(models, words, strict=True) if w[shared:] == wanted]


def _unasked(models: list[Item]) -> list[Item]:
    if len(models) == 1:
        return models
    for favourite in _FAVOURITES:
        fits = [item for item in models if _fold(item.quant) == favourite]
        if fits:
            return fits
    return models


def _prefer_single(fits: list[Item]) -> list[Item]:
    """Of one model offered whole and split, the whole file."""
    names = {PurePosixPath(item.name).name.lower() for item in fits}
    single = [item for item in fits if item.shards == 1]
    return single if len(names) == 1 and len(single) == 1 else fits


def _whole(item: Item, repo: str) -> Item:
    if item.complete:
        return item
    raise DownloadError(
        f"{repo} holds only {len(item.files)} of the {item.shards} parts of {printable(item.name)}.",
        why="The upload is not complete, or was changed.",
        hint="localspec models",
    )


def sizes(listed: Sequence[Item], limit: int = 12) -> str:
    """A list of models with their sizes for a message."""
    parts = [
        f"{printable(item.quant or PurePosixPath(item.name).name)} ({gigabytes(item.size)})"
        for item in listed
    ]
    return ", ".join(parts[:limit]) + (f" and {len(parts) - limit} more" if len(parts) > limit else "")


def gigabytes(size: float) -> str:
    """Bytes as people read them, decimal: `16.5 GB`, `93 MB`, `12 kB`."""
    for unit, scale, digits in (("GB", 1e9, 1), ("MB", 1e6, 0), ("kB", 1e3, 0)):
        if size >= scale:
            return f"{size / scale:.{digits}f} {unit}"
    return f"{size:.0f} B"


def _nothing(repo: str, everything: list[Item]) -> DownloadError:
    if not everything:
        return DownloadError(
            f"{repo} holds no GGUF file.",
            why="localspec runs GGUF models; other formats have to be converted first.",
            hint="localspec models",
        )
    return DownloadError(
        f"{repo} holds no model, only files that go beside one: {sizes(everything)}.",
        why="Projectors, prediction heads and the like cannot be run by themselves.",
        hint=f"localspec pull {shell_word(repo + ':' + everything[0].files[0].path)}",
    )


def _no_match(repo: str, quant: str, models: list[Item]) -> DownloadError:
    wanted = _fold(quant)
    near = sorted(models, key=lambda item: (wanted not in _fold(item.quant), item.size))[0]
    return DownloadError(
        f"{repo} has no {printable(quant)}.",
        why=f"It has: {sizes(models)}.",
        hint=f"localspec pull {_command_name(repo, near)}",
    )


def _ambiguous(repo: str, quant: str, fits: list[Item]) -> DownloadError:
    names = ", ".join(f"{printable(item.files[0].path)} ({gigabytes(item.size)})" for item in fits[:12])
    return DownloadError(
        f"{repo} has {len(fits)} models{f' that are {printable(quant)}' if quant else ''}: which one?",
        why=f"It has: {names if quant else sizes(fits)}.",
        hint=f"localspec pull {_command_name(repo, fits[0], exact=bool(quant))}",
    )


def _command_name(repo: str, item: Item, *, exact: bool = False) -> str:
    word = item.files[0].path if exact or not item.quant else item.quant
    return shell_word(f"{repo}:{word}")
