from __future__ import annotations

import json
from dataclasses import replace

import pytest

from localspec.cli import output
from localspec.errors import LocalspecError
from localspec.spec.events import DraftStatus
from localspec.spec.stats import Source, Stats


def test_control_characters_become_visible_piece_by_piece():
    text = "a\x1b[31mb\x9b2J\x07\x00\x7f\u202e\r\n\tü👨‍👩‍👧"
    shown = output.printable(text)
    assert shown == "a␛[31mb\\x9b2J␇␀␡\\u202e\n\tü👨‍👩‍👧"
    assert "".join(output.printable(char) for char in text) == shown


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (None, "?"),
        (0, "0 B"),
        (999, "999 B"),
        (92_871_040, "93 MB"),
        (16_464_440_224, "16.5 GB"),
        (999_600_000, "1.0 GB"),
        (100_400_000_000, "100 GB"),
        (2_000_000_000_000, "2.0 TB"),
        (5_000_000_000_000_000, "5000 TB"),
    ],
)
def test_sizes(count, said):
    assert output.size(count) == said


def test_json_has_no_nan(capsys):
    output.write_json({"a": float("nan"), "b": [1.5, float("inf")], "c": "ü", "d": (1, None)})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [1.5, None], "c": "ü", "d": [1, None]}


def test_figures_leave_out_what_does_not_exist():
    on = DraftStatus("on", "", "d.gguf", 4)
    none = output.figures(Stats(), on)
    assert none == "0 tokens · no draft tokens · draft: on (d.gguf, k=4)"
    stats = Stats(
        prompt_tokens=120,
        reused_tokens=20,
        completion_tokens=21,
        rounds=8,
        drafted=32,
        accepted=12,
        prompt_s=0.5,
        ttft_s=0.61,
        decode_tokens=20,
        decode_s=0.5,
    )
    assert output.figures(stats, on) == (
        "40.0 tok/s · 21 tokens · first after 0.61 s · prompt 200 tok/s · accepted 12 of 32 (38%) · "
        "2.50 tokens a round · draft: on (d.gguf, k=4)"
    )
    parts = {"lookup": Source(3, 20, 9), "d.gguf": Source(4, 12, 3)}
    assert (
        "accepted 12 of 32 (38%) · of these lookup 9 of 20, d.gguf 3 of 12 · 2.50 tokens a round"
        in output.figures(replace(stats, by_source=parts), on)
    )
    off = DraftStatus("off", "switched off")
    assert (
        output.figures(Stats(completion_tokens=1), off)
        == "1 token · first after 0.00 s · draft: off (switched off)"
    )


@pytest.mark.parametrize(
    ("command", "hint", "said"),
    [
        (
            "bench",
            "localspec run demo --gpu-layers -1 --kv f16",
            "localspec bench demo --gpu-layers -1 --kv f16",
        ),
        ("run", "localspec run --kv f16", "localspec run --kv f16"),
        ("tune", "localspec run --draft lookup", "localspec run --draft lookup"),  # tune has --drafts
        ("bench", "localspec run -p hi", "localspec run -p hi"),
        ("bench", "localspec run", "localspec run"),
        ("bench", "localspec tune --kv f16", "localspec tune --kv f16"),
    ],
)
def test_a_hint_speaks_of_the_command_that_was_typed_where_it_can(capsys, monkeypatch, command, hint, said):
    flags = {"bench": {"--kv", "--gpu-layers"}, "tune": {"--kv", "--drafts"}, "run": {"--kv", "-p"}}
    monkeypatch.setattr(output, "_typed", output._Typed())
    output.command_typed(command, flags[command])
    output.show_error(LocalspecError("No.", hint=hint), as_json=False)
    assert capsys.readouterr().err.endswith(f"Try: {said}\n")
