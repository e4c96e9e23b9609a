"""Two results side by side."""

from __future__ import annotations

import copy
import json

import pytest

from localspec.errors import UsageError
from localspec.measure.compare import compare, read_result


def result(baseline=20.0, drafted=30.0, accepted=70, noise=(0.99, 1.0, 1.01)):
    runs = [
        {
            "kind": kind,
            "repeat": repeat,
            "drafted": side,
            "decode_tok_s": (drafted if side else baseline) * factor,
            "drafted_tokens": 100 if side else 0,
            "accepted": accepted if side else 0,
        }
        for kind in ("code", "prose")
        for repeat, factor in enumerate(noise)
        for side in (False, True)
    ]
    speedup = drafted / baseline
    return {
        "kind": "localspec bench",
        "runs": runs,
        "speedup": speedup,
        "speedup_interval": [speedup * 0.98, speedup * 1.02],
        "versions": {"llama-cpp-python": "0.3.36"},
        "device": {"target": "CPU"},
        "settings": {"n_draft": 4},
        "protocol": {"tokens": 512, "prompts": [{"kind": "code", "digest": "a"}]},
        "files": {"target": [{"name": "t.gguf", "size": 1, "sha256": "a" * 64}], "draft": []},
        "surroundings": {"busy": False, "others_cpu_share": 0.01},
    }


def by_name(found):
    return {one.name: one for one in found.differences}


def test_the_same_twice_is_no_difference():
    found = compare(result(), result())
    assert found.changed == ()
    assert found.warnings == ()
    assert not any(one.real for one in found.differences)
    assert set(by_name(found)) == {
        *("baseline tok/s", "baseline tok/s, code", "baseline tok/s, prose"),
        *("drafted tok/s", "drafted tok/s, code", "drafted tok/s, prose"),
        *("speedup", "acceptance"),
    }


def test_a_worse_draft_is_seen_and_the_reason_named():
    worse = result(drafted=22.0, accepted=50)
    worse["versions"]["llama-cpp-python"] = "0.3.37"
    worse["files"]["draft"] = [{"name": "d.gguf", "size": 2, "sha256": "b" * 64}]
    found = compare(result(), worse)
    differences = by_name(found)
    assert differences["drafted tok/s"].real
    assert differences["drafted tok/s"].change == pytest.approx(22 / 30 - 1)
    assert differences["speedup"].real
    assert differences["acceptance"].real
    assert (differences["acceptance"].before, differences["acceptance"].after) == (0.7, 0.5)
    assert not differences["baseline tok/s"].real
    assert ("versions.llama-cpp-python", "0.3.36", "0.3.37") in found.changed
    assert any(name == "files.draft" and "bbbbbbbbbbbb" in after for name, _, after in found.changed)


def test_noise_hides_a_small_difference():
    noisy = (0.85, 1.0, 1.15)
    found = by_name(compare(result(noise=noisy), result(baseline=21.0, noise=noisy)))
    assert not found["baseline tok/s"].real
    assert found["baseline tok/s"].low < 1 < found["baseline tok/s"].high


def test_a_difference_below_the_floor_is_not_real_however_small_the_noise():
    still = (0.9999, 1.0, 1.0001)
    assert not by_name(compare(result(noise=still), result(baseline=20.3, noise=still)))[
        "baseline tok/s"
    ].real
    assert by_name(compare(result(noise=still), result(baseline=20.6, noise=still)))["baseline tok/s"].real


def test_one_run_each_tells_nothing():
    found = by_name(compare(result(noise=(1.0,)), result(drafted=60, noise=(1.0,))))
    assert found["drafted tok/s"].low is None
    assert not found["drafted tok/s"].real


def test_warnings():
    other = copy.deepcopy(result())
    other["partial"] = True
    other["protocol"]["prompts"] = []
    other["surroundings"]["others_cpu_share"] = 0.5
    other["device"]["target"] = "RTX"
    text = " ".join(compare(result(), other).warnings)
    for words in ("second result is partial", "prompts differ", "busy", "machines differ"):
        assert words in text


def test_a_result_without_a_draft_is_compared_on_the_baseline():
    plain = result()
    plain["runs"] = [run for run in plain["runs"] if not run["drafted"]]
    plain["speedup"] = plain["speedup_interval"] = None
    assert {one.name.split(",")[0] for one in compare(plain, result()).differences} == {"baseline tok/s"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("{", "is not JSON"),
        ("[]", "no result"),
        ('{"kind": "something"}', "no result"),
        ('{"kind": "localspec bench", "runs": []}', "no result"),
        ('{"kind": "localspec bench", "runs": [{"kind": "x", "decode_tok_s": null}]}', "no result"),
    ],
)
def test_what_is_no_result_gets_its_sentence(tmp_path, content, words):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=words):
        read_result(path)


def test_a_written_result_is_read(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(result()))
    assert read_result(tmp_path / "a.json")["speedup"] == 1.5
    (tmp_path / "b.json").write_text(json.dumps(result()), encoding="utf-16")  # as PowerShell's > makes it
    assert read_result(tmp_path / "b.json")["speedup"] == 1.5


def test_a_result_in_a_form_of_another_version_is_refused(tmp_path):
    file = tmp_path / "a.json"
    run = {"kind": "code", "decode_tok_s": 1.0}
    for form, refused in ((1, False), (2, True), ("\x1b[31m", True)):
        file.write_text(
            json.dumps({"kind": "localspec bench", "format": form, "runs": [run]}), encoding="utf-8"
        )
        if not refused:
            assert read_result(file)["format"] == form
            continue
        with pytest.raises(UsageError, match="another version of localspec") as caught:
            read_result(file)
        assert "\x1b" not in str(caught.value)
