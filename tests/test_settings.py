"""Settings: where they come from, what they may be, and the words when they may not."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from localspec import paths
from localspec.errors import UsageError
from localspec.options import KV_TYPES, OPTIONS
from localspec.settings import Settings, State, check_value, load_settings, load_state, remember


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))


def write(text):
    file = paths.settings_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def test_every_field_has_its_words_and_no_word_is_without_a_field():
    assert set(OPTIONS) == set(Settings.model_fields)
    for name, option in OPTIONS.items():
        assert option.help.endswith("."), name
        assert option.allowed, name
        default = Settings.model_fields[name].default
        if option.default:
            assert option.default == (
                f"{default:g}" if isinstance(default, float) else str(default).lower()
            ), name
        else:
            assert default in ("", None, ()), name


def test_flags_go_before_the_file_and_the_file_before_the_defaults():
    write('temperature = 0.2\nn_draft = 6\nkv = "Q8_0"\nthink = false\n')
    settings = load_settings({"n_draft": 9, "top_k": None})
    assert (settings.temperature, settings.n_draft, settings.kv, settings.think) == (0.2, 9, "q8_0", False)
    assert (settings.top_k, settings.target, settings.ctx) == (40, "qwen3.8-27b", 8192)
    assert settings.sampling().temperature == 0.2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_draft", -1),
        ("n_draft", 17),
        ("n_draft", "auto:17"),
        ("n_draft", "auto:"),
        ("n_draft", "many"),
        ("n_draft", "-1"),
        ("n_draft", True),
        ("temperature", -0.1),
        ("temperature", 5.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", float("nan")),
        ("min_p", 1.5),
        ("top_k", -1),
        ("ctx", -1),
        ("ctx", 63),
        ("kv", "q3"),
        ("kv", ""),
        ("gpu_layers", -2),
        ("draft_gpu_layers", -5),
        ("draft_device", ""),
        ("draft_device", " "),
        ("draft_device", "x" * 65),
        ("draft_device", "\x1b[31m"),
        ("draft_threads", -1),
        ("draft_kv", "q3"),
        ("ubatch", 7),
        ("ubatch", 513),
        ("ubatch", -1),
        ("threads", -1),
        ("threads", 100000),
        ("seed", -1),
        ("seed", 2**64),
        ("max_tokens", -1),
        ("repeat_penalty", 0.0),
        ("presence_penalty", 3.0),
        ("frequency_penalty", -3.0),
    ],
)
def test_a_bad_flag_names_flag_value_and_what_is_allowed(name, value):
    with pytest.raises(UsageError) as caught:
        load_settings({name: value})
    flag = OPTIONS[name].flag
    assert caught.value.message.startswith(f"{flag} ")
    assert caught.value.message.endswith(" is not allowed.")
    assert caught.value.why == f"Allowed: {OPTIONS[name].allowed}."
    assert caught.value.hint == "localspec run --help"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_draft", 0),
        ("n_draft", 16),
        ("temperature", 0),
        ("temperature", 5),
        ("top_p", 1),
        ("ctx", 0),
        ("ctx", 64),
    ]
    + [(name, kv) for kv in KV_TYPES for name in ("kv", "draft_kv")]
    + [("draft_kv", ""), ("draft_device", "CUDA1"), ("draft_device", "auto"), ("draft_threads", 512)]
    + [("ubatch", 0), ("ubatch", 8), ("ubatch", 512)]
    + [("gpu_layers", -1), ("seed", 2**64 - 1), ("min_p", 0), ("top_k", 0)],
)
def test_the_ends_of_each_range_are_allowed(name, value):
    assert getattr(load_settings({name: value}), name) == value


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("temperature = 9", "temperature = 9 is not allowed."),
        ('temperature = "warm"', 'temperature = "warm" is not allowed.'),
        ("temperature = true", "temperature = true is not allowed."),
        ("n_draft = 2.5", "n_draft = 2.5 is not allowed."),
        ("system = 3", "system = 3 is not allowed."),
        ('think = "yes"', 'think = "yes" is not allowed.'),
        ("[kv]\nx = 1", 'kv = {"x": 1} is not allowed.'),
    ],
)
def test_a_bad_line_of_the_file_names_the_file(line, said):
    file = write(line)
    with pytest.raises(UsageError) as caught:
        load_settings({})
    assert caught.value.message == f"{file}: {said}"
    assert caught.value.hint.endswith(f" {file}")


def test_a_misspelt_setting_gets_its_neighbour():
    write("temprature = 1")
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert caught.value.why == "Did you mean temperature?"
    write("temp = 1")  # as the flag is called
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert caught.value.why == "Did you mean temperature?"


def test_a_file_that_is_no_toml_names_the_line():
    write("temperature = = 1")
    with pytest.raises(UsageError, match="line 1"):
        load_settings()
    paths.settings_file().write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not text in UTF-8"):
        load_settings()
    paths.settings_file().write_text("a = " + "[" * 5000)
    with pytest.raises(UsageError, match="nested too deeply"):
        load_settings()


def test_a_file_from_an_editor_of_windows_is_read():
    write("")
    paths.settings_file().write_bytes(b"\xef\xbb\xbftemperature = 0.25\r\nsystem = 'x'\r\n")
    assert load_settings().temperature == 0.25


def test_a_link_to_nothing_is_said():
    file = write("")
    file.unlink()
    assert load_settings() == Settings()
    file.symlink_to(file.with_name("gone.toml"))
    with pytest.raises(UsageError, match="cannot be read"):
        load_settings()


def test_an_empty_value_is_seen():
    with pytest.raises(UsageError) as caught:
        load_settings({"draft_device": ""})
    assert caught.value.message == '--draft-device "" is not allowed.'


def test_a_flag_does_not_hide_a_bad_file():
    write("temperature = 9")
    with pytest.raises(UsageError):
        load_settings({"temperature": 0.5})


def test_the_draft_fits_into_the_batch():
    assert load_settings({"batch": 8, "n_draft": 7}).n_draft == 7
    with pytest.raises(UsageError, match="smaller than the batch"):
        load_settings({"batch": 8, "n_draft": 8})


def test_a_round_is_computed_at_once():
    assert load_settings({"ubatch": 16, "n_draft": 15}).n_draft == 15
    assert load_settings({"ubatch": 16}).draft_length == (15, True)
    with pytest.raises(UsageError, match="--n-draft 16 is not allowed"):
        load_settings({"ubatch": 16, "n_draft": 16})
    assert load_settings({"batch": 2048, "ubatch": 1024}).ubatch == 1024


def test_words_are_read_whatever_their_case():
    settings = load_settings({"overlap": "OFF", "flash_attn": " On", "split_mode": "Row", "kv": "Q8_0"})
    assert (settings.overlap, settings.flash_attn, settings.split_mode, settings.kv) == (
        "off",
        "on",
        "row",
        "q8_0",
    )


def test_the_words_for_devices_are_read_whatever_their_case():
    assert load_settings({"draft_device": " CPU "}).draft_device == "cpu"
    assert load_settings({"draft_device": "Auto"}).draft_device == "auto"


def test_one_value_can_be_changed_later():
    settings = load_settings({"n_draft": 2})
    assert check_value("temperature", 0.3, settings).temperature == 0.3
    assert check_value("temperature", 0.3, settings).n_draft == 2
    with pytest.raises(UsageError, match="--temp 7 is not allowed"):
        check_value("temperature", 7, settings)


# ------------------------------------------------------------------ state


def test_the_last_pair_is_remembered():
    assert load_state() == State()
    remember("a", "x")
    remember("b", "lookup")
    remember("a", "none")
    assert load_state() == State("a", {"a": "none", "b": "lookup"})


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b"null", b"\xff", b'{"target": 3, "drafts": []}', b'{"drafts": {"a": 1}}']
)
def test_a_damaged_state_is_an_empty_one(damage):
    remember("a", "x")
    paths.state_file().write_bytes(damage)
    assert load_state() == State()
    remember("b", "y")
    assert load_state() == State("b", {"b": "y"})


def test_the_state_stays_small():
    for i in range(60):
        remember(f"t{i}", "lookup")
    assert len(load_state().drafts) == 50
    assert "t59" in load_state().drafts


def test_a_state_that_cannot_be_written_stops_nothing(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("LOCALSPEC_HOME", str(blocked))
    remember("a", "x")
    assert load_state() == State()


def test_two_writers_leave_a_whole_file():
    writers = [threading.Thread(target=lambda i=i: remember(f"t{i}", "none")) for i in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    json.loads(paths.state_file().read_text())
    assert load_state().target.startswith("t")


@pytest.mark.parametrize(
    ("value", "stored", "length"),
    [
        (None, "auto", (31, True)),
        ("auto", "auto", (31, True)),
        (" AUTO:8 ", "auto:8", (8, True)),
        ("auto:0", "auto:0", (0, True)),
        ("8", 8, (8, False)),
        (8, 8, (8, False)),
        ("0", 0, (0, False)),
    ],
)
def test_draft_lengths(value, stored, length):
    settings = load_settings({"n_draft": value})
    assert (settings.n_draft, settings.draft_length) == (stored, length)


def test_an_automatic_length_fits_the_batch():
    assert load_settings({"batch": 8}).draft_length == (7, True)


def test_a_lookup_file_of_nobody_is_a_file_that_is_missing(tmp_path):
    settings = load_settings({"lookup": ["~nobody-at-all/x.md"]}, tmp_path / "none.toml")
    assert settings.lookup_files == (str(Path.cwd() / "~nobody-at-all" / "x.md"),)
