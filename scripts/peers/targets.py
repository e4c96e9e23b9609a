"""The figures that are to be reached, each worked out of the samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from localspec.measure.figures import geometric_mean
from scripts.peers.answers import Answer, Prices, shared
from scripts.peers.native import DEFAULT_LENGTH, simple
from scripts.peers.protocol import AUTO, AUTO_FRESH, PLAIN, alone, fixed
from scripts.peers.runner import BARE, NATIVE, OURS, PRICE, SAME_LENGTH, SCREEN, Cell, Sample

Pair = Mapping[tuple[str, str], Sample]
"""The samples of one group and repeat, by tool and configuration."""
_LEAST_SHARED = 24
"""Tokens that two answers must have in common to be compared."""


@dataclass(frozen=True, slots=True)
class Target:
    """One figure.

    Attributes:
        figure: None where it was not measured.
        target: At least this; None for a figure that is only reported.
        how: What it is made of, with its parts.
        judged: False where it was measured on less than the target is about.
    """

    figure: float | None
    target: float | None
    how: str
    judged: bool = True

    @property
    def met(self) -> bool | None:
        """None where it was not measured, or not enough, or nothing is asked for."""
        if self.figure is None or self.target is None or not self.judged:
            return None
        return self.figure >= self.target

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        return {"figure": self.figure, "target": self.target, "met": self.met, "how": self.how}


def evaluate(samples: Iterable[Sample], prices: Callable[[str, str], Prices]) -> dict[str, Target]:
    """All figures by name.

    Args:
        samples: What was measured.
        prices: The costs of a pair, by model and drafter.
    """
    found = list(samples)
    pairs = _pairs(found)
    long = max((s.answer.tokens for s in found if s.cell.part == "long"), default=2000)
    first = long if long < 1000 else 512
    targets = {
        "native_ratio_same_k": _mean(
            _same_length(pairs), 0.98, "localspec over llama.cpp at the same draft and fixed length"
        ),
        **_best_lengths(pairs, prices),
        "auto_vs_plain_2000": _lowest(
            _ratios(pairs, "long", (OURS, AUTO), (OURS, PLAIN), lambda s: s.answer.tok_s, without="wrong"),
            0.97,
            f"auto with a profile over plain decoding, answers of {long} tokens",
        ),
        **_defaults(pairs),
        "tokens_per_round_t07": _lowest(
            _per_round(found, 0.7), 1.08, "tokens a round over llama.cpp's, T 0.7, top-p 0.9, k 3"
        ),
        "tokens_per_round_t10": _lowest(
            _per_round(found, 1.0), 1.25, "tokens a round over llama.cpp's, T 1.0, top-p 0.95, k 3"
        ),
        **_wrong_drafts(pairs, long, first),
        "edit_lookup": _lowest(
            _ratios(pairs, "edit", (OURS, AUTO), (OURS, PLAIN), lambda s: s.answer.tok_s),
            1.7,
            "auto lookup with a profile over plain decoding, an edit of a given text",
        ),
        "edit_lookup_no_profile": _lowest(
            _ratios(pairs, "edit", (OURS, AUTO_FRESH), (OURS, PLAIN), lambda s: s.answer.tok_s),
            None,
            "the same without a profile",
        ),
        "edit_lookup_k15": _lowest(
            _ratios(pairs, "edit", (OURS, fixed(15)), (OURS, PLAIN), lambda s: s.answer.tok_s),
            None,
            "the same at a fixed length of 15",
        ),
        "deep_speed": _lowest(_deep(pairs), 0.97, "plain, the last tokens over the bare loop at that depth"),
        "measured_over_bound": _lowest(
            over_bound(found, prices), 0.95, "measured speed over the bound of its own rounds"
        ),
    }
    if long < 1000:
        for name in [one for one in targets if one.startswith(("auto_vs_plain", "wrong_draft"))]:
            how = f"{targets[name].how}; too short for a verdict"
            targets[name] = replace(targets[name], how=how, judged=False)
    return targets


def over_bound(samples: Iterable[Sample], prices: Callable[[str, str], Prices]) -> dict[str, float]:
    """Median speed over the median bound of every drafting configuration of ours, by cell."""
    speeds: dict[str, list[tuple[float, float]]] = {}
    for sample in samples:
        cell = sample.cell
        if sample.tool != OURS or not sample.answer.drafted or cell.part not in (SAME_LENGTH, PRICE, "edit"):
            continue
        bound = prices(cell.model, cell.drafter).bound(sample.answer)
        if bound:
            name = f"{cell.drafter} {cell.kind} {sample.config}"
            speeds.setdefault(name, []).append((sample.answer.tok_s, bound))
    return {
        name: median(speed for speed, _ in values) / median(bound for _, bound in values)
        for name, values in speeds.items()
    }


# ---------------------------------------------------------------------------------------------------------- ratios


def _pairs(samples: Iterable[Sample]) -> list[tuple[Cell, Pair]]:
    together: dict[tuple[int, int], dict[tuple[str, str], Sample]] = {}
    cells: dict[tuple[int, int], Cell] = {}
    for sample in samples:
        key = (sample.group, sample.repeat)
        together.setdefault(key, {})[sample.tool, sample.config] = sample
        cells[key] = sample.cell
    return [(cells[key], pair) for key, pair in together.items()]


def _name(cell: Cell) -> str:
    return f"{cell.drafter} {cell.kind}{f' T {cell.temperature:g}' if cell.temperature else ''}"


def _medians(found: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: median(values) for name, values in found.items()}


def _ratios(
    pairs: list[tuple[Cell, Pair]],
    part: str,
    above: tuple[str, str],
    below: tuple[str, str],
    value: Callable[[Sample], float],
    without: str | None = None,
) -> dict[str, float]:
    """The median over pairs of one value over another, by drafter and kind; without the drafters of that name."""
    found: dict[str, list[float]] = {}
    for cell, pair in pairs:
        if cell.part != part or above not in pair or below not in pair:
            continue
        if without is not None and cell.drafter.startswith(without):
            continue
        divisor = value(pair[below])
        if divisor > 0:
            found.setdefault(_name(cell), []).append(value(pair[above]) / divisor)
    return _medians(found)


def _same_length(pairs: list[tuple[Cell, Pair]]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for cell, pair in pairs:
        if cell.temperature > 0 or cell.part == SCREEN:
            continue
        for length in range(1, 17):
            ours, theirs = pair.get((OURS, fixed(length))), pair.get((NATIVE, simple(length)))
            if ours and theirs and theirs.answer.tok_s > 0:
                name = f"{cell.drafter} {cell.kind} k={length}"
                found.setdefault(name, []).append(ours.answer.tok_s / theirs.answer.tok_s)
    return _medians(found)


def _best_lengths(pairs: list[tuple[Cell, Pair]], prices: Callable[[str, str], Prices]) -> dict[str, Target]:
    """`auto` against the best fixed length: by the clock, and by the batches and draft steps at their median cost.

    What the machine did meanwhile does not enter into the latter, so it is what the choice of the lengths is worth.
    """

    def by_clock(_cell: Cell, answer: Answer) -> float | None:
        return answer.tok_s

    def by_price(cell: Cell, answer: Answer) -> float | None:
        return prices(cell.model, cell.drafter).bound(answer)

    said = "over the best fixed length of each cell, as far as both write the same text"
    priced = f"{said}, every batch and draft step at one price"
    return {
        f"auto_vs_best_fixed{name}": _lowest(_best_fixed(pairs, config, value), least, f"{what} {how}")
        for name, config, value, least, what, how in (
            ("", AUTO, by_clock, 0.99, "auto with a profile", said),
            ("_no_profile", AUTO_FRESH, by_clock, None, "auto without a profile", said),
            ("_priced", AUTO, by_price, None, "auto with a profile", priced),
            ("_priced_no_profile", AUTO_FRESH, by_price, None, "auto without a profile", priced),
        )
    }


def _best_fixed(
    pairs: list[tuple[Cell, Pair]], config: str, value: Callable[[Cell, Answer], float | None]
) -> dict[str, float]:
    """By cell, the ratio to whichever fixed length it loses most to; the median over pairs."""
    found: dict[str, dict[str, list[float]]] = {}
    for cell, pair in pairs:
        auto = pair.get((OURS, config))
        if cell.part != PRICE or auto is None:
            continue
        for (tool, name), sample in pair.items():
            if tool != OURS or not name.startswith("k="):
                continue
            one, two = shared(auto.answer, sample.answer)
            above, below = value(cell, one), value(cell, two)
            if min(one.tokens, two.tokens) >= _LEAST_SHARED and above and below:
                found.setdefault(_name(cell), {}).setdefault(name, []).append(above / below)
    return {cell: min(median(ratios) for ratios in lengths.values()) for cell, lengths in found.items()}


def _defaults(pairs: list[tuple[Cell, Pair]]) -> dict[str, Target]:
    default = (NATIVE, simple(DEFAULT_LENGTH))
    said = "the default of localspec over llama.cpp's (draft-simple, k 3, p-min 0)"

    def over_default(config: str) -> dict[str, float]:
        return _ratios(pairs, PRICE, (OURS, config), default, lambda s: s.answer.tok_s)

    return {
        "default_vs_llamacpp_default": _mean(over_default(AUTO), 1.15, f"{said}, with a profile"),
        "default_vs_llamacpp_default_no_profile": _mean(
            over_default(AUTO_FRESH), None, f"{said}, without a profile"
        ),
        "default_vs_llamacpp_best": _mean(
            _best_of_theirs(pairs),
            None,
            "the default of localspec over llama.cpp's best combination that ran beside it",
        ),
    }


def _best_of_theirs(pairs: list[tuple[Cell, Pair]]) -> dict[str, float]:
    """By cell, the ratio to whichever of llama.cpp's configurations it does worst against."""
    theirs = {key[1] for cell, pair in pairs if cell.part == PRICE for key in pair if key[0] == NATIVE}
    found: dict[str, tuple[float, str]] = {}
    for config in sorted(theirs):
        ratios = _ratios(pairs, PRICE, (OURS, AUTO), (NATIVE, config), lambda s: s.answer.tok_s)
        for name, ratio in ratios.items():
            found[name] = min(found.get(name, (ratio, config)), (ratio, config))
    return {f"{name} ({config})": ratio for name, (ratio, config) in found.items()}


