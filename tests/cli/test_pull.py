"""`localspec pull` and `localspec models` as a person and a script see them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from localspec.cli import progress, pull
from localspec.models import listing
from localspec.models.catalog import load_catalog
from localspec.models.hub import DownloadPlan, PlannedItem
from localspec.models.progress import Progress
from tests.cli.program import environment, localspec
from tests.gguf_files import header_only
from tests.hub_server import Fault, HubServer

FILE = "Model-Q4_K_M.gguf"


@pytest.fixture(scope="module")
def model_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = header_only(tmp_path_factory.mktemp("pull") / "m.gguf", tensors={"token_embd.weight": (300, 2500)})
    return file.read_bytes()


@pytest.fixture
def online(hub_server: HubServer, model_bytes: bytes) -> dict[str, str]:
    hub_server.add("owner/Model-GGUF", FILE, model_bytes)
    return {"HF_ENDPOINT": hub_server.url, "HF_HUB_OFFLINE": "0"}


def cached(home: Path, repo: str, name: str) -> Path:
    found = list((home / "hf" / "hub" / f"models--{repo.replace('/', '--')}" / "snapshots").rglob(name))
    assert len(found) == 1
    return found[0]


# ------------------------------------------------------------------------------------ pull


def test_without_a_terminal(tmp_path: Path, online: dict[str, str], model_bytes: bytes) -> None:
    done = localspec(tmp_path, "pull", "owner/Model-GGUF", **online)
    path = cached(tmp_path, "owner/Model-GGUF", FILE)
    assert done.returncode == 0
    assert done.stdout == f"owner/Model-GGUF  {path}\n"
    assert path.read_bytes() == model_bytes
    lines = done.stderr.splitlines()
    assert lines[0].split() == ["owner/Model-GGUF", "3", "MB", "owner/Model-GGUF", "Q4_K_M"]
    assert re.fullmatch(rf"3 MB to download, .* free in {re.escape(str(tmp_path))}/hf/hub", lines[1])
    assert lines[-1] == f"{FILE}  100%  3 MB of 3 MB  done"
    assert 3 <= len(lines) < 26
    assert "\x1b" not in done.stderr


def test_a_second_time_says_where_it_is(
    tmp_path: Path, online: dict[str, str], hub_server: HubServer
) -> None:
    localspec(tmp_path, "pull", "owner/Model-GGUF", **online)
    hub_server.requests.clear()
    done = localspec(tmp_path, "pull", "owner/Model-GGUF", "--json", **online)
    row = json.loads(done.stdout)["models"][0]
    assert (row["id"], row["was_on_disk"], row["role"]) == ("owner/Model-GGUF", True, "target")
    assert Path(row["path"]).stat().st_size == row["size_bytes"]
    assert "on disk" in done.stderr
    assert hub_server.requests == []


def test_pair_in_one_command(
    tmp_path: Path, online: dict[str, str], hub_server: HubServer, model_bytes: bytes
) -> None:
    hub_server.add("Qwen/Qwen3-8B-GGUF", "qwen3-8b-q4_k_m.gguf", model_bytes)  # case does not matter
    hub_server.add("Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf", model_bytes[:-4] + b"wxyz")
    done = localspec(tmp_path, "pull", "qwen3-8b", "--draft", "0.6b", **online)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["qwen3-8b", "qwen3-0.6b"]
    assert "6 MB to download" in done.stderr
    assert "reported faster" in done.stderr
    assert done.stderr.splitlines()[-1] == "Next: localspec run qwen3-8b --draft qwen3-0.6b"


@pytest.mark.parametrize("draft", ["mtp", "lookup", "none"])
def test_a_draft_that_is_no_model_needs_no_download(
    tmp_path: Path, online: dict[str, str], hub_server: HubServer, model_bytes: bytes, draft: str
) -> None:
    hub_server.add("Qwen/Qwen3-8B-GGUF", "Qwen3-8B-Q4_K_M.gguf", model_bytes)
    done = localspec(tmp_path, "pull", "qwen3-8b", "--draft", draft, **online)
    assert (done.returncode, done.stdout.split()[0]) == (0, "qwen3-8b")
    assert done.stderr.splitlines()[-1] == f"Next: localspec run qwen3-8b --draft {draft}"


def test_target_alone_names_its_draft(
    tmp_path: Path, online: dict[str, str], hub_server: HubServer, model_bytes: bytes
) -> None:
    hub_server.add("Qwen/Qwen3-8B-GGUF", "Qwen3-8B-Q8_0.gguf", model_bytes)
    done = localspec(tmp_path, "pull", "qwen3-8b", "--quant", "q8_0", **online)
    assert done.stdout.startswith("qwen3-8b:Q8_0  ")
    assert "localspec pull qwen3-8b:Q8_0 --draft qwen3-0.6b" in done.stderr


def test_a_size_that_nobody_tells_is_a_question_mark(capsys: pytest.CaptureFixture[str]) -> None:
    ref = load_catalog().resolve("owner/Model-GGUF")
    item = listing.items([listing.RepoFile(FILE, 0)])[0]
    pull._describe(DownloadPlan((PlannedItem(ref, ref.repo, item, None, 0),), Path("cache"), 10**9))
    assert capsys.readouterr().err.split() == ["owner/Model-GGUF", "?", "owner/Model-GGUF", "Q4_K_M"]


def test_what_an_earlier_upload_left_is_told(tmp_path: Path, online: dict[str, str]) -> None:
    left = tmp_path / "hf/hub/models--owner--Model-GGUF/blobs" / f"{'a' * 64}.localspec.incomplete"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x" * 5000)
    done = localspec(tmp_path, "pull", "owner/Model-GGUF", **online)
    assert "5 kB are of a download of an earlier upload" in done.stderr
    assert f"  rm {left}\n" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no SIGINT to a child")
def test_ctrl_c_says_how_to_go_on(tmp_path: Path, online: dict[str, str], hub_server: HubServer) -> None:
    hub_server.faults.append(Fault("stall", 400_000))  # it cannot be done before the signal comes
    command = [sys.executable, "-m", "localspec", "pull", "owner/Model-GGUF"]
    options = {"env": environment(tmp_path, **online), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **options)
    blobs = tmp_path / "hf" / "hub" / "models--owner--Model-GGUF" / "blobs"
    deadline = time.monotonic() + 20
    while not [f for f in blobs.glob("*.incomplete") if f.stat().st_size > 300_000]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert out == b""
    assert b"Traceback" not in err
    assert b"Stopped. What has come is kept.\n  To go on: localspec pull owner/Model-GGUF" in err
    hub_server.requests.clear()
    assert localspec(tmp_path, "pull", "owner/Model-GGUF", **online).returncode == 0
    assert re.fullmatch(r"bytes=[1-9]\d+-", hub_server.ranges()[0])


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminals")
def test_bar_on_a_terminal(
    tmp_path: Path, online: dict[str, str], hub_server: HubServer, model_bytes: bytes
) -> None:
    import pexpect

    hub_server.add("owner/Odd", "[red]x-Q4_0.gguf", model_bytes)
    hub_server.pause = 0.02
    child = pexpect.spawn(
        sys.executable,
        ["-m", "localspec", "pull", "owner/Odd"],
        env=environment(tmp_path, TERM="xterm-256color", **online),
        dimensions=(24, 100),
        timeout=20,
    )
    child.expect_exact("[red]x-Q4_0.gguf ")
    child.expect(r"[\d.]+ [kM]B of 3 MB +[\d.]+ [kM]B/s +0:\d\d left")
    child.expect("3 MB of 3 MB  done")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nonsense",), 1, "There is no model called nonsense"),
        (("owner/Nothing",), 1, "has no model owner/Nothing"),
        (("owner/Model-GGUF:q9_9",), 1, "has no q9_9"),
        (("qwen3-8b", "qwen3-4b", "--draft", "0.6b"), 2, "--draft belongs to one target"),
        (("owner/Model-GGUF:q4_0", "--quant", "q8_0"), 2, "already says which file"),
        ((), 2, "Missing argument"),
    ],
)
def test_errors_are_sentences(
    tmp_path: Path, online: dict[str, str], arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = localspec(tmp_path, "pull", *arguments, **online)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_error_as_json(tmp_path: Path, online: dict[str, str]) -> None:
    done = localspec(tmp_path, "pull", "owner/Nothing", "--json", **online)
    assert json.loads(done.stdout)["error"]["kind"] == "DownloadError"
    assert done.returncode == 1


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_certificate_that_is_not_trusted(tmp_path: Path, model_bytes: bytes) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localspec test",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
        check=True,
        capture_output=True,
    )
    with HubServer((certificate, key)) as server:
        server.add("owner/Model-GGUF", FILE, model_bytes)
        settings = {"HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "0", "SSL_CERT_FILE": "", "SSL_CERT_DIR": ""}
        started = time.monotonic()
        done = localspec(tmp_path, "pull", "owner/Model-GGUF", **settings)
        assert time.monotonic() - started < 8  # no use in trying again
        assert done.returncode == 1
        assert f"certificate of {server.url.removeprefix('https://')} is not trusted" in done.stderr
        assert "export SSL_CERT_FILE=" in done.stderr
        done = localspec(
            tmp_path, "pull", "owner/Model-GGUF", **{**settings, "SSL_CERT_FILE": str(certificate)}
        )
        assert done.returncode == 0


# ------------------------------------------------------------------------------- the drawing


def lines_of(events: list[Progress], capsys: pytest.CaptureFixture[str]) -> list[str]:
    draw = progress._Lines()
    for event in events:
        draw(event)
    return capsys.readouterr().err.splitlines()


def test_a_line_for_five_percent_or_ten_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    quick = [Progress("m.gguf", n * 1_000_000, 1_000_000_000, 5e6, 99.0) for n in range(1001)]
    done = Progress("m.gguf", 1_000_000_000, 1_000_000_000, stage="done")
    lines = lines_of([*quick, done, done], capsys)
    assert len(lines) == 21
    assert lines[1] == "m.gguf    5%  50 MB of 1.0 GB  5 MB/s  1:40 left"
    assert lines[-1] == "m.gguf  100%  1.0 GB of 1.0 GB  done"
    slow = []
    draw = progress._Lines()
    for second in range(31):
        clock[0] = 100.0 + second
        draw(Progress("s.gguf", second, 1_000_000))
    slow = capsys.readouterr().err.splitlines()
    assert len(slow) == 4  # at 0, 10, 20 and 30 seconds


def test_nothing_is_left_at_the_end() -> None:
    assert progress._figures(Progress("m.gguf", 90, 100, 5.0, 2.0)) == "90 B of 100 B  5 B/s  0:03 left"
    assert progress._figures(Progress("m.gguf", 100, 100, 5.0, 0.0)) == "100 B of 100 B"


def test_sentences_are_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    retry = Progress("m.gguf", 1, 10, stage="retrying", note="It broke. Trying again in 1 s.")
    assert lines_of([retry, retry], capsys) == ["It broke. Trying again in 1 s."]


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0:01"), (59.5, "1:00"), (3599, "1:00:00"), (1e12, "100:00:00")]
)
def test_clock(seconds: float, shown: str) -> None:
    assert progress._clock(seconds) == shown


# ------------------------------------------------------------------------------------ models


def test_list_fits_and_marks_what_is_here(
    tmp_path: Path, online: dict[str, str], hub_server: HubServer, model_bytes: bytes
) -> None:
    hub_server.add("Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf", model_bytes)
    localspec(tmp_path, "pull", "qwen3-0.6b", **online)
    done = localspec(tmp_path, "models")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert max(map(len, lines[:-1])) <= 80  # the last one is a path
    marked = [line for line in lines if line.startswith("● ") and "GB" in line + "GB" and "qwen" in line]
    assert [line.split()[1] for line in marked] == ["qwen3-0.6b"]
    assert any(re.match(r"  qwen3\.8-27b +19\.0 GB  draft qwen3\.5-4b \(untested\)", line) for line in lines)
    assert any(re.match(r"  gpt-oss-20b .* no draft pays: --draft lookup", line) for line in lines)


def test_one_in_full(tmp_path: Path) -> None:
    done = localspec(tmp_path, "models", "gemma4-31b")
    assert "unsloth/gemma-4-31B-it-GGUF" in done.stdout
    assert "draft gemma4-e2b (default): faster" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("family", ["mistral-small", "qwen3.8"])
def test_a_family_in_full_fits_and_breaks_no_name(tmp_path: Path, family: str) -> None:
    done = localspec(tmp_path, "models", family)
    assert max(map(len, done.stdout.splitlines())) <= 80
    for source in (
        source for _, ref in load_catalog().refs() if ref.family == family for source in ref.sources
    ):
        assert source.repo in done.stdout


def test_list_as_json(tmp_path: Path) -> None:
    rows = json.loads(localspec(tmp_path, "models", "--json").stdout)["models"]
    by_id = {row["id"]: row for row in rows}
    assert len(by_id) == len(rows) > 70
    row = by_id["qwen3.8-27b"]
    assert row["sources"][0]["repo"] == "ggml-org/Qwen3.8-27B-GGUF"
    assert row["drafts"][0] == {"id": "qwen3.5-4b", "reported": None, "note": None}
    assert (row["thinking"], row["thinking_switch"], row["path"]) == ("on", "enable_thinking", None)


def test_unknown_entry(tmp_path: Path) -> None:
    done = localspec(tmp_path, "models", "qwen3.8-72b")
    assert (done.returncode, done.stdout) == (1, "")
    assert "qwen3.8-27b" in done.stderr


def test_broken_own_catalogue_is_said_below_ours(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "models.toml").write_text("[models.x]\ncolour = 1\n")
    done = localspec(tmp_path, "models")
    assert "qwen3.8-27b" in done.stdout
    assert done.returncode == 1
    assert "models.toml" in done.stderr
