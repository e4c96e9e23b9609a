"""What the property tests play with: a target with every drafter beside it, a plain twin, and faults on call."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from localspec.errors import DecodeError
from localspec.llama.context import Context
from localspec.llama.log import NativeLog
from localspec.llama.model import Model
from localspec.llama.mtp import NextTokenBlock
from localspec.spec.curve import Costs
from localspec.spec.draft_chain import ChainDrafter
from localspec.spec.draft_lookup import LookupDrafter
from localspec.spec.draft_model import ModelDrafter
from localspec.spec.draft_mtp import MtpDrafter
from localspec.spec.draft_overlap import OverlapDrafter
from localspec.spec.drafter import Draft, Drafter, GoOn, always
from localspec.spec.engine import Engine, Request
from localspec.spec.events import EngineEvent, Finished
from localspec.spec.length import Label, LengthPolicy
from localspec.spec.sampling import Sampler
from tests import gguf_files

N_CTX, SMALL_CTX, LONGEST = 160, 96, 8
TARGETS: dict[str, Callable[..., Path]] = {
    "llama": gguf_files.random_llama,
    "gemma3": gguf_files.random_gemma3,  # a sliding window of 32
    "qwen35": gguf_files.random_qwen35,  # a state that goes back a few tokens only, and a next-token block
    "glm4moe": gguf_files.random_glm4moe,  # experts, attention only, and a next-token block
}
NOISE = {"llama": 0.06, "gemma3": 0.15, "qwen35": 0.02, "glm4moe": 0.05}
HAS_BLOCK = ("qwen35", "glm4moe")
PRICES: dict[str, tuple[dict[int, float], float]] = {  # seconds of batches, and of a draft step
    "cheap": ({1: 1e-3, 2: 1.01e-3, 17: 1.1e-3}, 1e-5),
    "stairs": ({1: 1e-3, 2: 2e-3, 4: 1.9e-3, 8: 3e-3, 17: 6e-3}, 1e-4),
    "dear": ({1: 1e-3, 17: 2e-2}, 9e-4),
}
TIE = 3e-2
"""Below such a margin of the perturbed scores, rounding may choose: between batches of 1 and of 5 tokens a logit was
seen to move by 0.007, which is 0.01 at temperature 0.7."""


class Broken(Exception):  # it is no error of ours
    """What a drafter of somebody else's may raise."""


