"""Saved results of tune: written, read, and used only where they still hold."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from importlib.util import find_spec

import pytest

from localspec import paths, profiles
from localspec.errors import LocalspecError, UsageError
from localspec.launch import prepare
from localspec.profiles import Machine, Profile
from localspec.settings import Settings, State, load_settings, load_state, tomllib
from tests.gguf_files import script_model

MACHINE = Machine("Some CPU 9000", 8, ("Some GPU", 'Another "GPU"\\'))


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.setattr(profiles, "this_machine", lambda: MACHINE)
    monkeypatch.setattr(profiles, "engine_version", lambda: "1.2.3")


@pytest.fixture
def files(tmp_path):
    return {
        "target": script_model(tmp_path / "target.gguf", {}, n_layer=2),
        "draft": script_model(tmp_path / "draft.gguf", {}),
        "other": script_model(tmp_path / "other-draft.gguf", {}),
        "elsewhere": script_model(tmp_path / "elsewhere.gguf", {}, n_layer=2),
    }


def make(files, draft="draft", name="fast", when="2026-11-30T10:00:00+00:00", **settings):
    model = None
    if draft not in ("none", "lookup"):
        model = profiles.model_file(str(files[draft]), files[draft])
    made = Profile(
        name=name,
        when=when,
        machine=MACHINE,
        target=profiles.model_file(str(files["target"]), files["target"]),
        draft=model,
        settings={"draft": model.id if model else draft, "n_draft": 5, "kv": "q8_0", **settings},
        versions={"llama-cpp-python": "1.2.3", "ggml commit": "abc"},
        figures={"decode_tok_s": 41.25, "speedup": 1.5, "verdict": "faster"},
        remarks=["First line", "x = [broken\nhere]", "\x1b[31mred"],
    )
    profiles.save(made)
    return made


def launch(files, draft=None, profile="auto", state=None, target="target", **settings):
    return prepare(
        str(files[target]),
        str(draft) if draft else None,
        Settings(**settings),
        profile=profile,
        state=state or State(),
    )


# ------------------------------------------------------------------------------------------- file


def test_a_profile_comes_back_as_it_was_and_is_readable_toml(files):
    made = make(files)
    assert profiles.load_profile("fast") == replace(made, remarks=())
    assert made.file == paths.profiles_dir() / "fast.toml"
    text = made.file.read_text(encoding="utf-8")
    assert text.startswith("# First line\n# x = [broken\n# here]\n")
    assert "\x1b" not in text
    assert tomllib.loads(text)["measured"]["decode_tok_s"] == 41.25
    assert list(paths.profiles_dir().iterdir()) == [made.file]


@pytest.mark.parametrize("value", ['quo"te\\', "tab\tline\n", "\x7f", "été ✓", ""])
def test_any_text_survives(files, value):
    made = make(files)
    profiles.save(replace(made, versions={"llama-cpp-python": value, "a key.with dots": value}))
    assert profiles.load_profile("fast").versions == {"llama-cpp-python": value, "a key.with dots": value}


def _no_space(self, other):
    raise OSError(28, "No space")


def test_a_profile_replaces_one_of_its_name_whole(files, monkeypatch):
    make(files)
    before = profiles.load_profile("fast")
    with monkeypatch.context() as full:
        full.setattr(profiles.Path, "replace", _no_space)
        with pytest.raises(LocalspecError, match="cannot be written") as failed:
            make(files, n_draft=9)
    assert failed.value.why == "No space."
    assert profiles.load_profile("fast") == before
    assert len(list(paths.profiles_dir().iterdir())) == 1


@pytest.mark.parametrize("name", ["none", "None", "../up", "a/b", ".hidden", "", "x" * 101, "a b"])
def test_names_that_cannot_be(name):
    with pytest.raises(UsageError, match="cannot be called"):
        profiles.check_name(name)


def test_default_names_tell_target_draft_and_machine_apart(files):
    names = {
        profiles.default_name(files[target], draft, machine)
        for target in ("target", "elsewhere")
        for draft in (str(files["draft"]), "qwen3-4b:q8_0", "lookup", "none")
        for machine in (MACHINE, Machine("Other", 8, ()))
    }
    assert len(names) == 16
    assert all(profiles.check_name(name) for name in names)


def test_a_profile_that_is_not_there_names_those_that_are(files):
    make(files)
    with pytest.raises(UsageError) as failed:
        profiles.load_profile("fats")
    assert failed.value.why == "Known: fast."


# ------------------------------------------------------------------------------------------- use


def test_run_uses_the_profile_and_says_so_in_one_line(files):
    make(files)
    made = launch(files)
    assert (made.load.draft.path, made.load.n_draft, made.load.auto) == (str(files["draft"]), 5, False)
    assert (made.load.kv_type, made.settings.kv) == ("q8_0", "q8_0")
    (note,) = [note for note in made.notes if "profile" in note]
    assert note == (
        f"Tuned on 2026-11-30: --draft {files['draft']} --n-draft 5 --kv q8_0"
        " (profile fast; --profile none leaves it out)."
    )


def test_an_automatic_length_and_threads_come_along(files):
    make(files, n_draft="auto", threads=3, batch=64)
    load = launch(files).load
    assert (load.auto, load.n_draft, load.threads, load.n_batch) == (True, 31, 3, 64)


def test_profile_none_leaves_it_out(files):
    make(files)
    made = launch(files, profile="none")
    assert (made.load.draft.kind, made.load.kv_type, made.load.auto) == ("none", "f16", True)
    assert not any("profile" in note for note in made.notes)
    other = prepare(str(files["target"]), None, Settings(), state=State())
    assert other.load == made.load, "whoever does not ask for profiles gets none"


def test_flags_and_settings_win_field_by_field(files, tmp_path):
    make(files, threads=3)
    made = launch(files, n_draft=2)
    assert (made.load.n_draft, made.load.kv_type, made.load.threads) == (2, "q8_0", 3)
    assert "--n-draft" not in made.notes[-1]
    file = tmp_path / "settings.toml"
    file.write_text('kv = "f16"\n', encoding="utf-8")
    made = prepare(str(files["target"]), None, load_settings({}, file), profile="auto", state=State())
    assert (made.load.kv_type, made.load.n_draft) == ("f16", 5)


PLACED = {"draft_device": "cpu", "draft_threads": 3, "draft_kv": "q8_0", "ubatch": 64}


def test_where_the_draft_runs_comes_along_and_is_told(files):
    make(files, **PLACED)
    made = launch(files)
    spec = made.load.draft
    assert (spec.device, spec.threads, spec.kv_type, made.load.n_ubatch) == ("cpu", 3, "q8_0", 64)
    assert "--draft-device cpu --draft-threads 3 --draft-kv q8_0" in made.notes[-1]


def test_another_draft_runs_where_the_person_wants_it(files):
    make(files, **PLACED)
    load = launch(files, draft=files["other"]).load
    assert (load.draft.device, load.draft.threads, load.draft.kv_type) == ("auto", 0, "")
    assert load.n_ubatch == 64, "the batch is the target's"


def test_what_goes_together_is_taken_together_or_not_at_all(files):
    make(files, **PLACED)
    assert launch(files, draft_gpu_layers=2).load.draft.device == "auto"
    load = launch(files, batch=32).load
    assert (load.n_batch, load.n_ubatch) == (32, 0)


def test_another_draft_keeps_its_own_length(files):
    make(files)
    made = launch(files, draft=files["other"])
    assert (made.load.draft.path, made.load.auto, made.load.kv_type) == (str(files["other"]), True, "q8_0")
    same = launch(files, draft=files["draft"])
    assert (same.load.n_draft, same.load.auto) == (5, False)
    off = launch(files, draft="none")
    assert (off.load.draft.kind, off.load.draft.off_reason) == ("none", "switched off with --draft none")


def test_the_profile_of_the_draft_that_was_named_is_found(files):
    make(files, draft="other", name="first", n_draft=3)
    make(files, draft="draft", name="second", when="2026-12-01T10:00:00+00:00")
    assert launch(files, draft=files["other"]).load.n_draft == 3
    assert launch(files).load.n_draft == 5, "without a name the newest one counts"
    assert launch(files, profile="first").load.draft.path == str(files["other"])


def test_off_was_fastest(files):
    made = make(files, draft="none")
    profiles.save(replace(made, settings={"draft": "none", "kv": "f16"}))
    load = launch(files, state=State(drafts={str(files["target"]): str(files["draft"])})).load
    assert (load.draft.kind, load.draft.off_reason) == ("none", "no draft was the fastest when it was tuned")


def test_one_without_a_draft_is_left_out_where_files_are_to_be_looked_up(files, tmp_path):
    make(files, draft="none", n_draft=0)
    (tmp_path / "notes.txt").write_text("text")
    made = launch(files, lookup=(str(tmp_path / "notes.txt"),))
    assert (made.load.draft.kind, made.load.auto, made.load.kv_type) == ("lookup", True, "f16")
    assert "fast is not used: it is one without a draft, and --lookup drafts." in made.notes[0]


def test_the_profile_is_not_taken_for_the_persons_choice(files):
    make(files)
    state = State(drafts={str(files["target"]): str(files["other"])})
    made = launch(files, state=state)
    assert made.load.draft.path == str(files["draft"])
    made.remember()
    assert load_state().drafts == {str(files["target"]): str(files["other"])}
    assert launch(files, profile="none", state=load_state()).load.draft.path == str(files["other"])


def test_another_target_has_nothing_of_it(files):
    make(files)
    assert launch(files, target="elsewhere").load.kv_type == "f16"
    with pytest.raises(UsageError, match="was made for"):
        launch(files, target="elsewhere", profile="fast")


# ------------------------------------------------------------------------------------------- stale


def stale(files, reason):
    for name in ("auto", "fast"):
        made = launch(files, profile=name)
        assert (made.load.draft.kind, made.load.kv_type) == ("none", "f16")
        (note,) = [note for note in made.notes if "fast" in note]
        assert (
            note
            == f"The saved profile fast is not used: {reason}. Measure again: localspec tune {files['target']}"
        )


def test_another_llama_cpp_python_makes_it_stale(files, monkeypatch):
    make(files)
    monkeypatch.setattr(profiles, "engine_version", lambda: "1.2.4")
    stale(files, "llama-cpp-python is 1.2.4 now, it was 1.2.3")


@pytest.mark.parametrize("which", ["target", "draft"])
def test_a_file_that_was_touched_makes_it_stale(files, which):
    make(files)
    os.utime(files[which], ns=(1, 1))
    stale(files, f"{which}.gguf has changed")


def test_another_file_of_the_same_time_makes_it_stale(files, tmp_path):
    make(files)
    before = files["target"].stat()
    script_model(files["target"], {}, n_layer=3)
    os.utime(files["target"], ns=(before.st_atime_ns, before.st_mtime_ns))
    stale(files, "target.gguf has changed")


def test_a_draft_that_is_gone_makes_it_stale(files):
    make(files)
    files["draft"].unlink()
    stale(files, "draft.gguf is gone or cannot be read")


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (replace(MACHINE, cpu="Other CPU"), "it was made on Some CPU 9000 with 8 cores"),
        (replace(MACHINE, cores=4), "it was made on Some CPU 9000 with 8 cores"),
        (replace(MACHINE, gpus=()), 'the GPUs were Some GPU, Another "GPU"\\, now none'),
    ],
)
def test_another_machine_makes_it_stale(files, monkeypatch, now, reason):
    make(files)
    monkeypatch.setattr(profiles, "this_machine", lambda: now)
    stale(files, reason)


def test_of_two_machines_the_own_profile_is_used(files):
    own = make(files, name="own")
    later = replace(own, name="theirs", machine=Machine("Other", 2, ()), when="2027-01-01T00:00:00+00:00")
    profiles.save(replace(later, settings={"draft": "none"}))
    assert launch(files).load.n_draft == 5


def test_a_file_that_moved_is_found_by_its_name_of_the_catalogue(files, tmp_path):
    made = make(files)
    moved = shutil.copy2(files["target"], tmp_path / "moved.gguf")
    found, _ = profiles.newest_for(made.target.id, moved)
    assert found is not None
    assert found.stale_reason(moved) == ""


@pytest.mark.parametrize(
    "text", ["not toml [", "", 'format = 1\nwhen = "x"\n', "[settings]\n\xff", "[settings]\nn_draft = 5\n"]
)
def test_a_damaged_profile_stops_nothing_and_is_named(files, text):
    paths.profiles_dir().mkdir(parents=True)
    (paths.profiles_dir() / "fast.toml").write_bytes(text.encode("latin-1"))
    made = launch(files)
    assert made.load.kv_type == "f16"
    assert any("fast.toml cannot be used" in note for note in made.notes)
    with pytest.raises(UsageError, match="cannot be used"):
        launch(files, profile="fast")


def test_a_value_that_cannot_be_stops_nothing(files):
    make(files, n_draft=99)
    made = launch(files)
    assert made.load.auto
    assert any("is not used" in note and "n_draft = 99 is not allowed" in note for note in made.notes)


def test_the_real_machine_has_a_name_and_cores(monkeypatch):
    monkeypatch.undo()
    found = profiles.this_machine()
    assert found.cpu
    assert found.cores > 0
    assert found.id == profiles.this_machine().id
    assert bool(profiles.engine_version()) == (find_spec("llama_cpp") is not None)
