"""Engines on tiny models that the tests write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from localspec.llama.context import Context
from localspec.llama.log import NativeLog
from localspec.llama.model import Model
from localspec.spec.draft_chain import ChainDrafter
from localspec.spec.draft_lookup import LookupDrafter
from localspec.spec.draft_model import ModelDrafter
from localspec.spec.engine import Engine
from tests import gguf_files

ARCHITECTURES: dict[str, Callable[..., Path]] = {
    "llama": gguf_files.random_llama,
    "gemma3": gguf_files.random_gemma3,
    "qwen35": gguf_files.random_qwen35,
}


class Bench:
    """Opens models and contexts, and closes them at the end of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stack = ExitStack()
        self.log = NativeLog()
        self.log.install()
        self._models: dict[Path, Model] = {}

    def file(self, arch: str, *, seed: int = 0, **options: Any) -> Path:
        options = {"n_embd": 128, **options}  # heads of 32, which a q8_0 cache can hold
        name = f"{arch}-{seed}-{'-'.join(f'{k}={v}' for k, v in options.items())}.gguf"
        path = self.folder / name
        return path if path.exists() else ARCHITECTURES[arch](path, seed=seed, **options)

    def related(self, path: Path, kind: str) -> Path:
        """A draft for a target: `right` agrees always, `half` often, `wrong` next to never."""
        if kind == "right":
            return path
        if kind == "wrong":
            arch, seed = path.name.split("-")[:2]
            return self.file(arch, seed=int(seed) + 100)
        other = self.folder / f"half-{path.name}"
        noise = {"llama": 0.06, "gemma3": 0.15, "qwen35": 0.02}[path.name.split("-")[0]]
        return other if other.exists() else gguf_files.perturbed(path, other, noise=noise)

    def model(self, path: Path) -> Model:
        if path not in self._models:
            self._models[path] = Model(path, log=self.log)
        return self._models[path]

    def context(self, path: Path, **options: Any) -> Context:
        options = {"n_ctx": 512, "n_batch": 512, "max_outputs": 17, "threads": 1, **options}
        model = self.model(path)
        context = Context(model, log=self.log, **options)
        self.stack.callback(context.close)
        return context

    def engine(
        self,
        path: Path,
        draft: Path | str | None = None,
        n_draft: int = 4,
        *,
        chain: bool = False,
        **options: Any,
    ) -> Engine:
        options.setdefault("snapshots", n_draft if draft else 0)
        context = self.context(path, **options)
        drafter: Any = None
        if draft == "lookup":
            drafter = LookupDrafter()
        elif isinstance(draft, Path):
            shared = {key: options[key] for key in ("n_ctx", "n_batch", "kv_type") if key in options}
            branches = self.model(draft).has_state
            drafter = ModelDrafter(
                self.context(draft, branches=branches, max_outputs=1, **shared),
                name=draft.name,
                n_vocab=context.n_vocab,
            )
        if chain:
            drafter = ChainDrafter(drafter)
        return Engine(context, self.model(path).vocab, drafter=drafter, n_draft=n_draft)

    def close(self) -> None:
        self.stack.close()
        for model in self._models.values():
            model.close()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def bench(model_folder: Path) -> Iterator[Bench]:
    made = Bench(model_folder)
    yield made
    made.close()
