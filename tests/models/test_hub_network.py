"""Downloads over a bad network, through mirrors, and from who does not let us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants, try_to_load_from_cache

from localspec.errors import DownloadError, LocalspecError
from localspec.models import hub, transfer
from localspec.models.catalog import load_catalog
from localspec.models.neterrors import explain_client
from localspec.models.progress import Progress
from tests.hub_server import Fault, HubServer
from tests.models.hub_helpers import FILE, REPO, fetch, leave_partial, partial_of, ref, split_model

ROOT = Path(__file__).parents[2]


# ------------------------------------------------------------------ resume and retries


def test_dropped_link_goes_on_from_where_it_was(served: HubServer, model_bytes: bytes) -> None:
    at = int(len(model_bytes) * 0.6)
    served.faults.append(Fault("drop", at))
    path, events = fetch()
    assert path.read_bytes() == model_bytes
    first, second = served.ranges()
    assert first == ""
    begin = int(second.removeprefix("bytes=").removesuffix("-"))
    assert 0 < begin <= at
    assert any(e.stage == "retrying" and "127.0.0.1" in e.note for e in events)


def test_flaky_link_works_in_the_end(served: HubServer, model_bytes: bytes) -> None:
    size = len(model_bytes)
    served.faults.extend(Fault("drop" if n % 2 else "end", size * n // 6) for n in range(1, 6))
    served.faults.extend(
        [Fault("status", status=500), Fault("status", status=429, headers={"Retry-After": "0"})]
    )
    assert fetch()[0].read_bytes() == model_bytes
    assert len(served.ranges()) >= 7


def test_silent_link_counts_as_broken(served: HubServer, model_bytes: bytes) -> None:
    served.faults.append(Fault("stall", len(model_bytes) // 2))
    started = time.monotonic()
    assert fetch()[0].read_bytes() == model_bytes
    assert time.monotonic() - started < 5
    assert served.ranges()[1].startswith("bytes=")


def test_gives_up_and_keeps_what_came(served: HubServer, model_bytes: bytes) -> None:
    served.faults.extend([Fault("drop", 1_000_000)] * 20)
    with pytest.raises(DownloadError, match=r"broke|ended"):
        fetch()
    assert 0 < partial_of(model_bytes).stat().st_size <= 1_000_000
    served.faults.clear()
    served.requests.clear()
    kept = partial_of(model_bytes).stat().st_size
    assert fetch()[0].read_bytes() == model_bytes
    assert served.ranges() == [f"bytes={kept}-"]


def test_refusal_to_resume_starts_over(served: HubServer, model_bytes: bytes) -> None:
    leave_partial(model_bytes, 1_000_000)
    served.faults.append(Fault("status", status=416))
    assert fetch()[0].read_bytes() == model_bytes
    assert served.ranges() == ["bytes=1000000-", ""]


def test_ignored_range_starts_over(served: HubServer, model_bytes: bytes) -> None:
    leave_partial(model_bytes, 1_000_000)
    served.faults.append(Fault("whole"))
    assert fetch()[0].read_bytes() == model_bytes
    assert served.ranges() == ["bytes=1000000-"]


def test_partial_that_is_too_long_starts_over(served: HubServer, model_bytes: bytes) -> None:
    leave_partial(model_bytes, len(model_bytes)).write_bytes(model_bytes + b"more")
    assert fetch()[0].read_bytes() == model_bytes


def test_partial_that_is_whole_needs_no_more_bytes(served: HubServer, model_bytes: bytes) -> None:
    leave_partial(model_bytes, len(model_bytes))
    assert fetch()[0].read_bytes() == model_bytes
    assert served.ranges() == []


def test_very_long_files_are_asked_for_in_spans(
    served: HubServer, model_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "SPAN", 1_250_000)
    path, events = fetch()
    assert path.read_bytes() == model_bytes
    assert served.ranges() == ["bytes=0-1249999", "bytes=1250000-2499999", "bytes=2500000-"]
    assert not any(e.stage == "retrying" for e in events)


def test_stopping_keeps_the_partial(served: HubServer, model_bytes: bytes) -> None:
    def stop(event: Progress) -> None:
        if event.done > 1_000_000:
            raise KeyboardInterrupt

    served.pause = 0.02
    with pytest.raises(KeyboardInterrupt):
        hub.fetch(ref(), stop)
    kept = partial_of(model_bytes).stat().st_size
    assert kept > 1_000_000
    assert hub.plan_download([ref()]).missing == len(model_bytes) - kept
    served.pause = 0
    served.requests.clear()
    assert fetch()[0].read_bytes() == model_bytes
    assert served.ranges() == [f"bytes={kept}-"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_killed_process_is_continued_by_the_next(
    served: HubServer, model_bytes: bytes, tmp_path: Path
) -> None:
    served.pause = 0.02
    environment = {
        **os.environ,
        "HF_ENDPOINT": served.url,
        "HF_HUB_CACHE": constants.HF_HUB_CACHE,
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "localspec", "pull", REPO]
    first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    partial = partial_of(model_bytes)
    deadline = time.monotonic() + 20
    while not (partial.exists() and partial.stat().st_size > 500_000):
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    kept = partial.stat().st_size
    assert 500_000 < kept < len(model_bytes)
    served.pause = 0
    served.requests.clear()
    second = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=30)
    assert served.ranges() == [f"bytes={kept}-"]
    assert Path(second.stdout.decode().split()[-1]).read_bytes() == model_bytes


def test_two_pulls_at_once_share_one_transfer(served: HubServer, model_bytes: bytes) -> None:
    served.pause = 0.01
    found: list[Path] = []
    notes: list[str] = []

    def pull() -> None:
        found.append(hub.fetch(ref(), lambda event: notes.append(event.note)))

    threads = [threading.Thread(target=pull) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 2
    assert found[0].read_bytes() == model_bytes
    assert served.ranges() == [""]


# ----------------------------------------------------------------- mirrors and tokens


def test_token_goes_to_the_endpoint_only(
    served: HubServer, model_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    served.use_cdn = served.xet = True
    served.faults.append(Fault("drop", 1_000_000))
    assert fetch()[0].read_bytes() == model_bytes
    assert {r.authorization for r in served.asked(server="hub")} == {"Bearer hf_secret"}
    assert len(served.asked("GET", "cdn")) == 2
    assert {r.authorization for r in served.asked(server="cdn")} == {""}


def test_mirror_that_sends_us_to_the_hub_itself(
    served: HubServer, model_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with HubServer() as origin:
        origin.add(REPO, FILE, model_bytes)
        served.repos[REPO].origin = origin.url
        assert fetch()[0].read_bytes() == model_bytes
        assert {r.method for r in origin.requests} == {"HEAD", "GET"}
        assert {r.authorization for r in origin.requests} == {""}


def test_mirror_below_a_path(served: HubServer, model_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    served.prefix = "/artifacts/api/hf"
    served.page_size = 1
    monkeypatch.setattr(constants, "ENDPOINT", served.url + served.prefix)
    assert fetch()[0].read_bytes() == model_bytes
    with pytest.raises(DownloadError, match="no model owner/Nothing"):
        fetch("owner/Nothing")


def test_proxy_of_the_environment(
    served: HubServer, model_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_session()  # a client keeps the proxies of its birth
    monkeypatch.setenv("HTTP_PROXY", served.url)
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    assert fetch()[0].read_bytes() == model_bytes
    close_session()
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match=r"proxy|cannot be reached"):
        fetch("owner/Other")


def test_cache_without_links(served: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    for number, data in enumerate(split_model(tmp_path, 2), 1):
        served.add("owner/Two", f"m-Q4_0-{number:05d}-of-00002.gguf", data)
    served.faults.extend([Fault("end", 10**9), *[Fault("drop", 100)] * 20])  # the second part fails
    with pytest.raises(DownloadError):
        fetch("owner/Two")
    served.faults.clear()
    served.requests.clear()
    path, _ = fetch("owner/Two")
    assert not path.is_symlink()
    assert served.ranges() == ["bytes=100-"]  # only what was missing
    assert try_to_load_from_cache("owner/Two", path.name) == str(path)


def test_mirror_needs_no_xet(served: HubServer, model_bytes: bytes) -> None:
    served.xet = True
    assert fetch()[0].read_bytes() == model_bytes
    assert not [r for r in served.requests if "xet" in r.path]


def test_signed_address_that_ran_out_is_asked_for_again(served: HubServer, model_bytes: bytes) -> None:
    served.use_cdn = True
    served.faults.extend([Fault("drop", 1_000_000), Fault("status", status=403)])
    assert fetch()[0].read_bytes() == model_bytes
    assert len(served.asked("GET", "hub")) == 1 + 3  # the listing, and three tries each with a fresh address


def test_host_that_fails_is_named(served: HubServer) -> None:
    host = served.url.removeprefix("http://")
    served.stop_answering()
    started = time.monotonic()
    with pytest.raises(DownloadError, match=f"{host} cannot be reached"):
        fetch()
    assert time.monotonic() - started < 5


def test_something_else_answers(served: HubServer) -> None:
    served.api_faults.append(Fault("html"))
    with pytest.raises(DownloadError, match="does not answer like a model hub"):
        fetch()


def test_listing_is_tried_again(served: HubServer, model_bytes: bytes) -> None:
    served.api_faults.extend([Fault("status", status=503), Fault("drop")])
    assert fetch()[0].read_bytes() == model_bytes


def test_rate_limit_that_takes_long_is_said_at_once(served: HubServer) -> None:
    served.api_faults.append(Fault("status", status=429, headers={"Retry-After": "3600"}))
    with pytest.raises(DownloadError, match="slow down"):
        fetch()


# ----------------------------------------------------------------------- who may read


def refused(
    served: HubServer, fault: Fault, monkeypatch: pytest.MonkeyPatch, token: str = ""
) -> LocalspecError:
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    served.repos[REPO].refusal = fault
    with pytest.raises(DownloadError) as caught:
        fetch()
    return caught.value


def test_gated_model(served: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    gated = {"X-Error-Code": "GatedRepo"}
    without = refused(served, Fault("status", status=401, headers=gated), monkeypatch)
    with_token = refused(served, Fault("status", status=403, headers=gated), monkeypatch, "hf_ok")
    for error in (without, with_token):
        assert "licence" in error.message
        assert f"{served.url}/{REPO}" in error.why
    assert without.hint == "hf auth login"
    assert with_token.hint == f"localspec pull {REPO}"


def test_wrong_token(served: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    served.valid_tokens = {"hf_right"}
    error = refused(served, Fault("status", status=404), monkeypatch, "hf_wrong")
    assert "access token" in error.message
    assert "HF_HUB_DISABLE_IMPLICIT_TOKEN=1" in error.hint
    assert "hf_wrong" not in str(error.to_json())


def test_the_hint_for_a_wrong_token_works(served: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    served.valid_tokens = {"hf_right"}
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    assert fetch()[0].is_file()


@pytest.mark.parametrize("token", ["", "hf_ok"])
def test_mistyped_repository(served: HubServer, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(DownloadError, match="no model owner/Modle-GGUF") as caught:
        fetch("owner/Modle-GGUF")
    assert "mistyped" in caught.value.why


def test_forbidden(served: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(served, Fault("status", status=403), monkeypatch, "hf_ok")
    assert "does not let you read" in error.message
    assert "permission" in error.why


def test_file_that_is_gone(served: HubServer) -> None:
    served.repos[REPO].gone.add(FILE)
    with pytest.raises(DownloadError, match=f"no file {FILE} any more"):
        fetch()


def test_next_source_is_taken_when_a_publisher_withdrew_the_file(
    served: HubServer, model_bytes: bytes
) -> None:
    first, second = load_catalog().resolve("mistral-small-3.2").sources
    served.add(second.repo, second.files[0].upper().replace(".GGUF", ".gguf"), model_bytes)
    planned = hub.plan_download([ref("mistral-small-3.2")]).items[0]
    assert planned.repo == second.repo
    assert [r.path for r in served.requests if first.repo in r.path]


def test_quant_is_never_replaced(served: HubServer, model_bytes: bytes) -> None:
    served.add("Qwen/Qwen3-8B-GGUF", "Qwen3-8B-Q8_0.gguf", model_bytes)
    served.add("Qwen/Qwen3-8B-GGUF", "Qwen3-8B-BF16.gguf", model_bytes * 2)
    with pytest.raises(DownloadError, match="has no Q4_K_M") as caught:
        fetch("qwen3-8b")
    assert "Q8_0 (3 MB)" in caught.value.why
    assert fetch("qwen3-8b:q8_0")[0].name == "Qwen3-8B-Q8_0.gguf"


# ---------------------------------------------------- what answers in place of the hub


@pytest.mark.parametrize("start", [0, 1_000_000])
def test_a_page_in_place_of_the_file_never_gets_into_it(
    served: HubServer, model_bytes: bytes, start: int
) -> None:
    if start:
        leave_partial(model_bytes, start)
    served.faults.extend([Fault("page")] * 20)
    with pytest.raises(DownloadError, match="in place of the file"):
        fetch()
    assert partial_of(model_bytes).read_bytes() == model_bytes[:start]
    served.faults.clear()
    served.faults.append(Fault("page"))
    assert fetch()[0].read_bytes() == model_bytes


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        ("hf-mirror.com", "export HF_ENDPOINT=https://hf-mirror.com"),
        ("ftp://x.y", "unset HF_ENDPOINT"),
        ("http://[::1", "unset HF_ENDPOINT"),
        ("http://127.0.0.1:99999", "unset HF_ENDPOINT"),
        ("", "unset HF_ENDPOINT"),
    ],
)
def test_endpoint_that_is_no_address(monkeypatch: pytest.MonkeyPatch, address: str, hint: str) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", address)
    with pytest.raises(DownloadError, match="no address") as caught:
        hub.list_files(REPO)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("name", "value", "message", "hint"),
    [
        ("SSL_CERT_FILE", "/no/such.pem", "certificates .* cannot be read", "unset SSL_CERT_FILE"),
        ("HTTP_PROXY", "foo bar:baz", "proxy of the environment cannot be used", "env | grep -i proxy"),
    ],
)
def test_environment_with_which_nothing_connects(
    served: HubServer, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str, hint: str
) -> None:
    close_session()
    monkeypatch.setenv(name, value)
    with pytest.raises(DownloadError, match=message) as caught:
        fetch()
    assert caught.value.hint == hint
    assert not caught.value.why.endswith("..")


def test_a_socks_proxy_needs_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ImportError("Using SOCKS proxy, but the 'socksio' package is not installed.")
    error = explain_client(problem)
    assert "SOCKS" in error.message
    assert error.hint.endswith("-m pip install socksio")


def test_a_token_with_letters_that_no_header_takes(
    served: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_ü")
    with pytest.raises(DownloadError, match="token cannot be sent") as caught:
        fetch()
    assert "ü" not in str(caught.value.to_json())
    assert caught.value.hint.endswith(f"localspec pull {REPO}")


def test_a_setting_that_huggingface_hub_cannot_read(tmp_path: Path) -> None:
    script = "import localspec.models.hub"
    wrong = {"HF_HUB_ETAG_TIMEOUT": "10s", "HF_ENDPOINT": "http://127.0.0.1:99999"}
    for name, value in wrong.items():
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": str(ROOT), name: value},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "UsageError: A setting of huggingface_hub in the environment cannot be read" in done.stderr
