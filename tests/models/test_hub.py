"""Downloads from a hub on this machine: what arrives, is checked, and fits on the disk."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

import pytest
from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache

from localspec.errors import DownloadError, ModelFileError, UsageError
from localspec.models import hub, hubcache, transfer
from localspec.models.progress import Progress
from tests.hub_server import COMMIT, Fault, HubServer, _git_sha
from tests.models.hub_helpers import FILE, REPO, fetch, leave_partial, partial_of, ref, split_model

# -------------------------------------------------------------------- the plain way


def test_file_arrives_and_other_tools_find_it(served: HubServer, model_bytes: bytes) -> None:
    path, events = fetch()
    assert path.read_bytes() == model_bytes
    assert path.name == FILE
    assert try_to_load_from_cache(REPO, FILE) == str(path)
    assert Path(hf_hub_download(REPO, FILE, local_files_only=True)) == path
    assert path.resolve().name == hashlib.sha256(model_bytes).hexdigest()
    assert (events[-1].stage, events[-1].done, events[-1].total) == (
        "done",
        len(model_bytes),
        len(model_bytes),
    )
    assert [e.done for e in events] == sorted(e.done for e in events)
    assert not list(path.parents[2].rglob("*.incomplete"))


def test_a_token_file_that_cannot_be_read_stops_nothing(
    served: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "file" / "token"))
    assert fetch()[0].is_file()
    assert {request.authorization for request in served.requests} == {""}


def test_a_cache_of_nobody_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", "~nobody-at-all/hub")
    with pytest.raises(UsageError, match="no such user"):
        hubcache.root()


def test_cached_file_makes_no_request(served: HubServer) -> None:
    path, _ = fetch()
    served.requests.clear()
    served.stop_answering()
    assert fetch()[0] == path
    assert ref().path == path
    assert hub.plan_download([ref()]).missing == 0
    assert served.requests == []


def test_what_another_tool_downloaded_is_found(served: HubServer) -> None:
    path = hf_hub_download(REPO, FILE, endpoint=served.url)
    served.requests.clear()
    assert ref().path == Path(path)
    assert ref("OWNER/model-gguf:q4_k_m").path == Path(path)  # case-free
    assert served.requests == []


def test_offline_asks_nothing(served: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        fetch()
    assert served.requests == []


def test_listing_of_many_pages_stays_on_the_mirror(served: HubServer) -> None:
    for number in range(7):
        served.add(REPO, f"notes-{number}.txt", b"x", lfs=False)
    served.page_size = 3  # the next page is named with the hub's own address
    assert {file.path for file in hub.list_files(REPO)} == {FILE, *(f"notes-{n}.txt" for n in range(7))}


def test_renamed_repository(served: HubServer, model_bytes: bytes) -> None:
    served.add("owner/Old", "x", b"")
    served.repos["owner/Old"].renamed_to = REPO
    assert fetch("owner/Old:Q4_K_M")[0].read_bytes() == model_bytes


def test_what_is_no_model_is_said(served: HubServer) -> None:
    served.add("owner/Bad", "Bad-Q4_K_M.gguf", b"not a model at all" * 100)
    with pytest.raises(ModelFileError):
        fetch("owner/Bad")


def test_paths_that_leave_the_folder_are_ignored(served: HubServer, model_bytes: bytes) -> None:
    for path in ("../../evil.gguf", "/etc/evil.gguf", "a/../../evil.gguf", "..\\evil.gguf", "C:evil.gguf"):
        served.add("owner/Evil", path, model_bytes)
    with pytest.raises(DownloadError, match="no GGUF file"):
        fetch("owner/Evil")


# --------------------------------------------------------------------------- content


def test_wrong_byte_is_found_and_deleted(served: HubServer, model_bytes: bytes) -> None:
    served.faults.append(Fault("flip", len(model_bytes) - 1000))
    with pytest.raises(DownloadError, match="other content than stated") as caught:
        fetch()
    assert hashlib.sha256(model_bytes).hexdigest()[:12] in caught.value.why
    assert not partial_of(model_bytes).exists()
    assert ref().path is None
    assert fetch()[0].read_bytes() == model_bytes


def test_damaged_partial_costs_one_more_transfer(served: HubServer, model_bytes: bytes) -> None:
    leave_partial(model_bytes, 1_000_000).write_bytes(b"\0" * 1_000_000)
    assert fetch()[0].read_bytes() == model_bytes
    assert served.ranges() == ["bytes=1000000-", ""]


def test_wrong_byte_outside_of_lfs_is_found(served: HubServer, model_bytes: bytes) -> None:
    served.add("owner/Small", "Small-Q8_0.gguf", model_bytes, lfs=False)
    served.faults.append(Fault("flip", 2_000_000))
    with pytest.raises(DownloadError, match="other content"):
        fetch("owner/Small")
    assert fetch("owner/Small")[0].read_bytes() == model_bytes


def test_upload_between_listing_and_download(
    served: HubServer, model_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = hub.plan_download([ref()]).items[0]
    newer = model_bytes[:-4] + b"a longer end"
    served.add(REPO, FILE, newer)
    events: list[Progress] = []
    assert hub.fetch_item(planned, events.append).read_bytes() == newer
    assert events[-1].done == events[-1].total == len(newer)
    assert all(event.done <= event.total for event in events)


@pytest.mark.parametrize("etag", ["..", ".", "", "a/b", "../../evil"])
def test_blob_names_stay_in_their_folder(
    served: HubServer, monkeypatch: pytest.MonkeyPatch, etag: str
) -> None:
    served.etag = etag
    with pytest.raises(DownloadError, match="does not answer like a model hub"):
        fetch()


# ------------------------------------------------------------------------------ disk


def test_room_is_checked_for_all_models_before_any_byte(
    served: HubServer, model_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.add("owner/Draft", "Draft-Q8_0.gguf", model_bytes)
    need = 2 * len(model_bytes)
    monkeypatch.setattr(hubcache, "free_space", lambda folder: need - 1 + hub._MARGIN)
    plan = hub.plan_download([ref(), ref("owner/Draft")])
    assert plan.missing == need
    with pytest.raises(DownloadError, match="too little room") as caught:
        plan.require_space()
    assert "6 MB" in caught.value.why
    monkeypatch.setattr(hubcache, "free_space", lambda folder: need + hub._MARGIN)
    hub.plan_download([ref(), ref("owner/Draft")]).require_space()
    assert served.ranges() == []


def test_free_space_is_that_of_the_real_target(tmp_path: Path) -> None:
    import shutil

    assert abs(hubcache.free_space(tmp_path / "not" / "yet") - shutil.disk_usage(tmp_path).free) < 1 << 28


class _FullDisk:
    """A file on a disk that has room for so many bytes."""

    def __init__(self, file, room: int) -> None:
        self._file, self._room = file, room

    def write(self, data) -> int:
        data = data[: self._room]
        if not len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        self._room -= len(data)
        return self._file.write(data)

    def __getattr__(self, name: str):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *problem) -> None:
        self._file.close()


def test_full_disk_keeps_the_partial(
    served: HubServer, model_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = transfer._open
    monkeypatch.setattr(transfer, "_open", lambda path: _FullDisk(real(path), 1_500_000))
    with pytest.raises(DownloadError, match=r"disk is full: .* MB more") as caught:
        fetch()
    assert "kept" in caught.value.why
    assert partial_of(model_bytes).read_bytes() == model_bytes[:1_500_000]
    monkeypatch.setattr(transfer, "_open", real)
    served.requests.clear()
    assert fetch()[0].read_bytes() == model_bytes
    assert served.ranges() == ["bytes=1500000-"]


def test_cache_that_cannot_be_written(
    served: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(blocked / "hub"))
    with pytest.raises(DownloadError, match="cannot be used"):
        fetch()


# ----------------------------------------------------------------------- split models


def test_all_parts_of_one_quant(served: HubServer, tmp_path: Path) -> None:
    parts = split_model(tmp_path, 3)
    for folder in ("Q4_K_M", "Q8_0"):
        for number, data in enumerate(parts, 1):
            served.add(
                "owner/Split", f"{folder}/m-{folder}-{number:05d}-of-00003.gguf", data + folder.encode()
            )
    served.add("owner/Split", "mmproj-m-F16.gguf", b"x")
    served.faults.append(Fault("drop", len(parts[0]) // 2))
    path, events = fetch("owner/Split:q4_k_m")
    assert path.name == "m-Q4_K_M-00001-of-00003.gguf"
    assert sorted(file.name for file in path.parent.iterdir()) == [
        f"m-Q4_K_M-{n:05d}-of-00003.gguf" for n in (1, 2, 3)
    ]
    total = sum(len(data) + 6 for data in parts)
    assert {e.total for e in events if e.total} == {total}
    assert events[-1].done == total
    assert len({e.file for e in events}) == 1
    assert ref("owner/Split:q4_k_m").path == path
    (path.parent / "m-Q4_K_M-00002-of-00003.gguf").unlink()
    assert ref("owner/Split:q4_k_m").path is None  # not complete any more


def test_part_that_is_missing_on_the_hub(served: HubServer) -> None:
    served.add("owner/Half", "h-Q4_K_M-00001-of-00002.gguf", b"x")
    with pytest.raises(DownloadError, match="only 1 of the 2 parts"):
        fetch("owner/Half")


def test_all_parts_come_from_one_commit(served: HubServer, tmp_path: Path) -> None:
    for number, data in enumerate(split_model(tmp_path, 2), 1):
        served.add("owner/Two", f"m-Q4_0-{number:05d}-of-00002.gguf", data)
    fetch("owner/Two")
    asked = [r.path for r in served.requests if "/resolve/" in r.path]
    assert asked[0].startswith("/owner/Two/resolve/main/")
    assert all(path.startswith(f"/owner/Two/resolve/{COMMIT}/") for path in asked[1:])


def test_parts_are_all_of_the_newest_upload(served: HubServer, tmp_path: Path) -> None:
    """One part was downloaded before the publisher replaced both."""
    older, newer = split_model(tmp_path, 2), [part + b"new" for part in split_model(tmp_path, 2)]
    for number, data in enumerate(older, 1):
        served.add("owner/Two", f"m-Q4_0-{number:05d}-of-00002.gguf", data)
    served.faults.extend([Fault("end", 10**9), *[Fault("drop", 100)] * 20])  # the second part fails
    with pytest.raises(DownloadError):
        fetch("owner/Two")
    served.faults.clear()
    served.commit = "f" * 40
    for number, data in enumerate(newer, 1):
        served.add("owner/Two", f"m-Q4_0-{number:05d}-of-00002.gguf", data)
    path, _ = fetch("owner/Two")
    assert path.parent.name == "f" * 40
    assert [file.read_bytes() for file in sorted(path.parent.iterdir())] == newer


def test_half_a_file_of_an_earlier_upload_is_told_and_left(served: HubServer, model_bytes: bytes) -> None:
    served.add(REPO, "Other-Q8_0.gguf", model_bytes + b"other")
    served.add(REPO, "README.gguf", b"small", lfs=False)
    older = leave_partial(model_bytes[:-1] + b"?", 1000)
    goes_on = partial_of(model_bytes + b"other")
    goes_on.write_bytes(model_bytes[:500])
    hubcache.partial(REPO, _git_sha(b"small")).write_bytes(b"sm")
    assert hub.plan_download([ref()]).forgotten == (older,)
    fetch()
    assert older.stat().st_size == 1000
    served.add(
        "owner/Small", "Small-Q8_0.gguf", model_bytes, lfs=False
    )  # as a mirror without hashes lists it
    hubcache.blob("owner/Small", "x").parent.mkdir(parents=True)
    hubcache.partial("owner/Small", "a" * 64).write_bytes(b"half")
    assert hub.plan_download([ref("owner/Small")]).forgotten == ()


# ----------------------------------------------------------- damaged in the cache


@pytest.mark.parametrize(
    ("damage", "ranges"), [("cut", ["bytes=1000000-"]), ("zeros", ["bytes=1000000-", ""])]
)
def test_a_damaged_file_is_mended_by_another_pull(
    served: HubServer, model_bytes: bytes, damage: str, ranges: list[str]
) -> None:
    path, _ = fetch()
    blob = path.resolve()
    blob.write_bytes(model_bytes[:1_000_000] if damage == "cut" else b"\0" * 1_000_000)
    served.requests.clear()
    plan = hub.plan_download([ref()])
    assert plan.missing == len(model_bytes) - 1_000_000
    assert fetch()[0] == path
    assert path.read_bytes() == model_bytes
    assert path.resolve() == blob
    assert served.ranges() == ranges


def test_a_damaged_part_is_mended_where_links_cannot_be(
    served: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    parts = split_model(tmp_path, 2)
    for number, data in enumerate(parts, 1):
        served.add("owner/Two", f"m-Q4_0-{number:05d}-of-00002.gguf", data)
    path, _ = fetch("owner/Two")
    second = path.with_name("m-Q4_0-00002-of-00002.gguf")
    second.write_bytes(b"\0" * len(parts[1]))
    served.requests.clear()
    assert fetch("owner/Two")[0] == path
    assert second.read_bytes() == parts[1]
    assert served.ranges() == [""]  # the first part was right and is only read again


def test_a_damaged_file_offline(served: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = fetch()
    path.resolve().write_bytes(b"\0" * 100)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelFileError, match="a file of zeros"):
        fetch()


def test_a_blob_of_another_length_is_completed(served: HubServer, model_bytes: bytes) -> None:
    blob = hubcache.blob(REPO, hashlib.sha256(model_bytes).hexdigest())
    blob.parent.mkdir(parents=True)
    blob.write_bytes(model_bytes[:500_000])
    assert fetch()[0].read_bytes() == model_bytes
    assert served.ranges() == ["bytes=500000-"]


@pytest.mark.parametrize("place", ["lock", "blob", "snapshot"])
def test_whatever_the_cache_refuses_is_said(
    served: HubServer, model_bytes: bytes, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    folder = hubcache.repo_folder(REPO)
    etag = hashlib.sha256(model_bytes).hexdigest()
    in_the_way = {
        "lock": hubcache.lock_file(REPO, etag),
        "blob": hubcache.blob(REPO, etag),
        "snapshot": folder / "snapshots",
    }[place]
    if place == "snapshot":
        folder.mkdir(parents=True)
        in_the_way.write_text("a file in place of a folder")
    else:
        (in_the_way / "folder").mkdir(parents=True)
    with pytest.raises(DownloadError, match=r"cannot be used\. The system says"):
        fetch()