class Odd(Drafter):
    """A foreign drafter that proposes anything, ids that do not exist among them, and can be made to fail."""

    name = "odd"

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.raised = 0

    def begin(self, ids: Sequence[int], *, cancelled: Callable[[], bool] = lambda: False) -> None:
        """Nothing to read."""

    def draft(self, ids: Sequence[int], k: int, sampler: Sampler, go_on: GoOn = always) -> Draft:
        error, self.error = self.error, None
        if error is not None:
            self.raised += 1
            raise error
        state = sum(ids[-3:]) + len(ids)
        tokens = [3 + (state * 31 + 7 * i) % 297 for i in range(state % (k + 2))]
        if state % 11 == 0:
            tokens.insert(len(tokens) // 2, (-1, 300, 10**9)[state % 3])
        return Draft(tuple(tokens))


class Relay(Drafter):
    """One of several drafters, another one at any moment; those that were asked in this conversation follow it."""

    def __init__(self, drafters: dict[str, Drafter]) -> None:
        self.drafters = drafters
        self.current = next(iter(drafters))
        self._follow: set[str] = set()

    @property
    def now(self) -> Drafter:
        return self.drafters[self.current]

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.now.name

    @property
    def free(self) -> bool:  # type: ignore[override]
        return self.now.free

    @property
    def off_reason(self) -> str:
        return self.now.off_reason

    def reach(self, *args: Any) -> int:
        return self.now.reach(*args)

    def expect(self, ids: Sequence[int], anchors: Sequence[int]) -> None:
        for drafter in self.drafters.values():
            drafter.expect(ids, anchors)

    def rest(self) -> None:
        for drafter in self.drafters.values():
            drafter.rest()

    def bind(self, policy: LengthPolicy) -> None:
        for drafter in self.drafters.values():
            drafter.bind(policy)

    def begin(self, ids: Sequence[int], *, cancelled: Callable[[], bool] = lambda: False) -> None:
        self._follow = set()
        self._show(ids, cancelled)

    def draft(self, ids: Sequence[int], k: int, sampler: Sampler, go_on: GoOn = always) -> Draft:
        self._show(ids)
        return self.now.draft(ids, k, sampler, go_on)

    def shadow(self, ids: Sequence[int], sampler: Sampler) -> list[Label]:
        self._show(ids)
        return self.now.shadow(ids, sampler)

    def accept(self, ids: Sequence[int]) -> None:
        for name in self._follow:
            self.drafters[name].accept(ids)

    def clear(self) -> None:
        self._follow = set()
        for drafter in self.drafters.values():
            drafter.clear()

    def _show(self, ids: Sequence[int], cancelled: Callable[[], bool] = lambda: False) -> None:
        if self.current not in self._follow:
            self.now.begin(ids, cancelled=cancelled)
            self._follow.add(self.current)


class Faults:
    """Makes the n-th call from now into llama.cpp fail, for one context."""

    def __init__(self, patch: Any) -> None:
        self._armed: dict[tuple[str, int], int] = {}
        self.hit: Counter[str] = Counter()
        decode, remove = llama_cpp.llama_decode, llama_cpp.llama_memory_seq_rm

        def failing_decode(handle: Any, batch: Any) -> int:
            if self._due("decode", handle):
                return -3
            status = int(decode(handle, batch))
            return (
                -3 if self._due("decode late", handle) else status
            )  # it may fail with cells already written

        def failing_remove(memory: Any, sequence: int, start: int, end: int) -> bool:
            if start >= 0 and self._due("removal", memory):  # taking out a whole sequence cannot fail
                return False
            return bool(remove(memory, sequence, start, end))

        patch.setattr(llama_cpp, "llama_decode", failing_decode)
        patch.setattr(llama_cpp, "llama_memory_seq_rm", failing_remove)

    def arm(self, kind: str, context: Context, at: int) -> None:
        """The `at`-th call of a kind will fail.

        Args:
            kind: `decode` (nothing was computed), `decode late` (it was), `removal`, or `numbers` (logits that are
                none).
            context: Whose.
            at: 1 = the next one.
        """
        if kind == "numbers" and "logits" not in vars(context):
            logits = context.logits
            context.logits = lambda: self._damaged(context, logits())  # type: ignore[method-assign]
        self._armed[kind, id(context._memory if kind == "removal" else context.handle)] = at

    def disarm(self) -> None:
        self._armed.clear()

    def _damaged(self, context: Context, rows: Any) -> Any:
        return np.full_like(rows, np.nan) if self._due("numbers", context.handle) else rows

    def _due(self, kind: str, pointer: Any) -> bool:
        key = (kind, id(pointer))
        if key not in self._armed:
            return False
        self._armed[key] -= 1
        if self._armed[key]:
            return False
        del self._armed[key]
        self.hit[kind] += 1
        return True


class Rig:
    """A random target with every drafter beside it, and a twin of the target that decodes plainly."""

    def __init__(self, pool: Pool, arch: str, seed: int, partner: str, n_batch: int) -> None:
        self.faults = pool.faults
        self.name = f"{arch} {seed} {partner} {n_batch}"
        path = pool.file(arch, seed)
        model = pool.model(path, block=arch in HAS_BLOCK)
        options: dict[str, Any] = {"n_ctx": N_CTX, "n_batch": n_batch, "kv_type": "f32", "log": pool.log}
        self._contexts = pool.contexts
        self.target = self._open(model, **options, max_outputs=LONGEST + 1, snapshots=LONGEST)
        # The target's own batches must be able to roll back, the twin's need not: the text is the same.
        self._twin = Engine(self._open(model, **options), model.vocab)
        self.drafts: dict[str, Context] = {}
        drafters: dict[str, Drafter] = {}
        for name, file, n_ctx in (
            ("right", path, N_CTX),
            ("half", pool.related(path, arch), N_CTX),
            (
                "wrong",
                pool.file(partner, seed + 50),
                SMALL_CTX,
            ),  # another architecture, and a smaller context
            ("chained", pool.related(path, arch), N_CTX),
            ("overlap", pool.related(path, arch), N_CTX),
        ):
            draft = pool.model(file)
            context = self._open(
                draft, **{**options, "n_ctx": n_ctx}, max_outputs=LONGEST, branches=draft.has_state
            )
            self.drafts[name] = context
            drafters[name] = ModelDrafter(context, name=name, n_vocab=model.vocab.n_tokens)
        ahead = drafters.pop("overlap")
        assert isinstance(ahead, ModelDrafter)
        if ahead.can_rewind:
            drafters["overlap"] = OverlapDrafter(ahead)
            pool.stack.callback(drafters["overlap"].close)
        drafters["lookup"] = LookupDrafter()
        drafters["chain"] = ChainDrafter(drafters.pop("chained"))
        drafters["odd"] = self.odd = Odd()
        if arch in HAS_BLOCK:
            block = NextTokenBlock(
                model, self.target, model, max_outputs=LONGEST, kv_type="f32", log=pool.log
            )
            pool.stack.callback(block.close)
            self.drafts["mtp"] = block._context
            room = 12 * 4 * block.n_embd  # a few hidden states wait, then they are fed
            drafters["mtp"] = MtpDrafter(block, n_vocab=model.vocab.n_tokens, kept_bytes=room)
        self.relay = Relay(drafters)
        self.engine = Engine(self.target, model.vocab, drafter=self.relay, n_draft=4)
        self.ops_to_abort = 0
        for context in (
            self.target,
            self.drafts["half"],
            *([self.drafts["mtp"]] if "mtp" in self.drafts else []),
        ):
            context.stop_when(self._abort)

    def reset(self) -> None:
        self.faults.disarm()
        self.odd.error = None
        self.ops_to_abort = 0
        self.engine.clear()
        self.engine.draft_on = True
        self.engine.set_length(4)

    def plain(self, request: Request) -> Finished:
        """What decoding without a draft answers, from empty caches."""
        self._twin.clear()
        last = list(self._twin.generate(request))[-1]
        assert isinstance(last, Finished)
        return last

    def margin(self, request: Request, answer: Sequence[int]) -> float:
        """How near the second best was at the token behind `answer`."""
        self._twin.clear()
        ids = [*request.prompt, *answer]
        for _ in self._twin.context.extend(ids):
            pass
        return Sampler(request.sampling).propose(self._twin.context.logits()[-1], len(ids), ids).margin

    @property
    def faults_hit(self) -> int:
        """How many faults struck so far: without one, nothing may fail."""
        return sum(self.faults.hit.values()) + self.odd.raised

    def set_length(self, k: int, prices: str = "") -> None:
        """A fixed length, or one chosen by price."""
        costs = Costs(*PRICES[prices], LONGEST + 1) if prices else None
        self.engine.set_length(k, costs)

    def _open(self, model: Model, **options: Any) -> Context:
        context = Context(model, threads=1, **options)
        self._contexts.callback(context.close)
        return context

    def _abort(self) -> bool:
        if self.ops_to_abort > 0:
            self.ops_to_abort -= 1
            return self.ops_to_abort == 0
        return False


class Pool:
    """Models and rigs, opened when first wanted and kept to the end."""

    def __init__(self, folder: Path, patch: Any) -> None:
        self.folder = folder
        self.log = NativeLog()
        self.log.install()
        self.faults = Faults(patch)
        self._models_stack = ExitStack()  # closed last
        self.contexts = ExitStack()
        self.stack = ExitStack()  # closed first
        self._models: dict[tuple[Path, bool], Model] = {}
        self._rigs: dict[tuple[str, int, str, int], Rig] = {}
        self.seen: Counter[str] = Counter()
        """What the tests came across, so that a test can say whether it tested anything."""
        self.ties: set[tuple[int, ...]] = set()
        """The conversations behind which rounding chose."""

    def rig(self, arch: str, seed: int = 0, partner: str = "llama", n_batch: int = 64) -> Rig:
        key = (arch, seed, partner, n_batch)
        if key not in self._rigs:
            self._rigs[key] = Rig(self, *key)
        self._rigs[key].reset()
        return self._rigs[key]

    def file(self, arch: str, seed: int) -> Path:
        path = self.folder / f"{arch}-{seed}.gguf"
        if not path.exists():
            TARGETS[arch](path, seed=seed, **({"n_nextn": 1} if arch in HAS_BLOCK else {}))
        return path

    def related(self, path: Path, arch: str) -> Path:
        other = self.folder / f"half-{path.name}"
        return other if other.exists() else gguf_files.perturbed(path, other, noise=NOISE[arch])

    def model(self, path: Path, *, block: bool = False) -> Model:
        if (path, block) not in self._models:
            model = Model(path, next_token_blocks=block, log=self.log)
            self._models_stack.callback(model.close)
            self._models[path, block] = model
        return self._models[path, block]

    def close(self) -> None:
        self.stack.close()
        self.contexts.close()
        self._models_stack.close()


def play(
    rig: Rig,
    request: Request,
    *,
    stop_after: int | None = None,
    drop_after: int | None = None,
    each: Callable[[int], None] = lambda _count: None,
) -> tuple[list[EngineEvent], Exception | None]:
    """Answer, perhaps not to the end.

    Args:
        rig: Who answers.
        request: What is asked.
        stop_after: Cancel after so many events.
        drop_after: Drop the generator after so many events.
        each: Called with the number of events so far, after each.

    Returns:
        The events, and the failure if there was one.
    """
    events: list[EngineEvent] = []

    def cancelled() -> bool:
        return stop_after is not None and len(events) >= stop_after

    with contextlib.closing(rig.engine.generate(request, cancelled)) as stream:  # type: ignore[type-var]
        try:
            for event in stream:
                events.append(event)
                if len(events) == drop_after:
                    break
                each(len(events))
        except (DecodeError, Broken) as error:
            return events, error
    return events, None
