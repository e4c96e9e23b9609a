"""Files that are no GGUF model: each kind gets its own sentence."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from localspec.errors import ModelFileError
from localspec.models.gguf_parse import MAGIC
from localspec.models.listing import quant_word
from localspec.models.text import printable, shell_word, shown

_OLD_GGML = {b"tjgg", b"lmgg", b"fmgg", b"algg", b"ggml", b"ggjt", b"ggmf", b"ggla"}
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_PIECE = re.compile(
    r"^(?P<stem>.+?)\.?(?P<mark>part)-?(?P<no>\d+)-?of-?(?P<count>\d+)(?:\.gguf)?$", re.IGNORECASE
)
_SPLIT_PIECE = re.compile(r"^(?P<stem>.+)-split-(?P<no>[a-z])$", re.IGNORECASE)
_HUB_FILE = re.compile(r"models--(?P<owner>[^/\\]+?)--(?P<repo>[^/\\]+)[/\\]")


def check_regular(path: Path) -> None:
    """See that the path is a file which can be opened, without opening a device or a pipe.

    Raises:
        ModelFileError: Nothing there, a folder, a device, no permission, a name that llama.cpp cannot take.
    """
    name = shown(path)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise ModelFileError(
                f"{name} is a link to a file that is gone.",
                why=f"It points to {printable(os.fspath(path.readlink()))}.",
                hint=pull_hint(path),
            ) from None
        raise ModelFileError(f"{name} does not exist.", hint="localspec models") from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if stat.S_ISDIR(mode):
        inside = sorted(found.name for found in path.glob("*.gguf"))[:1] if os.access(path, os.R_OK) else []
        raise ModelFileError(
            f"{name} is a folder, not a model file.",
            why=f"It holds {printable(inside[0])}: name that file." if inside else "It holds no .gguf file.",
            hint="localspec models",
        )
    if not stat.S_ISREG(mode):
        raise ModelFileError(f"{name} is a device or a pipe, not a model file.", hint="localspec models")
    try:
        os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError:
        target = shell_word(path.with_name("model.gguf")) if path.name != "model.gguf" else "model.gguf"
        raise ModelFileError(
            f"The name {name} is not valid UTF-8, and llama.cpp can open no such file.",
            why="Rename the file or the folder that it is in.",
            hint=f"mv {shell_word(path)} {target}",
        ) from None


def _unreadable(path: Path, error: Exception) -> ModelFileError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    hint = f"ls -l {shell_word(path)}" if isinstance(error, PermissionError) else "localspec models"
    return ModelFileError(f"{shown(path)} cannot be read.", why=f"{printable(reason)}.", hint=hint)


def check_magic(path: Path) -> None:
    """Look at the first bytes of a regular file.

    Raises:
        ModelFileError: They are not those of a GGUF file; the message says what the file is instead.
    """
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        raise _unreadable(path, error) from None
    piece = _raw_piece(path)
    if piece is not None:
        raise piece
    if head[:4] == MAGIC:
        return
    size = path.stat().st_size
    if size == 0:
        raise ModelFileError(
            f"{shown(path)} is empty.", why="The download did not begin.", hint=pull_hint(path)
        )
    if len(head) < 4 and MAGIC.startswith(head):
        raise ModelFileError(
            f"{shown(path)} has {size} bytes only.", why="The download is incomplete.", hint=pull_hint(path)
        )
    what, why = _foreign(head, path)
    raise ModelFileError(f"{shown(path)} is {what}, not a GGUF model.", why=why, hint=pull_hint(path))


def _foreign(head: bytes, path: Path) -> tuple[str, str]:
    """What the first bytes say the file is, and what to do about it."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        return "a web page", "The page about the file was saved in place of the file itself."
    if head.startswith(b"version https://git-lfs.github.com/spec"):
        match = re.search(rb"size (\d+)", head)
        real = f" The real file has {int(match[1]):,} bytes." if match else ""
        return "a git-LFS pointer", f"The repository was cloned without its large files.{real}"
    if head[:4] == b"GGUF"[::-1]:
        return "a big-endian GGUF", "Get the usual (little-endian) file."
    if head[:4] in _OLD_GGML or head[:4][::-1] in _OLD_GGML:
        return "an old GGML file from before GGUF", "No llama.cpp of today reads it: get a GGUF of the model."
    if head[:4] == b"PK\x03\x04":
        return "a zip archive (perhaps a PyTorch checkpoint)", "Unpack it, or get a GGUF of the model."
    if len(head) > 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 30:
        return (
            "a safetensors file",
            "Get a GGUF of the model, or convert it with llama.cpp's convert_hf_to_gguf.py.",
        )
    if head.startswith(_PICKLES):
        return "a PyTorch or pickle file", "Get a GGUF of the model."
    if head[:2] == b"\x1f\x8b" or head[:6] == b"\xfd7zXZ\x00" or head[:4] == b"\x28\xb5\x2f\xfd":
        return "a compressed archive", "Unpack it first."
    if start.startswith((b"{", b"[")):
        return "a JSON text", "An error message of a server may have been saved in place of the file."
    if not any(head):
        return "a file of zeros", "The download was reserved on the disk but never written."
    if _is_text(head):
        return "a text file", "It may be a message of a server, saved in place of the file."
    shards = re.search(r"-\d{5}-of-\d{5}\.gguf$", path.name)
    return (
        "a file of an unknown kind",
        "The download is damaged." if shards else "It is damaged or no model at all.",
    )


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:
            return False
        text = head[: error.start].decode("utf-8")
    return all(char.isprintable() or char in "\r\n\t\f" for char in text)


def _raw_piece(path: Path) -> ModelFileError | None:
    """Advice for `x.gguf.part1of2` and `x.gguf-split-a`: one file cut into pieces, joined with `cat`."""
    match = _PIECE.match(path.name)
    if match:
        count = int(match["count"])
        if not 1 <= count <= 100:
            return None
        start, end = match.span("no")
        digits = len(match["no"])
        names = [f"{path.name[:start]}{i:0{digits}d}{path.name[end:]}" for i in range(1, count + 1)]
        number = f"{int(match['no'])} of {count}"
    else:
        match = _SPLIT_PIECE.match(path.name)
        if match is None:
            return None
        names = sorted(
            found.name for found in path.parent.glob("*") if _same_split(found.name, match["stem"])
        )
        number = match["no"]
    stem = match["stem"].rstrip("-._")
    joined = stem if stem.endswith(".gguf") else f"{stem}.gguf"
    missing = [name for name in names if not path.with_name(name).exists()]
    words = " ".join(shell_word(path.with_name(name)) for name in names)
    return ModelFileError(
        f"{shown(path)} is piece {number} of one file that was cut to fit an upload limit.",
        why=f"Missing beside it: {', '.join(printable(name) for name in missing)}."
        if missing
        else "Join the pieces into one file first.",
        hint=f"cat {words} > {shell_word(path.with_name(joined))}",
    )


def _same_split(name: str, stem: str) -> bool:
    match = _SPLIT_PIECE.match(name)
    return match is not None and match["stem"] == stem


def pull_hint(path: Path) -> str:
    """The command that downloads the file again, as exactly as its path tells."""
    match = next(iter(reversed(list(_HUB_FILE.finditer(os.fspath(path))))), None)
    if match is None or not re.fullmatch(r"[\w.-]+", match["owner"] + match["repo"], re.ASCII):
        return "localspec pull --help"
    quant = quant_word(path.name)
    return f"localspec pull {match['owner']}/{match['repo']}" + (f":{quant}" if quant else "")
