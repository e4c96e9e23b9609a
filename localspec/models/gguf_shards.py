"""The files of one model: whole, complete and in order."""

from __future__ import annotations

import re
from pathlib import Path

from localspec.errors import ModelFileError
from localspec.models.gguf_foreign import check_magic, check_regular, pull_hint
from localspec.models.gguf_layout import integer
from localspec.models.gguf_parse import MAGIC, RawHeader, parse
from localspec.models.text import printable, shell_word, shown

_SHARD = re.compile(r"^(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})(?P<end>\.gguf)$", re.IGNORECASE)


def first_shard(path: Path) -> Path:
    """Shard 1 of the model that `path` belongs to, or `path` itself.

    Raises:
        ModelFileError: Shards are missing; the message lists them.
    """
    match = _SHARD.match(path.name)
    if match is None:
        return path
    count = int(match["count"])
    if not 1 <= count <= 999:
        return path
    names = [f"{match['stem']}-{i:05d}-of-{match['count']}{match['end']}" for i in range(1, count + 1)]
    missing = [name for name in names if not path.with_name(name).exists()]
    if missing:
        listed = ", ".join(printable(name) for name in missing[:8]) + (", ..." if len(missing) > 8 else "")
        raise ModelFileError(
            f"{len(missing)} of the {count} files of {shown(path.with_name(match['stem']))} are missing.",
            why=f"Missing: {listed}.",
            hint=pull_hint(path),
        )
    return path.with_name(names[0])


def _read_one(path: Path) -> RawHeader:
    check_regular(path)
    check_magic(path)
    try:
        raw = parse(path)
    except OSError as error:
        raise ModelFileError(
            f"{shown(path)} cannot be read.",
            why=f"{printable(str(error))}.",
            hint=f"ls -l {shell_word(path)}",
        ) from error
    except ModelFileError as error:
        if not error.hint:
            error.hint = pull_hint(path)
        raise
    if raw.expected_bytes > raw.size_bytes:
        # Rounded down, so that a file which lacks one byte is never called whole.
        percent = 100 * raw.size_bytes // raw.expected_bytes
        raise ModelFileError(
            f"{shown(path)} has {raw.size_bytes:,} of {raw.expected_bytes:,} bytes ({percent} %).",
            why="The download is incomplete.",
            hint=pull_hint(path),
        )
    return raw


def read_shards(path: Path) -> list[RawHeader]:
    """Read the headers of all files of a model and see that they are whole and belong together.

    Args:
        path: The only file, or shard 1.

    Returns:
        One header a file, in order.

    Raises:
        ModelFileError: A file is missing, cut off, damaged, misnamed or of another model.
    """
    raw = _read_one(path)
    count = integer(raw.metadata, "split.count")
    match = _SHARD.match(path.name)
    if count <= 1:
        return [raw]
    number = integer(raw.metadata, "split.no") + 1
    if match is None or int(match["count"]) != count or int(match["no"]) != number:
        raise _misnamed(path, raw, number, count)
    raws = [raw]
    for i in range(2, count + 1):
        shard = _read_one(path.with_name(f"{match['stem']}-{i:05d}-of-{match['count']}{match['end']}"))
        if (
            integer(shard.metadata, "split.no", -1) != i - 1
            or integer(shard.metadata, "split.count") != count
        ):
            raise ModelFileError(
                f"{shown(shard.path)} is not shard {i} of {count} of this model.",
                why="Files of different models or downloads are mixed up.",
                hint=pull_hint(path),
            )
        raws.append(shard)
    names = [tensor.name for each in raws for tensor in each.tensors]
    found, n_tensors = len(set(names)), integer(raw.metadata, "split.tensors.count") or len(names)
    if not found == len(names) == n_tensors:
        raise ModelFileError(
            f"The files of {shown(path)} hold {found} of {n_tensors} tensors.",
            why="Files of different models or downloads are mixed up.",
            hint=pull_hint(path),
        )
    return raws


def _misnamed(path: Path, raw: RawHeader, number: int, count: int) -> ModelFileError:
    """A shard under a name that llama.cpp does not follow, or shards joined by `cat`."""
    stem = re.sub(r"\.gguf$", "", path.name, flags=re.IGNORECASE)
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", stem)
    if _another_follows(path, raw):
        merged = path.with_name(f"{stem}-00001-of-{count:05d}.gguf")
        return ModelFileError(
            f"{shown(path)} is several shards of a GGUF joined end to end, which nothing can read.",
            why=f"Get the {count} shards again and leave them apart, or join them with llama-gguf-split.",
            hint=f"llama-gguf-split --merge {shell_word(merged)} {shell_word(path)}",
        )
    right = path.with_name(f"{stem}-{number:05d}-of-{count:05d}.gguf")
    return ModelFileError(
        f"{shown(path)} is shard {number} of {count} under a name that does not say so.",
        why=f"All {count} must be named like {printable(right.name)} and lie in one folder.",
        hint=f"mv {shell_word(path)} {shell_word(right)}",
    )


def _another_follows(path: Path, raw: RawHeader) -> bool:
    """A second GGUF begins where this one ends."""
    end = raw.expected_bytes or raw.data_start
    padded = -(-end // raw.alignment) * raw.alignment
    with path.open("rb") as file:
        for start in {end, padded}:
            file.seek(start)
            if file.read(4) == MAGIC:
                return True
    return False
