"""All answers of `scripts/bench_shapes`: costs, then each acceptance at each length, in alternating order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from localspec.measure import figures
from localspec.measure.prompts import BUILT_IN
from localspec.spec.curve import Costs
from localspec.spec.engine import Engine
from localspec.worker.costs import measure_costs
from localspec.worker.protocol import MeasureCosts
from scripts.peers.answers import GREEDY, Asked, Prices
from scripts.peers.clock import NativeClock
from scripts.peers.forced import Measured, Script, ask
from scripts.peers.native import Rival, Server, by_model

AUTO = "auto"
_SIZES = tuple(range(1, 18))
_COST_SECONDS, _COST_PASSES = 20.0, 3


@dataclass(frozen=True, slots=True)
class Settings:
    """What is run.

    Attributes:
        acceptance: Chances of a drafted token.
        lengths: Draft lengths.
        tokens: Of an answer.
        depth: Tokens of the prompt.
        repeats: Of each answer.
    """

    acceptance: tuple[float, ...]
    lengths: tuple[int, ...]
    tokens: int
    depth: int
    repeats: int


def tokens_per_round(acceptance: float, length: int) -> float:
    """1 + a + ... + a^k: what a round gives where each drafted token is right with the same chance."""
    return sum(acceptance**n for n in range(length + 1))


def bound(acceptance: float, length: int, verify: Mapping[int, float], step: float) -> float:
    """The speedup that the costs of the parts allow.

    Args:
        acceptance: Chance of a drafted token.
        length: Draft length.
        verify: Seconds of a target batch by its size.
        step: Seconds of a draft step.
    """
    time = figures.interpolate(verify, length + 1) + length * step
    return tokens_per_round(acceptance, length) * verify[1] / time


@dataclass(slots=True)
class Runs:
    """The measurement.

    Attributes:
        engine: The pair.
        settings: What is run.
        clock: Running.
        say: Told how far it is.
    """

    engine: Engine
    settings: Settings
    clock: NativeClock
    say: Callable[[str], None]
    _verify: dict[int, float] = field(default_factory=dict)
    _step: float = 0.0
    _depth: int = 0
    _plain: list[Measured] = field(default_factory=list)
    _found: dict[tuple[float, str], list[tuple[Measured, float]]] = field(default_factory=dict)

    def go(self) -> bool:
        """Run everything.

        Returns:
            Whether it was stopped after the first repeat; what came before is kept.

        Raises:
            LocalspecError: It failed.
            KeyboardInterrupt: It was stopped before a repeat was complete.
        """
        settings = self.settings
        self.say("timing the verify curve and the draft step")
        self._costs()
        script = Script.drawn(self.engine.context.n_vocab, settings.depth, settings.tokens)
        self._ask(
            script, 1.0, max(settings.lengths), 8
        )  # warms up, and both caches hold the prompt from here on
        for repeat in range(settings.repeats):
            try:
                self._repeat(script, repeat)
            except KeyboardInterrupt:
                if not repeat:
                    raise
                return True
        return False

    def _costs(self) -> None:
        self._depth = self.settings.depth + self.settings.tokens // 2
        found = measure_costs(
            self.engine, MeasureCosts(_SIZES, self._depth, seconds=_COST_SECONDS, passes=_COST_PASSES)
        )
        self._verify, self._step = dict(found.verify), found.draft_step_s or 0.0

    def _repeat(self, script: Script, repeat: int) -> None:
        """Everything once. What was measured by an interrupted repeat is left out, so that all have as many."""
        settings = self.settings
        found: list[tuple[tuple[float, str], Measured, float]] = []
        plain: list[Measured] = []
        cells: list[tuple[float, int | None]] = [
            (a, k) for a in settings.acceptance for k in (*settings.lengths, None)
        ]
        for number, (acceptance, length) in enumerate(cells[::-1] if repeat % 2 else cells):
            if (
                number % (len(settings.lengths) + 1) == 0
            ):  # beside each acceptance: the machine changes its speed
                plain.append(self._ask(script, 1.0, 0, settings.tokens))
            measured = self._ask(script, acceptance, length, settings.tokens)
            found.append(
                (
                    (acceptance, AUTO if length is None else str(length)),
                    measured,
                    measured.answer.tok_s / plain[-1].answer.tok_s,
                )
            )
        for key, measured, ratio in found:
            self._found.setdefault(key, []).append((measured, ratio))
        self._plain += plain
        self.say(f"repeat {repeat + 1} of {settings.repeats}: plain {plain[-1].answer.tok_s:.2f} tok/s")

    def _ask(self, script: Script, acceptance: float, length: int | None, tokens: int) -> Measured:
        engine = self.engine
        if length is not None:
            return ask(engine, script, acceptance, tokens, self.clock, length=length)
        limit = engine.n_draft_limit
        costs = Costs(self._verify, self._step, limit + 1)
        return ask(engine, script, acceptance, tokens, self.clock, length=limit, costs=costs)

    def to_json(self) -> dict[str, Any]:
        """Costs and rows."""
        speeds = [one.answer.tok_s for one in self._plain]
        rows = [self._row(*key, values) for key, values in sorted(self._found.items(), key=_order)]
        for acceptance in self.settings.acceptance:
            fixed = [row for row in rows if row["acceptance"] == acceptance and row["length"] != AUTO]
            max(fixed, key=lambda row: row["speedup"])["best"] = True
        return {
            "depth": self._depth,
            "verify_s": self._verify,
            "draft_step_s": self._step,
            "c": self._step / self._verify[1],
            "plain": {"tok_s": median(speeds), "tok_s_min": min(speeds), "tok_s_max": max(speeds)},
            "rows": rows,
        }

    def _row(self, acceptance: float, length: str, values: list[tuple[Measured, float]]) -> dict[str, Any]:
        answers = [measured.answer for measured, _ in values]
        speeds = [answer.tok_s for answer in answers]
        prices = Prices({n: [seconds] for n, seconds in self._verify.items()}, [self._step])
        reached = [
            answer.tok_s / (prices.bound(answer) or answer.tok_s) for answer in answers
        ]  # over what their own rounds allow, since the luck of a text is not the chance
        own = [seconds for measured, _ in values for seconds in measured.own_s]
        rounds = [seconds for measured, _ in values for seconds in measured.round_s]
        lengths = self.settings.lengths
        return {
            "acceptance": acceptance,
            "length": length,
            "bound": bound(acceptance, int(length), self._verify, self._step)
            if length != AUTO
            else max(1.0, *(bound(acceptance, k, self._verify, self._step) for k in lengths)),
            "speedup": median(ratio for _, ratio in values),
            "of_bound": median(reached),
            "tok_s": median(speeds),
            "tok_s_min": min(speeds),
            "tok_s_max": max(speeds),
            "tokens_per_round": sum(a.tokens - 1 for a in answers) / sum(a.rounds for a in answers),
            "drafted": sum(answer.drafted for answer in answers),
            "accepted": sum(answer.accepted for answer in answers),
            "own_ms": 1000 * median(own),
            "own_share": sum(own) / sum(rounds),
            "best": False,
        }

    def beside(
        self, server: Path, target: Path, draft: Path, *, n_ctx: int, threads: int, gpu_layers: int
    ) -> list[dict[str, Any]]:
        """llama.cpp's own loop with an acceptance forced in its own way, at its default length and at our best.

        Args:
            server: The program.
            target: The target's file.
            draft: The draft's file.
            n_ctx: Size of the context.
            threads: That compute on the CPU.
            gpu_layers: Of the target; -1 leaves it to llama.cpp.
        """
        settings = self.settings
        layers = ("--gpu-layers", str(gpu_layers)) if gpu_layers >= 0 else ()
        script = Script.drawn(self.engine.context.n_vocab, settings.depth, settings.tokens)
        asked = Asked(BUILT_IN[0], script.prompt)
        ours = {(row["acceptance"], row["length"]): row for row in self.to_json()["rows"]}
        found = []
        for acceptance in settings.acceptance:
            best = [int(k) for (a, k), row in ours.items() if a == acceptance and row["best"]]
            for length in sorted({*best, *({3} & set(settings.lengths))}):
                rival = synthetic(draft, length, acceptance, layers)
                with Server(server, target, rival, n_ctx=n_ctx, threads=threads) as running:
                    answers = [running.ask(asked, GREEDY, settings.tokens) for _ in range(settings.repeats)]
                self.say(f"llama.cpp, {rival.name}: {answers[-1].tok_s:.2f} tok/s")
                steps = [(a.tokens - 1) / a.rounds for a in answers]
                rounds = [a.tok_s / step for a, step in zip(answers, steps, strict=True)]
                row = ours[acceptance, str(length)]
                found.append(
                    {
                        "acceptance": acceptance,
                        "length": length,
                        "tok_s": median(a.tok_s for a in answers),
                        "tokens_per_round": median(steps),
                        # Its luck is another one: rounds a second are compared.
                        "ours_over_it": row["tok_s"] / row["tokens_per_round"] / median(rounds),
                    }
                )
        return found


def synthetic(draft: Path, length: int, acceptance: float, more: Sequence[str] = ()) -> Rival:
    """llama.cpp's drafts by a model, with an acceptance that it makes up by itself, and more flags."""
    mean = f"{tokens_per_round(acceptance, length):.6f}"
    flags = (*by_model(draft, length).flags, "--spec-synth-len", mean, *more)
    return Rival(f"k={length}, accepted {acceptance:g}", flags)


def _order(item: tuple[tuple[float, str], Any]) -> tuple[float, int]:
    (acceptance, length), _ = item
    return acceptance, 99 if length == AUTO else int(length)