def _per_round(samples: Iterable[Sample], temperature: float) -> dict[str, float]:
    """Tokens over rounds, each side over all its answers, by drafter."""
    totals: dict[tuple[str, str], list[int]] = {}
    for sample in samples:
        if sample.cell.part != "sampled" or sample.cell.temperature != temperature:
            continue
        total = totals.setdefault((sample.cell.drafter, sample.tool), [0, 0])
        total[0] += sample.answer.tokens - 1
        total[1] += sample.answer.rounds
    found = {}
    for drafter in dict.fromkeys(drafter for drafter, _ in totals):
        ours, theirs = totals.get((drafter, OURS)), totals.get((drafter, NATIVE))
        if ours and theirs and ours[1] and theirs[1] and theirs[0]:
            found[drafter] = (ours[0] / ours[1]) / (theirs[0] / theirs[1])
    return found


def _wrong_drafts(pairs: list[tuple[Cell, Pair]], long: int, first: int) -> dict[str, Target]:
    """A draft that is always wrong: by itself, and chained with lookup as it is by default."""
    found = {}
    for drafter, end, chained in (
        (alone("wrong"), "", "lookup not chained"),
        ("wrong", "_chained", "chained with lookup"),
    ):
        cells = [(cell, pair) for cell, pair in pairs if cell.drafter == drafter]
        said = f"over plain, always wrong, {chained}"
        for name, config, tokens, least, what in (
            ("2000", AUTO_FRESH, long, 0.97, f"no profile, {long} tokens"),
            ("512_no_profile", AUTO_FRESH, first, 0.93, f"no profile yet, the first {first} tokens"),
            ("512_profile", AUTO, first, 0.97, f"with a profile, the first {first} tokens"),
        ):
            ratios = _ratios(
                cells,
                "long",
                (OURS, config),
                (OURS, PLAIN),
                lambda s, n=tokens: s.answer.part(1, n),  # type: ignore[misc]
            )
            found[f"wrong_draft_{name}{end}"] = _lowest(ratios, least, f"{what}, {said}")
    return found


