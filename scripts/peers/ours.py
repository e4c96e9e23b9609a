"""localspec as a person gets it: the engine in its own process."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from localspec.errors import LocalspecError
from localspec.measure.answers import full_length, load_pair
from localspec.options import AUTO_N_DRAFT
from localspec.spec.draft_lookup import FILES, LookupDrafter
from localspec.spec.events import Finished, Round, Sampling
from localspec.spec.stats import Stats
from localspec.worker.process import Worker
from localspec.worker.protocol import Configure, DraftSpec, Load, MeasureCosts
from scripts.peers.answers import Answer, Asked, Mark, Prices

LONGEST_FIXED = 16
_FREE = {LookupDrafter.name, FILES}


class Ours:
    """One loaded pair.

    Args:
        target: The target's file.
        draft: The draft's file, `lookup`, or empty.
        auto: Draft lengths by price: the default of `localspec run`.
        chained: With `auto`, lookup drafts too, as it does by default; False leaves the draft model alone.
        n_ctx: Size of the context.
        threads: Threads that compute.
    """

    def __init__(
        self,
        target: Path,
        draft: Path | str,
        *,
        auto: bool,
        n_ctx: int,
        threads: int,
        chained: bool = True,
    ) -> None:
        spec = DraftSpec()
        if draft:
            spec = DraftSpec("lookup") if draft == "lookup" else DraftSpec("model", path=str(draft))
        self._load = Load(
            str(target),
            draft=spec,
            n_draft=AUTO_N_DRAFT if auto and chained else LONGEST_FIXED,
            auto=auto and chained,
            n_ctx=n_ctx,
            threads=threads,
        )
        # What is learned about prices is kept in this folder and nowhere else, so that each measurement starts with
        # what it says it starts with.
        self._home = Path(tempfile.mkdtemp(prefix="localspec-peers-"))
        self._profile: Path | None = None
        self._alone = auto and not chained  # what was loaded with a fixed length is chained with nothing
        self._worker = self._start()

    def __enter__(self) -> Ours:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.close()
        shutil.rmtree(self._home, ignore_errors=True)
        if self._profile is not None:
            shutil.rmtree(self._profile, ignore_errors=True)

    def forget(self) -> None:
        """Begin like a first use: no prices are known, nothing was learned."""
        self._worker.close()
        shutil.rmtree(self._home, ignore_errors=True)
        self._worker = self._start()

    def keep_profile(self) -> None:
        """Let every `renew` begin with what was learned so far."""
        self._worker.close()  # by then it is written
        self._profile = Path(tempfile.mkdtemp(prefix="localspec-peers-"))
        shutil.copytree(self._home, self._profile, dirs_exist_ok=True)
        self._worker = self._start()

    def renew(self) -> None:
        """Begin with the profile that was kept, so that an answer learns nothing from another that is measured."""
        if self._profile is None:
            return
        self._worker.close()
        shutil.rmtree(self._home, ignore_errors=True)
        shutil.copytree(self._profile, self._home)
        self._worker = self._start()

    def ask(
        self, asked: Asked, sampling: Sampling, tokens: int, *, length: int | None = None, plain: bool = False
    ) -> Answer:
        """An answer of this many tokens from empty caches.

        Args:
            asked: The prompt.
            sampling: How tokens are chosen.
            tokens: Tokens of the answer; an end of generation is passed over.
            length: A fixed draft length; None leaves it as it was loaded.
            plain: Without a draft.

        Raises:
            LocalspecError: It failed, or the engine read another prompt than the other programs.
        """
        worker = self._worker
        if self._load.draft.kind != "none":
            worker.configure(Configure(draft_on=not plain))
            if length is not None:
                worker.configure(Configure(n_draft=length, auto=False))
        worker.clear()
        rounds: list[Round] = []
        finished: Finished | None = None
        for event in worker.generate(full_length(asked.prompt, sampling, tokens, None)):
            if isinstance(event, Round):
                rounds.append(event)
            elif isinstance(event, Finished):
                finished = event
        assert finished is not None
        if finished.stats.prompt_tokens != len(asked.ids):
            raise LocalspecError(
                f"localspec read {finished.stats.prompt_tokens} tokens of prompt, the others get {len(asked.ids)}."
            )
        return to_answer(rounds, finished)

    def prices(self, found: Prices, depth: int, seconds: float) -> None:
        """Time the parts of a round at this depth, and note it."""
        sizes = (*range(1, 10), 12, 16, 17, *((32,) if self._load.auto else ()))
        costs = self._worker.costs(MeasureCosts(sizes, depth=depth, seconds=seconds, passes=2))
        found.add(costs.verify, None if self._load.draft.kind == "lookup" else costs.draft_step_s)

    def _start(self) -> Worker:
        before = os.environ.get("LOCALSPEC_HOME")
        os.environ["LOCALSPEC_HOME"] = str(self._home)  # the child takes it over
        try:
            worker = Worker(log_file=self._home / "engine.log")
            ready = load_pair(worker, replace(self._load), lambda event: None)
        finally:
            if before is None:
                del os.environ["LOCALSPEC_HOME"]
            else:
                os.environ["LOCALSPEC_HOME"] = before
        if self._load.draft.kind != "none" and ready.draft.state != "on":
            worker.close()
            raise LocalspecError(f"localspec does not draft: {ready.draft.reason}.")
        if self._alone:
            worker.configure(Configure(n_draft=LONGEST_FIXED, auto=True))
        return worker


def to_answer(rounds: list[Round], finished: Finished) -> Answer:
    """The counters from the first token on: a round counts whole, as it does in `decode_s`."""
    stats = finished.stats
    lengths: dict[int, int] = {}
    for before, after in itertools.pairwise([None, *rounds]):
        assert after is not None
        drafted = after.stats.drafted - (before.stats.drafted if before else 0)
        new = after.stats.rounds - (before.stats.rounds if before else 0)
        if new:
            lengths[drafted] = lengths.get(drafted, 0) + new
    return Answer(
        tokens=stats.completion_tokens,
        seconds=stats.decode_s,
        drafted=stats.drafted,
        accepted=stats.accepted,
        lengths=lengths,
        free=_free(stats),
        marks=tuple(
            Mark(one.stats.completion_tokens, one.stats.decode_s, one.stats.drafted, _free(one.stats))
            for one in rounds
        ),
        ids=tuple(finished.token_ids),
        text=finished.text,
    )


def _free(stats: Stats) -> int:
    """Tokens that no model drafted."""
    return sum(source.drafted for name, source in stats.by_source.items() if name in _FREE)
