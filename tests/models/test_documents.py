"""Text files for lookup: what can be read, and words for what cannot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from localspec.errors import UsageError
from localspec.models import documents
from localspec.models.documents import read_documents


def refused(*files: Path) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read_documents(files)
    assert caught.value.hint
    return caught.value


def test_texts_are_read_with_and_without_a_mark(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def é():\n    pass\n", encoding="utf-8")
    (tmp_path / "b.md").write_text("# 한\n", encoding="utf-8-sig")
    (tmp_path / "empty").touch()
    files = [tmp_path / name for name in ("a.py", "b.md", "empty")]
    assert read_documents(files) == list(zip(files, ["def é():\n    pass\n", "# 한\n", ""], strict=True))


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path / "none").message == f"There is no file {tmp_path / 'none'}."
    assert refused(tmp_path).message == f"{tmp_path} is a folder."
    binary = tmp_path / "program"
    binary.write_bytes(b"\x7fELF\x00\x01\x02")
    assert refused(binary).why == "It holds bytes of 0, as programs and pictures do."
    latin = tmp_path / "latin"
    latin.write_bytes("abc é".encode("latin-1"))
    assert refused(latin).message == f"{latin} is not text in UTF-8."
    assert refused(latin).why == "The byte at 4 does not belong there."
    assert "\x1b" not in str(refused(tmp_path / "\x1b[31m"))
    assert refused(Path("a\0b")).message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX only")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe").message.endswith("is no ordinary file.")


def test_the_limit_counts_all_files_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MOST_BYTES", 1 << 20)
    half, rest = tmp_path / "half", tmp_path / "rest"
    half.write_bytes(b"a" * (1 << 19))
    rest.write_bytes(b"b" * (1 << 19))
    assert len(read_documents([half, rest])) == 2
    rest.write_bytes(b"b" * ((1 << 19) + 1))
    error = refused(half, rest)
    assert (error.message, error.why) == (
        f"{rest} is too large for --lookup.",
        "All files together may have 1 MiB.",
    )
