"""From what a person types to a model: a path, an id of the catalogue, a size, a repository, the demo."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from localspec import paths
from localspec.errors import CatalogError, ModelFileError
from localspec.models.catalog_file import CatalogFile, Model, Pair, draft_ids, family_value, read_file
from localspec.models.gguf import read_header
from localspec.models.listing import quant_word
from localspec.models.ref import ModelRef, Role, Source
from localspec.models.text import printable, shell_word, shown

_HUB = re.compile(r"^(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*?)(?::(?P<quant>[^\x00-\x1f\x7f:\\]+))?$")
_URL = re.compile(r"^(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/|^hf://(?:models/)?", re.IGNORECASE)
_URL_PLACE = re.compile(
    r"^(?P<repo>[^/]+/[^/]+)/(?P<what>resolve|blob|raw|tree)/(?P<branch>[^/?#]+)(?:/(?P<file>[^?#]+))?"
)
_PATHLIKE = re.compile(r"^[./~\\]|^[A-Za-z]:[\\/]|\\|/.*/|\.gguf$", re.IGNORECASE)


@dataclass(frozen=True)
class Catalog:
    """Our families and models with the person's own on top."""

    file: CatalogFile
    problem: CatalogError | None = None
    """What is wrong with the person's own models.toml; its entries are left out then."""

    def resolve(self, name: str, *, role: Role = "target", target: ModelRef | None = None) -> ModelRef:
        """The model that a name means.

        Args:
            name: A path, an id (`qwen3-8b`, `qwen3-8b:q8_0`), a size in the family of the target (`4b`), a
                repository (`owner/repo`, `owner/repo:q4_k_m`, `owner/repo:file.gguf`, its address), `demo` or
                `demo-draft`.
            role: What it is wanted for.
            target: The target, for a draft that is named by its size.

        Raises:
            CatalogError: Nothing or several things are meant; names the near ones. Also a broken models.toml
                of the person's own, when the name could be one of its.
        """
        name = name.strip()
        if not name:
            raise CatalogError("No model was named.", why="The name is empty.", hint="localspec models")
        if name.lower() in ("demo", "demo-draft"):
            return _demo("draft" if name.lower() == "demo-draft" else role)
        if (url := _URL.match(name)) is not None:
            return self._hub(_without_address(name[url.end() :]), role)
        file = _local(name)
        if file.is_file():
            return self._path(file, role)
        if _HUB.match(name) and not name.startswith("."):
            if file.is_dir():
                raise _is_folder(file)
            if "/" in name and not (name.lower().endswith(".gguf") and ":" not in name):
                return self._hub(name, role)
        plain, at, branch = name.partition("@")
        if at and "/" in plain and _HUB.match(plain):
            raise _other_branch(plain, branch)
        if _PATHLIKE.search(name) or file.is_dir():
            raise _is_folder(file) if file.is_dir() else _no_file(name, file)
        if self.problem is not None:
            raise self.problem
        return self._named(name, role, target)

    def knows(self, name: str) -> bool:
        """Whether the part before a colon is a model, a family or a size here."""
        word = name.strip().lower().partition(":")[0]
        known = {"demo", "demo-draft", *self.file.models, *self.file.families}
        return word in known or any(word == model.size for model in self.file.models.values())

    def pair(self, target: str, draft: str) -> Pair | None:
        """What was reported of a pair of ids, whatever their quants. None = untested."""
        key = (target.partition(":")[0], draft.partition(":")[0])
        return next((pair for pair in self.file.pairs if (pair.target, pair.draft) == key), None)

    def refs(self) -> Iterator[tuple[Model, ModelRef]]:
        """Every model of the catalogue with its default quant, in the order of the file."""
        for name, model in self.file.models.items():
            yield model, self._model(name, "", model.roles[0])

    # ----------------------------------------------------------------------------------------- the five kinds

    def _named(self, name: str, role: Role, target: ModelRef | None) -> ModelRef:
        word, _, quant = name.lower().partition(":")
        if word in self.file.models:
            return self._model(word, quant, role)
        if word in self.file.families and quant:  # `qwen3:8b`, as others write it
            for known, model in self.file.models.items():
                if model.family == word and model.size == quant:
                    return self._model(known, "", role)
        sizes = {model.size for model in self.file.models.values()}
        if word in sizes or re.fullmatch(r"[a-z]?\d+(?:\.\d+)?[bm]", word):
            return self._sized(word, quant, role, target)
        raise self._unknown(name)

    def _sized(self, size: str, quant: str, role: Role, target: ModelRef | None) -> ModelRef:
        if role != "draft" or target is None:
            known = [name for name, model in self.file.models.items() if model.size == size]
            raise CatalogError(
                f"{printable(size)} alone does not say which family.",
                why=f"Models of that size: {', '.join(known)}."
                if known
                else "A size by itself names a draft only.",
                hint=f"localspec run {known[0]}" if known else "localspec models",
            )
        offered = self._offered(target)
        for name in offered:
            if self.file.models[name].size == size:
                return self._model(name, quant, role)
        if not offered:
            raise CatalogError(
                f"There is no draft of size {printable(size)} for {printable(_short(target))}.",
                why=target.lookup_only_reason or "The catalogue does not know its family.",
                hint=f"localspec run {shell_word(target.id)} --draft lookup",
            )
        listed = ", ".join(f"{self.file.models[name].size} ({name})" for name in offered)
        raise CatalogError(
            f"There is no draft of size {printable(size)} for {printable(_short(target))}.",
            why=f"On offer: {listed}.",
            hint=f"localspec run {shell_word(target.id)} --draft {self.file.models[offered[0]].size}",
        )

    def _offered(self, target: ModelRef) -> list[str]:
        """Drafts for a target, those it names first, then its family's."""
        family = target.family or self._family_in_header(target)
        offered = list(target.drafts)
        if family in self.file.families:
            offered += self.file.families[family].drafts
            offered += [n for n, m in self.file.models.items() if m.family == family and "draft" in m.roles]
        own = target.id.partition(":")[0]
        return [name for name in dict.fromkeys(offered) if name in self.file.models and name != own]

    def _family_in_header(self, target: ModelRef) -> str:
        """A renamed file still says in its header what it is."""
        if target.path is None:
            return ""
        try:
            header = read_header(target.path)
        except ModelFileError:
            return ""
        return self._recognise(header.name)[0]

    def _model(self, name: str, quant: str, role: Role) -> ModelRef:
        model = self.file.models[name]
        wanted = quant or model.sources[0].quant
        sources = tuple(source for source in model.sources if _same(source.quant, wanted))
        if not sources:  # not in the catalogue, but perhaps in the same repositories
            repos = dict.fromkeys(source.repo for source in model.sources)
            sources = tuple(Source(repo=repo, quant=wanted, confirmed=False) for repo in repos)
        default = _same(wanted, model.sources[0].quant)
        family = self.file.families[model.family]
        notes = [model.notes, family.notes, *self._facts(sources[0])]
        return ModelRef(
            id=name if default else f"{name}:{sources[0].quant}",
            kind="hub",
            role=role,
            family=model.family,
            size=model.size,
            sources=sources,
            default_draft=model.draft,
            drafts=draft_ids(self.file, name),
            lookup_only_reason=model.lookup_only,
            thinking=family_value(self.file, model, "thinking"),
            notes=tuple(note for note in notes if note),
        )

    @staticmethod
    def _facts(source: Source) -> list[str]:
        found = ["The file carries a next-token-prediction block."] if source.mtp else []
        if not source.confirmed:
            found.append(
                "The file's name follows its publisher's pattern and is looked up in the repository."
            )
        return found

    def _hub(self, name: str, role: Role) -> ModelRef:
        found = _HUB.match(name)
        if found is None:
            raise CatalogError(
                f"{printable(name)} is no repository of the hub.",
                why="Its names look like owner/repo, with :quant or :file.gguf behind if wanted.",
                hint="localspec models",
            )
        repo, quant = found["repo"], found["quant"] or ""
        ref = ModelRef(id=name, kind="hub", role=role, sources=(Source(repo=repo, quant=quant),))
        return self._with_family(ref, repo.partition("/")[2])

    def _path(self, file: Path, role: Role) -> ModelRef:
        ref = ModelRef(id=str(file.absolute()), kind="path", role=role, location=file.absolute())
        return self._with_family(ref, file.name)

    def _with_family(self, ref: ModelRef, name: str) -> ModelRef:
        """What the catalogue knows about a model with such a name."""
        family, known = self._recognise(name)
        if not known:
            return replace(ref, family=family)
        model = self._model(known, "", ref.role)
        return replace(
            ref,
            family=family,
            size=model.size,
            default_draft=model.default_draft,
            drafts=model.drafts,
            lookup_only_reason=model.lookup_only_reason,
            thinking=model.thinking,
        )

    def _recognise(self, name: str) -> tuple[str, str]:
        """Family and model that a file's or repository's name speaks of (the longest match), or empty."""
        plain = _plain(name)
        model, length = "", 0
        for known, entry in self.file.models.items():
            for key in _keys(known, entry):
                if len(key) > length and _within(key, plain):
                    model, length = known, len(key)
        if model:
            return self.file.models[model].family, model
        family, length = "", 0
        for known, group in self.file.families.items():
            for key in group.match:
                if len(key) > length and plain.find(key) >= 0:
                    family, length = known, len(key)
        return family, ""

    def _unknown(self, name: str) -> CatalogError:
        word = name.lower().partition(":")[0]
        names = [*self.file.models, *self.file.families, "demo"]
        near = difflib.get_close_matches(word, names, n=4, cutoff=0.55)
        family = (
            word
            if word in self.file.families
            else next((f for f in self.file.families if word.startswith(f)), "")
        )
        if not family and near:
            family = self.file.models[near[0]].family if near[0] in self.file.models else near[0]
        members = [n for n, m in self.file.models.items() if m.family == family]
        near = [n for n in near if n not in self.file.families]
        why = f"Near: {', '.join(near)}." if near else ""
        rest = [n for n in members if n not in near]
        if rest:
            why += f" {self.file.families[family].name}: {', '.join(rest)}."
        return CatalogError(
            f"{printable(name)} is a family: which one of it?"
            if word in self.file.families
            else f"There is no model called {printable(name)}.",
            why=why.strip() or "It is no id of the catalogue, no file here and no owner/repo.",
            hint="localspec models",
        )


