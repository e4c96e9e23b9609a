"""models.toml, every entry of it, and what names lead to."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import pytest

from localspec import paths
from localspec.errors import CatalogError
from localspec.models.catalog import Catalog, load_catalog
from localspec.models.catalog_file import Id, draft_ids
from localspec.models.listing import is_sidecar, quant_word
from tests.gguf_files import header_only

CATALOG = load_catalog()
MODELS = CATALOG.file.models
FAMILIES = CATALOG.file.families
TARGETS = [name for name, model in MODELS.items() if "target" in model.roles]


def resolve(name: str, target: str = "", catalog: Catalog = CATALOG):
    if not target:
        return catalog.resolve(name)
    return catalog.resolve(name, role="draft", target=catalog.resolve(target))


# -------------------------------------------------------------------------------- every entry


@pytest.mark.parametrize("name", MODELS)
def test_entry(name: str) -> None:
    model = MODELS[name]
    assert re.fullmatch(Id, name)
    assert model.family in FAMILIES
    seen = set()
    for source in model.sources:
        assert (source.repo, source.quant.lower()) not in seen
        seen.add((source.repo, source.quant.lower()))
        assert source.files
        for file in source.files:
            assert file.endswith(".gguf")
            assert not is_sidecar(file)
            # The quant word is the one in the name: with it the file is found again after a renaming.
            assert quant_word(file).lower() == source.quant.lower()
        assert source.size is None or 50e6 < source.size < 200e9
    for draft in draft_ids(CATALOG.file, name):
        assert "draft" in MODELS[draft].roles
        assert draft != name
    if "target" in model.roles:
        assert model.draft or model.lookup_only
    assert model.draft is None or model.draft in draft_ids(CATALOG.file, name)


@pytest.mark.parametrize("name", MODELS)
def test_entry_resolves(name: str) -> None:
    ref = resolve(name.upper())
    assert (ref.id, ref.kind, ref.family) == (name, "hub", MODELS[name].family)
    assert ref.quant == MODELS[name].sources[0].quant
    assert {source.quant for source in ref.sources} == {ref.quant}  # never another quant in its place
    for source in MODELS[name].sources:
        other = resolve(f"{name}:{source.quant.lower()}")
        assert other.quant == source.quant
        assert resolve(other.id) == other


@pytest.mark.parametrize("name", TARGETS)
def test_every_size_of_a_target_resolves(name: str) -> None:
    offered = draft_ids(CATALOG.file, name)
    for draft in offered:
        ref = resolve(MODELS[draft].size.upper(), target=name)
        assert MODELS[ref.id].size == MODELS[draft].size
        assert ref.id in offered
    if MODELS[name].draft:
        assert resolve(MODELS[MODELS[name].draft].size, target=name).id == MODELS[name].draft


@pytest.mark.parametrize("name", FAMILIES)
def test_family(name: str) -> None:
    members = [known for known, model in MODELS.items() if model.family == name]
    assert members
    assert FAMILIES[name].match
    assert FAMILIES[name].licence
    for member in members:
        for source in MODELS[member].sources:
            assert resolve(f"{source.repo}:{source.quant}").family == name


def test_the_families_asked_for_are_there() -> None:
    wanted = {
        "qwen3.8",
        "qwen3.6",
        "qwen3.5",
        "qwen3",
        "qwen2.5",
        "qwen2.5-coder",
        "llama3",
        "gemma3",
        "gemma4",
    }
    assert wanted | {"mistral-small", "smollm2"} <= set(FAMILIES)


def test_few_active_parameters_means_lookup() -> None:
    moe = [name for name in MODELS if re.search(r"-a\d+b|gpt-oss|flash|h-small|h-tiny", name)]
    assert len(moe) >= 9
    for name in moe:
        ref = resolve(name)
        assert ref.default_draft is None
        assert ref.lookup_only_reason


def test_withdrawn_files_are_not_listed() -> None:
    for model in MODELS.values():
        for source in model.sources:
            assert not (
                source.repo == "unsloth/Qwen3.8-27B-GGUF" and "Qwen3.8-27B-Q4_K_M.gguf" in source.files
            )
            assert "jukofyork/DeepSeek" not in source.repo


def test_pairs_are_unique_and_untested_ones_are_none() -> None:
    keys = [(pair.target, pair.draft) for pair in CATALOG.file.pairs]
    assert len(keys) == len(set(keys))
    assert CATALOG.pair("qwen3.8-27b", "qwen3.5-4b") is None
    known = CATALOG.pair("qwen3-8b:Q8_0", "qwen3-0.6b:Q4_0")
    assert known is not None
    assert known.result == "faster"


# -------------------------------------------------------------------------------------- names


def test_the_command_of_the_readme() -> None:
    target = resolve("qwen3.8-27b")
    draft = resolve("4b", target="qwen3.8-27b")
    assert (target.repo, target.files) == ("ggml-org/Qwen3.8-27B-GGUF", ("Qwen3.8-27B-Q4_K_M.gguf",))
    assert (draft.id, draft.repo) == ("qwen3.5-4b", "unsloth/Qwen3.5-4B-GGUF")
    assert target.default_draft == "qwen3.5-4b"


@pytest.mark.parametrize(
    ("file", "family", "draft"),
    [
        ("Qwen3.8-27B-UD-Q4_K_M.gguf", "qwen3.8", "qwen3.5-4b"),
        ("my_Qwen3.8_27B_tuned.gguf", "qwen3.8", "qwen3.5-4b"),
        ("Qwen3-4B-Instruct-2507-Q4_K_M.gguf", "qwen3", None),
        ("Meta-Llama-3.1-8B-Instruct-Q8_0.gguf", "llama3", None),
    ],
)
def test_path_finds_its_family(tmp_path: Path, file: str, family: str, draft: str | None) -> None:
    path = header_only(tmp_path / file)
    ref = CATALOG.resolve(str(path))
    assert (ref.kind, ref.path, ref.family) == ("path", path, family)
    if draft:
        assert CATALOG.resolve("4b", role="draft", target=ref).id == draft
        assert ref.default_draft == draft


def test_renamed_file_is_known_by_its_header(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Qwen3 14B")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ref = CATALOG.resolve(str(path))
    assert ref.family == ""
    assert CATALOG.resolve("0.6b", role="draft", target=ref).id == "qwen3-0.6b"


def test_size_for_a_file_of_no_known_family(tmp_path: Path) -> None:
    ref = CATALOG.resolve(str(header_only(tmp_path / "strange.gguf")))
    with pytest.raises(CatalogError, match="no draft of size 4b") as caught:
        CATALOG.resolve("4b", role="draft", target=ref)
    assert "--draft lookup" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "branch", "hint"),
    [
        ("https://huggingface.co/o/R/blob/v2/F.gguf", "v2", "o/R:F.gguf"),
        ("https://hf.co/o/R/resolve/refs%2Fpr%2F3/a%20b.gguf", "refs/pr/3", "'o/R:a b.gguf'"),
        ("https://huggingface.co/o/R/tree/v2", "v2", "o/R"),
        ("o/R@v2", "v2", "o/R"),
    ],
)
def test_another_branch_is_never_taken_for_the_main_one(name: str, branch: str, hint: str) -> None:
    with pytest.raises(CatalogError, match=f"main branch .* this is {branch}") as caught:
        resolve(name)
    assert caught.value.hint == f"localspec pull {hint}"


@pytest.mark.parametrize(
    ("name", "identity", "repo", "quant"),
    [
        ("owner/Repo-GGUF", "owner/Repo-GGUF", "owner/Repo-GGUF", ""),
        ("owner/Repo:q4_k_m", "owner/Repo:q4_k_m", "owner/Repo", "q4_k_m"),
        (
            "owner/Repo:sub/File-Q4_0.gguf",
            "owner/Repo:sub/File-Q4_0.gguf",
            "owner/Repo",
            "sub/File-Q4_0.gguf",
        ),
        ("https://huggingface.co/owner/Repo", "owner/Repo", "owner/Repo", ""),
        ("https://huggingface.co/owner/Repo/tree/main", "owner/Repo", "owner/Repo", ""),
        ("hf.co/owner/Repo:Q8_0", "owner/Repo:Q8_0", "owner/Repo", "Q8_0"),
        ("https://hf.co/o/R/resolve/main/a%20b/F.gguf?download=true", "o/R:a b/F.gguf", "o/R", "a b/F.gguf"),
        ("https://huggingface.co/o/R/tree/main/UD-Q4_K_M", "o/R:UD-Q4_K_M", "o/R", "UD-Q4_K_M"),
        ("o/R:A+(B) [x], é=1.gguf", "o/R:A+(B) [x], é=1.gguf", "o/R", "A+(B) [x], é=1.gguf"),
    ],
)
def test_repository(name: str, identity: str, repo: str, quant: str) -> None:
    ref = resolve(name)
    assert (ref.kind, ref.id, ref.repo, ref.quant, ref.path) == ("hub", identity, repo, quant, None)
    assert resolve(ref.id) == ref


def test_file_before_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    header_only(tmp_path / "owner" / "model.gguf")
    ref = resolve("owner/model.gguf")
    assert ref.kind == "path"
    assert ref.path == tmp_path / "owner" / "model.gguf"
    assert Path(ref.id).is_absolute()  # still the same model from another folder


def test_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    file = header_only(tmp_path / "model.gguf")
    assert resolve("~/model.gguf").path == file


def test_demo() -> None:
    target = resolve("Demo")
    assert (target.id, target.kind, target.role, target.default_draft) == (
        "demo",
        "demo",
        "target",
        "demo-draft",
    )
    assert target.path is None
    draft = resolve("demo-draft", target="demo")
    assert (draft.id, draft.role) == ("demo-draft", "draft")
    assert resolve("demo-draft").role == "draft"


def test_another_quant_of_the_same_repositories() -> None:
    ref = resolve("qwen3-8b:q6_k")
    assert (ref.repo, ref.quant, ref.files) == ("Qwen/Qwen3-8B-GGUF", "q6_k", ())


def test_family_and_size_as_others_write_it() -> None:
    assert resolve("qwen3:8b").id == "qwen3-8b"


@pytest.mark.parametrize(
    ("name", "message", "says"),
    [
        ("qwen3.8-72b", "no model called qwen3.8-72b", "qwen3.8-27b"),
        ("gema3-4b", "no model called", "gemma3-4b"),
        ("qwen3.8", "is a family", "qwen3.8-27b"),
        ("xyz", "no model called xyz", "no id of the catalogue"),
        ("4b", "alone does not say which family", "qwen3.5-4b"),
        ("", "No model was named", "empty"),
        ("./nothing.gguf", "no file ./nothing.gguf", "nothing is there"),
        ("a/b/c.gguf", "no file", "owner/repo:file.gguf"),
        ("C:\\models\\x.gguf", "no file", "path"),
        ("x\0y", "no model called x\\x00y", ""),
        ("[/red]\x1b[2J", "\\x1b[2J", ""),
        ("a" * 5000, "no model called", ""),
        ("~nobody-here/x.gguf", "no file", ""),
    ],
)
def test_unknown_names(name: str, message: str, says: str) -> None:
    with pytest.raises(CatalogError) as caught:
        resolve(name)
    assert message in caught.value.message
    assert says in caught.value.why
    assert caught.value.hint
    assert "\x1b" not in caught.value.message


def test_wrong_size_lists_what_there_is() -> None:
    with pytest.raises(CatalogError, match=r"no draft of size 7b for qwen3\.8-27b") as caught:
        resolve("7b", target="qwen3.8-27b")
    assert "4b (qwen3.5-4b)" in caught.value.why


def test_folder_and_near_files(tmp_path: Path) -> None:
    header_only(tmp_path / "Qwen3-8B-Q4_K_M.gguf")
    with pytest.raises(CatalogError, match="is a folder") as caught:
        resolve(str(tmp_path))
    assert "Qwen3-8B-Q4_K_M.gguf" in caught.value.hint
    with pytest.raises(CatalogError, match="There is no file") as caught:
        resolve(str(tmp_path / "Qwen3-8B-Q4_K_S.gguf"))
    assert "Qwen3-8B-Q4_K_M.gguf" in caught.value.why


# ------------------------------------------------------------------- the person's own file

OWN = """
[families.mine]
name = "Mine"

