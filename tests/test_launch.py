"""From what was typed to what is loaded."""

from __future__ import annotations

import shutil

import pytest

from localspec.errors import CatalogError, ModelFileError, PairingError, UsageError
from localspec.launch import prepare
from localspec.models import demo, hubcache
from localspec.settings import Settings, State, load_state
from tests.gguf_files import header_only, random_llama, random_qwen3next, random_qwen35, script_model


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setattr(hubcache, "find", lambda repo, **_: on_disk.get(repo))
    on_disk.clear()


on_disk = {}
"""Repositories of the hub that are in the cache of this test, with their files."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "target": script_model(folder / "target.gguf", {}, n_layer=2),
        "draft": script_model(folder / "draft.gguf", {}),
        "other": script_model(folder / "other.gguf", {}, n_vocab=700),
        "next": random_qwen3next(folder / "next.gguf"),
        "empty": header_only(folder / "empty.gguf"),
    }


def launch(target=None, draft=None, state=None, force_draft=False, template_file="", **settings):
    return prepare(
        str(target) if target else None,
        str(draft) if draft else None,
        Settings(**settings),
        state=state or State(),
        force_draft=force_draft,
        template_file=template_file,
    )


def put_demo(files):
    target, draft = demo.paths()
    target.parent.mkdir(parents=True)
    shutil.copy(files["target"], target)
    shutil.copy(files["draft"], draft)


# ------------------------------------------------------------------ pairs that were named


def test_two_files_become_a_load(files):
    made = launch(
        files["target"], files["draft"], n_draft=8, ctx=2048, kv="q8_0", gpu_layers=3, draft_gpu_layers=5
    )
    load = made.load
    assert (load.target, load.draft.kind, load.draft.path) == (
        str(files["target"]),
        "model",
        str(files["draft"]),
    )
    assert (load.n_draft, load.n_ctx, load.kv_type, load.gpu_layers) == (8, 2048, "q8_0", 3)
    assert load.draft.gpu_layers == 5
    assert made.missing == ()
    assert made.verdict.ok
    made.remember()
    assert load_state() == State(str(files["target"]), {str(files["target"]): str(files["draft"])})


def test_where_and_how_the_draft_runs(files):
    wishes = {"draft_device": "CUDA1", "draft_gpu_layers": 5, "draft_threads": 3, "draft_kv": "q8_0"}
    wishes["overlap"] = "on"
    load = launch(files["target"], files["draft"], ubatch=64, **wishes).load
    spec = load.draft
    assert (spec.device, spec.gpu_layers, spec.threads, spec.kv_type) == ("CUDA1", 5, 3, "q8_0")
    assert (spec.overlap, launch(files["target"], files["draft"]).load.draft.overlap) == ("on", "auto")
    assert (load.n_batch, load.n_ubatch, load.at_once) == (512, 64, 64)
    plain = launch(files["target"], files["draft"]).load
    assert (plain.draft.device, plain.draft.threads, plain.draft.kv_type) == ("auto", 0, "")
    assert (plain.n_ubatch, plain.at_once) == (0, 512)


@pytest.mark.parametrize(("device", "layers"), [("cpu", 5), ("gpu1", 0)])
def test_a_device_and_layers_that_exclude_each_other(files, device, layers):
    with pytest.raises(UsageError, match=f"--draft-device {device} and --draft-gpu-layers {layers} exclude"):
        launch(files["target"], files["draft"], draft_device=device, draft_gpu_layers=layers)
    launch(files["target"], files["draft"], draft_device="cpu", draft_gpu_layers=0)


@pytest.mark.parametrize("names", [("", None), (" ", None), (None, "")])
def test_an_empty_name_is_not_taken_for_none(files, names):
    """A shell variable that was never set: some other model would answer."""
    with pytest.raises(UsageError, match="is empty"):
        prepare(*names, Settings(), state=State())


def test_no_names_take_the_last_pair(files):
    launch(files["target"], files["draft"]).remember()
    made = launch(state=load_state())
    assert (made.load.target, made.load.draft.path) == (str(files["target"]), str(files["draft"]))


@pytest.mark.parametrize("word", ["lookup", "none"])
def test_lookup_and_none_are_remembered(files, word):
    launch(files["target"], word).remember()
    made = launch(state=load_state())
    assert made.load.draft.kind == word
    assert made.load.draft.off_reason == (
        "switched off the last time with --draft none; --draft lookup turns it on" if word == "none" else ""
    )


def test_a_draft_of_another_vocabulary_is_refused_with_the_words_of_check(files):
    with pytest.raises(PairingError) as caught:
        launch(files["target"], files["other"])
    from localspec.models import pairing

    verdict = pairing.check(files["target"], files["other"])
    assert verdict.reasons[0] in caught.value.why
    forced = launch(files["target"], files["other"], force_draft=True)
    assert (forced.load.draft.kind, forced.load.draft.force) == ("model", True)
    assert not forced.verdict.ok
    assert forced.notes == (*verdict.warnings, *verdict.reasons)


def test_force_does_not_overrule_a_memory_that_cannot_go_back(files):
    with pytest.raises(PairingError, match="cannot draft"):
        launch(files["next"], files["draft"], force_draft=True)


def test_the_target_itself_is_no_draft(files):
    with pytest.raises(PairingError, match="cannot draft") as caught:
        launch(files["target"], files["target"])
    assert "same file" in caught.value.why


def test_files_that_are_no_models_are_refused(files, tmp_path):
    with pytest.raises(ModelFileError):
        launch(files["empty"])
    page = tmp_path / "page.gguf"
    page.write_text("<!DOCTYPE html>")
    with pytest.raises(ModelFileError):
        launch(page)
    with pytest.raises(ModelFileError):
        launch(files["target"], page)
    with pytest.raises(CatalogError):
        launch(tmp_path)
    with pytest.raises(CatalogError):
        launch(files["target"], tmp_path / "missing.gguf")
    with pytest.raises(UsageError, match="template"):
        launch(files["target"], template_file=str(tmp_path / "no.jinja"))


# ------------------------------------------------------------------ drafts that nobody named


def test_without_a_draft_the_reason_is_said(files):
    made = launch(files["target"])
    assert made.load.draft.kind == "none"
    assert "no draft was asked for" in made.load.draft.off_reason
    made.remember()
    assert load_state().drafts == {str(files["target"]): ""}


def test_a_remembered_draft_that_is_gone_or_does_not_match_is_left_out(files, tmp_path):
    target = str(files["target"])
    gone = launch(target, state=State(target, {target: str(tmp_path / "gone.gguf")}))
    assert gone.load.draft.kind == "none"
    other = launch(target, state=State(target, {target: str(files["other"])}))
    assert other.load.draft.kind == "none"
    assert "other.gguf does not match" in other.load.draft.off_reason


def test_the_catalogues_draft_is_taken_where_it_is_on_disk(files):
    on_disk["ggml-org/Qwen3.8-27B-GGUF"] = files["target"]
    off = launch("qwen3.8-27b")
    assert off.load.draft.kind == "none"
    assert "qwen3.5-4b is not on this disk" in off.load.draft.off_reason
    on_disk["unsloth/Qwen3.5-4B-GGUF"] = files["draft"]
    on = launch("qwen3.8-27b")
    assert (on.load.draft.kind, on.draft.id) == ("model", "qwen3.5-4b")


def test_a_target_without_a_paying_draft_gets_lookup(files):
    on_disk["unsloth/Qwen3.6-35B-A3B-GGUF"] = files["target"]
    assert launch("qwen3.6-35b-a3b").load.draft.kind == "lookup"


# ------------------------------------------------------------------ what is not on this disk


def test_run_draft_4b_on_a_fresh_machine_offers_the_default_target():
    made = launch(draft="4b", n_draft=8)
    assert made.load is None
    assert [ref.id for ref in made.missing] == ["qwen3.8-27b", "qwen3.5-4b"]


def test_run_on_a_fresh_machine_offers_the_demo():
    made = launch()
    assert [ref.id for ref in made.missing] == ["demo", "demo-draft"]


def test_a_target_from_the_settings_goes_before_the_demo():
    chosen = prepare(None, None, Settings(target="qwen3.6-27b"), state=State())
    assert chosen.target.id == "qwen3.6-27b"


def test_only_what_is_missing_is_offered(files):
    on_disk["ggml-org/Qwen3.8-27B-GGUF"] = files["target"]
    assert [ref.id for ref in launch(draft="4b").missing] == ["qwen3.5-4b"]
    assert launch(draft="lookup").missing == ()


def test_a_size_word_after_the_demo_means_the_default_target(files):
    put_demo(files)
    made = launch(draft="4b", state=State("demo", {"demo": "demo-draft"}))
    assert made.target.id == "qwen3.8-27b"
    assert launch(draft="lookup", state=State("demo")).target.id == "demo"


def test_the_demo_is_used_when_it_is_there(files):
    put_demo(files)
    made = launch()
    assert (made.target.id, made.draft.id, made.load.draft.kind) == ("demo", "demo-draft", "model")
    assert made.notes


def test_a_last_target_that_was_deleted_is_forgotten(files, tmp_path):
    put_demo(files)
    gone = str(tmp_path / "deleted.gguf")
    made = launch(state=State(gone, {}))
    assert made.target.id == "demo"
    assert made.notes[0] == f"The last target ({gone}) is not on this disk any more; this is demo."
    assert launch(files["target"], state=State(gone, {})).notes == launch(files["target"]).notes
    assert launch(state=State("", {})).notes == launch("demo").notes
    on_disk["ggml-org/Qwen3.8-27B-GGUF"] = files["target"]
    last = State("qwen3.8-27b", {"qwen3.8-27b": "none"})
    assert not any("any more" in note for note in launch(state=last).notes)


def test_a_wrong_size_names_what_is_on_offer():
    with pytest.raises(CatalogError) as caught:
        launch("qwen3.8-27b", "3b")
    assert "4b" in caught.value.why


def test_random_llama_is_a_target(tmp_path):
    assert launch(random_llama(tmp_path / "r.gguf"), "lookup").load.draft.kind == "lookup"


# ------------------------------------------------------------------ the target's own block


def test_a_target_with_a_next_token_block_drafts_with_it_unasked(tmp_path, files):
    own = random_qwen35(tmp_path / "own.gguf", n_nextn=1)
    made = launch(own)
    assert (made.load.draft.kind, made.load.draft.path, made.draft_name) == ("mtp", "", "mtp")
    assert launch(own, "mtp").load.draft.kind == "mtp"
    assert launch(own, "lookup").load.draft.kind == "lookup"
    assert launch(own, "none").load.draft.kind == "none"
    assert launch(own, state=State("", {str(own): "lookup"})).load.draft.kind in ("lookup", "mtp")


def test_mtp_without_a_block_is_refused(files):
    with pytest.raises(PairingError, match="carries no next-token block"):
        launch(files["target"], "mtp")


def test_a_sidecar_is_a_block_too(tmp_path):
    target = random_qwen35(tmp_path / "target.gguf")
    sidecar = random_qwen35(tmp_path / "mtp-target.gguf", n_nextn=1, sidecar=True)
    made = launch(target, sidecar)
    assert (made.load.draft.kind, made.load.draft.path) == ("mtp", str(sidecar))


def test_the_length_is_chosen_by_price_unless_it_is_named(files):
    def length(**settings):
        load = launch(files["target"], files["draft"], **settings).load
        return load.n_draft, load.auto

    assert length() == (31, True)
    assert length(n_draft="auto:8") == (8, True)
    assert length(n_draft=8) == (8, False)


def test_the_demo_is_not_slowed_down_to_show_drafting(files):
    put_demo(files)
    assert launch("demo").load.auto
    assert any("--n-draft 4" in note for note in launch("demo").notes)
    assert not launch("demo", n_draft=4).load.auto


# ------------------------------------------------------------------ a drafter of one's own, and files to look up


def test_code_of_ones_own_is_a_draft_that_is_not_remembered(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_drafts.py").write_text("raise SystemExit('nobody runs this here')\n")
    made = launch(files["target"], "own_drafts:Own", draft_threads=3)
    spec = made.load.draft
    assert (spec.kind, spec.code, spec.folder, spec.path, spec.threads) == (
        "custom",
        "own_drafts:Own",
        str(tmp_path),
        "",
        3,
    )
    assert (made.draft_name, made.draft, made.missing) == ("own_drafts:Own", None, ())
    target = str(files["target"])
    launch(files["target"], "lookup").remember()
    made = launch(files["target"], "own_drafts:Own", state=load_state())
    made.remember()
    assert load_state().drafts == {target: "lookup"}
    with pytest.raises(UsageError, match="There is no module own_gone"):
        launch(files["target"], "own_gone:Own")


def test_what_the_catalogue_knows_is_no_code(files):
    for name in ("smollm2:Own", "gemma3:Own", "4b:x"):
        with pytest.raises(CatalogError):
            launch(files["target"], name)
    with pytest.raises(CatalogError):
        launch(files["target"], r"C:\nowhere\x.gguf")


@pytest.fixture
def notes(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("some text")
    return file


def test_files_to_look_up_bring_lookup_into_play(files, notes, monkeypatch):
    monkeypatch.chdir(notes.parent)
    for draft in (None, "lookup"):
        made = launch(files["target"], draft, lookup=("notes.txt",))
        assert (made.load.draft.kind, made.load.lookup_files, made.draft_name) == (
            "lookup",
            (str(notes),),
            "lookup",
        )
    chained = launch(files["target"], files["draft"], lookup=("notes.txt",))
    assert (chained.load.draft.kind, chained.load.auto, chained.load.lookup_files) == (
        "model",
        True,
        (str(notes),),
    )
    none_before = State(drafts={str(files["target"]): "none"})
    assert launch(files["target"], state=none_before, lookup=("notes.txt",)).load.draft.kind == "lookup"
    unfit = State(drafts={str(files["target"]): str(files["other"])})
    assert launch(files["target"], state=unfit, lookup=("notes.txt",)).load.draft.kind == "lookup"


def test_where_files_are_not_looked_up_a_sentence_says_so(files, notes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_drafts.py").touch()
    for draft, why, more in (
        (files["draft"], "With --n-draft auto each round takes what promises more.", {"n_draft": 4}),
        ("own_drafts:Own", "a drafter of your own drafts alone", {}),
        ("none", "--draft none drafts nothing", {}),
    ):
        made = launch(files["target"], draft, lookup=(str(notes),), **more)
        assert made.load.lookup_files == ()
        assert any("--lookup is not used" in note and why in note for note in made.notes)
    fixed = launch(files["target"], "lookup", lookup=(str(notes),), n_draft=4)
    assert fixed.load.lookup_files == (str(notes),)
    assert fixed.notes == ()


def test_files_that_cannot_be_looked_up_are_refused_before_the_load(files, tmp_path):
    with pytest.raises(UsageError, match="There is no file"):
        launch(files["target"], "lookup", lookup=(str(tmp_path / "gone"),))


def test_the_demo_with_files_chooses_by_price(files, notes):
    put_demo(files)
    made = launch("demo", lookup=(str(notes),))
    assert (made.load.auto, made.load.lookup_files) == (True, (str(notes),))