def load_catalog(user_file: Path | None = None) -> Catalog:
    """Our models.toml and the person's own.

    Args:
        user_file: In place of the one in the config folder.

    Returns:
        The catalogue. A broken file of the person's own does not stop it: it is kept as `problem`, which is
        raised when a name of the catalogue is looked up, since that name could be theirs. Paths and
        repositories go on working.
    """
    ours = read_file(paths.catalog_file())
    own = user_file if user_file is not None else paths.user_models_file()
    try:
        there = own.is_file()
    except OSError as error:
        why = f"{error.strerror or error}."
        problem = CatalogError(f"{own} cannot be read.", why=why, hint=f"ls -l {shell_word(own)}")
        return Catalog(ours, problem)
    if not there:
        return Catalog(ours)
    try:
        return Catalog(read_file(own, base=ours))
    except CatalogError as problem:
        return Catalog(ours, problem)


def _demo(role: Role) -> ModelRef:
    target = role == "target"
    return ModelRef(
        id="demo" if target else "demo-draft",
        kind="demo",
        role=role,
        family="smollm2",
        size="135m",
        default_draft="demo-draft" if target else None,
        thinking="none",
        notes=(
            "A very small model, about as fast as its draft: drafting seldom pays. --n-draft 4 shows how it works.",
        ),
    )