[models."mine-7b"]
family = "mine"
size = "7b"
draft = "mine-1b"
sources = [{ repo = "me/Mine-7B", quant = "Q4_0", files = ["mine.gguf"] }]

[models."mine-1b"]
family = "mine"
size = "1b"
roles = ["draft"]
sources = [{ repo = "me/Mine-1B", quant = "Q4_0", files = ["mine-1b.gguf"] }]

[models."qwen3-8b"]
family = "qwen3"
size = "8b"
draft = "mine-1b"
sources = [{ repo = "me/Better-8B", quant = "Q5_0", files = ["b.gguf"] }]

[[pairs]]
target = "qwen3-14b"
draft = "qwen3-0.6b"
result = "slower"
note = "here"
"""


def own(text: str) -> Catalog:
    file = paths.user_models_file()
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8-sig")  # as some editors do
    return load_catalog()


def test_own_entries_add_and_replace() -> None:
    catalog = own(OWN)
    assert catalog.problem is None
    assert resolve("mine-7b", catalog=catalog).repo == "me/Mine-7B"
    assert resolve("1b", "mine-7b", catalog).id == "mine-1b"
    assert resolve("qwen3-8b", catalog=catalog).repo == "me/Better-8B"
    assert resolve("qwen3-14b", catalog=catalog).repo == "Qwen/Qwen3-14B-GGUF"
    pair = catalog.pair("qwen3-14b", "qwen3-0.6b")
    assert pair is not None
    assert (pair.result, pair.note) == ("slower", "here")


MODEL = '[models."x-1b"]\nfamily = "qwen3"\nsize = "1b"\nlookup_only = "no"\n'
SOURCE = 'sources = [{ repo = "a/b", quant = "Q4_0", files = ["x.gguf"] }]\n'


@pytest.mark.parametrize(
    ("text", "line", "entry", "field"),
    [
        ("models = [", "at end of document", "TOML", ""),
        (MODEL + "colour = 3\n" + SOURCE, "line 5", "models.x-1b", "colour: there is no such field"),
        (MODEL, "line 1", "models.x-1b", "sources: field required"),
        (MODEL + SOURCE.replace("a/b", "ab"), "line 5", "models.x-1b", "sources.0.repo"),
        (
            MODEL + SOURCE.replace("files", "file"),
            "line 5",
            "models.x-1b",
            "sources.0.file: there is no such field",
        ),
        (MODEL + SOURCE.replace('"Q4_0"', "4"), "line 5", "models.x-1b", "sources.0.quant"),
        (
            MODEL.replace('"qwen3"', '"qwen33"') + SOURCE,
            "line 2",
            "models.x-1b",
            "family: there is no family",
        ),
        (
            MODEL.replace("lookup_only", "draft") + SOURCE,
            "line 4",
            "models.x-1b",
            "draft: there is no model 'no'",
        ),
        (MODEL + 'draft = "qwen3-0.6b"\n' + SOURCE, "line 1", "models.x-1b", "not both"),
        (
            "\n[[pairs]]\ntarget = 'qwen3-8b'\ndraft = 'no'\nresult = 'faster'\n",
            "line 4",
            "pairs.0",
            "draft: there",
        ),
        ("[families.Big]\nname = 'x'\n", "line 1", "families.Big", "may only have small letters"),
        (MODEL.replace("x-1b", "demo") + SOURCE, "line 1", "models.demo", "means something else already"),
        (
            MODEL.replace('lookup_only = "no"', 'draft = "x-1b"') + SOURCE,
            "line 4",
            "models.x-1b",
            "draft: a model cannot draft for itself",
        ),
        (
            MODEL
            + "[[models.x-1b.sources]]\nrepo = 'a/b'\nquant = 'Q4_0'\n[[models.x-1b.sources]]\nrepo = 'ab'\n"
            "quant = 'Q4_0'\n",
            "line 9",
            "models.x-1b",
            "sources.1.repo: it has to look like owner/name",
        ),
        ("\n\nx = = 3\n", "at line 3", "TOML", ""),
        ("[modles]\n", "line 1", "modles", "no such field"),
    ],
)
def test_broken_own_file(text: str, line: str, entry: str, field: str, tmp_path: Path) -> None:
    catalog = own(text)
    assert catalog.problem is not None
    said = f"{catalog.problem.message} {catalog.problem.why}"
    assert str(paths.user_models_file()) in said
    for part in (line, entry, field):
        assert part in said
    # Names could mean theirs; paths and repositories cannot.
    with pytest.raises(CatalogError) as caught:
        catalog.resolve("qwen3-8b")
    assert caught.value is catalog.problem
    file = header_only(tmp_path / "Qwen3-8B-Q4_K_M.gguf")
    assert catalog.resolve(str(file)).path == file
    assert catalog.resolve("owner/repo").kind == "hub"
    assert catalog.resolve("demo").kind == "demo"