def _deep(pairs: list[tuple[Cell, Pair]]) -> dict[str, float]:
    """The last tokens of ours over all of the bare loop's, which begins at that depth."""
    found: dict[str, list[float]] = {}
    for cell, pair in pairs:
        ours, bare = pair.get((OURS, PLAIN)), pair.get((BARE, PLAIN))
        if cell.part == "deep" and ours and bare and bare.answer.tok_s > 0:
            start = ours.answer.tokens - bare.answer.tokens + 1
            speed = ours.answer.part(start, ours.answer.tokens)
            found.setdefault(cell.kind, []).append(speed / bare.answer.tok_s)
    return _medians(found)


# --------------------------------------------------------------------------------------------------------- figures


def _mean(cells: Mapping[str, float], target: float | None, what: str) -> Target:
    if not cells:
        return Target(None, target, f"{what}: not measured")
    lowest = min(cells, key=lambda name: cells[name])
    how = f"{what}: geometric mean of {len(cells)}, lowest {cells[lowest]:.3f} ({lowest})"
    return Target(geometric_mean(cells.values()), target, how)


def _lowest(cells: Mapping[str, float], target: float | None, what: str) -> Target:
    if not cells:
        return Target(None, target, f"{what}: not measured")
    lowest = min(cells, key=lambda name: cells[name])
    how = f"{what}: lowest of {len(cells)} ({lowest}), geometric mean {geometric_mean(cells.values()):.3f}"
    return Target(cells[lowest], target, how)