def _local(name: str) -> Path:
    try:
        file = Path(name).expanduser()
        file.is_file()
    except (OSError, RuntimeError, ValueError):  # a name too long, a user that does not exist, a NUL
        return Path("no such file")
    return file


def _without_address(rest: str) -> str:
    """`owner/repo`, with `:file` where the address leads to one."""
    if (place := _URL_PLACE.match(rest)) is not None:
        repo, file = unquote(place["repo"]), unquote(place["file"] or "")
        if place["what"] == "tree":  # a folder, which is often named after the quant in it
            file = file.rstrip("/").rpartition("/")[2]
        name = f"{repo}:{file}" if file else repo
        if place["branch"] != "main":
            raise _other_branch(name, unquote(place["branch"]))
        return name
    parts = unquote(rest).split("?")[0].split("#")[0].rstrip("/").split("/")
    return "/".join(parts[:2])


def _other_branch(name: str, branch: str) -> CatalogError:
    return CatalogError(
        f"localspec takes the main branch of a repository, and this is {printable(branch)}.",
        why="What main holds may be another file.",
        hint=f"localspec pull {shell_word(name)}",
    )


def _no_file(name: str, file: Path) -> CatalogError:
    near: list[str] = []
    if file.parent.is_dir():
        here = [other.name for other in file.parent.iterdir() if other.suffix.lower() == ".gguf"]
        near = difflib.get_close_matches(file.name, here, n=3, cutoff=0.4) or sorted(here)[:3]
    parts = name.split("/")
    if near:
        why, hint = f"In that folder: {', '.join(map(printable, near))}.", f"ls {shell_word(file.parent)}"
    elif len(parts) >= 3 and _HUB.match("/".join(parts[:2])):
        repo = f"{parts[0]}/{parts[1]}:{'/'.join(parts[2:])}"
        why, hint = (
            "A file of a repository is named owner/repo:file.gguf.",
            f"localspec pull {shell_word(repo)}",
        )
    else:
        why, hint = "It looks like a path, but nothing is there.", f"ls {shell_word(file.parent)}"
    return CatalogError(f"There is no file {printable(name)}.", why=why, hint=hint)


def _is_folder(folder: Path) -> CatalogError:
    here = sorted(file.name for file in folder.iterdir() if file.suffix.lower() == ".gguf")
    if here:
        why, hint = (
            f"It holds: {', '.join(map(printable, here[:5]))}.",
            f"localspec run {shell_word(folder / here[0])}",
        )
    else:
        why, hint = "There is no GGUF file in it.", "localspec models"
    return CatalogError(f"{shown(folder)} is a folder, not a model.", why=why, hint=hint)


def _short(ref: ModelRef) -> str:
    return ref.location.name if ref.location is not None else ref.id


def _same(quant: str, other: str) -> bool:
    return re.sub(r"[-_.]", "_", quant.lower()) == re.sub(r"[-_.]", "_", other.lower())


def _plain(name: str) -> str:
    return re.sub(r"[_\s]+", "-", name.lower().removesuffix(".gguf"))


def _keys(name: str, model: Model) -> Iterator[str]:
    """How a model is called: its id, its files without quant, its repositories."""
    yield name
    for source in model.sources:
        yield re.sub(r"-gguf$", "", _plain(source.repo.partition("/")[2]))
        for file in source.files:
            stem = re.sub(r"-\d{5}-of-\d{5}$", "", _plain(file.rpartition("/")[2]))
            word = _plain(quant_word(file))
            yield stem.removesuffix(word).rstrip("-.") if word else stem


def _within(key: str, name: str) -> bool:
    return re.search(rf"(?:^|[-./]){re.escape(key)}(?:$|[-./])", name) is not None
