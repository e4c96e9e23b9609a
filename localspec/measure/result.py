"""What the raw measurements say: rates, speedups with their intervals, bounds; and the object of `--json`."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import psutil

from localspec.errors import LocalspecError
from localspec.measure import figures
from localspec.measure.bench import Measured, Run
from localspec.measure.figures import Ratio, Window

FORMAT = 1
"""Of the JSON object; a change that readers must know of raises it."""
_NOT_SETTINGS = ("kind", "path", "off_reason")


@dataclass(frozen=True, slots=True)
class Side:
    """Baseline or draft, of one kind or of all."""

    decode_tok_s: float
    """The median of the repeats; over prompts and kinds, the geometric mean of the medians."""
    low: float
    high: float
    """Slowest and fastest repeat; over kinds, the geometric means of those."""
    ttft_s: float
    prompt_tok_s: float | None
    window: Window
    """The counters of all windows, added."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of prompt, or all together."""

    baseline: Side | None
    drafted: Side | None
    speedup: Ratio | None
    bound: float | None
    """A speedup; None without a draft or before the parts were timed."""
    same_text: bool | None
    """Whether the ids with and without draft were the same; None without a pair."""
    repetition: float
    """How much the answers repeat themselves, 0 to 1; such text is easy to draft."""

    @property
    def of_bound(self) -> float | None:
        """Measured speedup over the bound."""
        return self.speedup.value / self.bound if self.speedup and self.bound else None


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that is derived from a measurement."""

    measured: Measured
    kinds: dict[str, Kind]
    together: Kind

    @property
    def cost_ratio(self) -> float | None:
        """c: draft step time over target step time."""
        costs = self.measured.costs
        return costs.draft_step_s / costs.plain_s if costs and costs.draft_step_s is not None else None

    @property
    def verify_curve(self) -> dict[int, float]:
        """V(n): time of a target batch of n tokens over one of 1."""
        costs = self.measured.costs
        return {size: seconds / costs.plain_s for size, seconds in costs.verify.items()} if costs else {}

    @property
    def others_cpu(self) -> float:
        """The greatest share of the CPU that others took during a run."""
        return max((run.others_cpu for run in self.measured.runs), default=0.0)


def summarise(measured: Measured) -> Result:
    """Derive every figure. Pairs that were not completed count for their own side only."""
    names = list(dict.fromkeys(run.kind for run in measured.runs))
    together, by_kind = figures.paired(ratios(measured.runs))
    kinds = {
        name: _kind([run for run in measured.runs if run.kind == name], by_kind.get(name), measured)
        for name in names
    }
    return Result(measured, kinds, _together(list(kinds.values()), together))


def ratios(runs: Sequence[Run]) -> dict[tuple[str, int], list[float]]:
    """Drafted over baseline rate of each complete pair, by prompt."""
    rates = {(run.kind, run.prompt, run.repeat, run.drafted): run.tok_s for run in runs}
    found: dict[tuple[str, int], list[float]] = {}
    for (kind, prompt, repeat, drafted), rate in rates.items():
        baseline = rates.get((kind, prompt, repeat, False))
        if drafted and baseline:
            found.setdefault((kind, prompt), []).append(rate / baseline)
    return found


def _kind(runs: Sequence[Run], speedup: Ratio | None, measured: Measured) -> Kind:
    baseline = [run for run in runs if not run.drafted]
    drafted = [run for run in runs if run.drafted]
    side = _side(drafted)
    costs = measured.costs
    texts = [
        {run.token_ids for run in runs if run.prompt == prompt} for prompt in {run.prompt for run in runs}
    ]
    return Kind(
        baseline=_side(baseline),
        drafted=side,
        speedup=speedup,
        bound=figures.bound(side.window, costs.verify, costs.draft_step_s) if side and costs else None,
        same_text=all(len(ids) == 1 for ids in texts) if baseline and drafted else None,
        repetition=median(figures.repetition(run.token_ids) for run in runs),
    )


def _side(runs: Sequence[Run]) -> Side | None:
    if not runs:
        return None
    prompts = [
        [run for run in runs if run.prompt == prompt] for prompt in dict.fromkeys(run.prompt for run in runs)
    ]
    window = figures.join(run.window for run in runs)
    assert window is not None
    speeds = [rate for run in runs if (rate := run.stats.prompt_tok_s) is not None]
    return Side(
        decode_tok_s=_mean(median(run.tok_s for run in group) for group in prompts),
        low=_mean(min(run.tok_s for run in group) for group in prompts),
        high=_mean(max(run.tok_s for run in group) for group in prompts),
        ttft_s=median(run.stats.ttft_s for run in runs),
        prompt_tok_s=median(speeds) if speeds else None,
        window=window,
    )


def _together(kinds: Sequence[Kind], speedup: Ratio | None) -> Kind:
    """All kinds with the same weight, however many runs each has."""
    bounds = [kind.bound for kind in kinds if kind.bound is not None]
    same = [kind.same_text for kind in kinds if kind.same_text is not None]
    return Kind(
        baseline=_join([kind.baseline for kind in kinds if kind.baseline]),
        drafted=_join([kind.drafted for kind in kinds if kind.drafted]),
        speedup=speedup,
        bound=figures.geometric_mean(bounds) if bounds else None,
        same_text=all(same) if same else None,
        repetition=max((kind.repetition for kind in kinds), default=0.0),
    )


def _join(sides: Sequence[Side]) -> Side | None:
    window = figures.join(side.window for side in sides)
    if window is None:
        return None
    speeds = [side.prompt_tok_s for side in sides if side.prompt_tok_s is not None]
    return Side(
        decode_tok_s=_mean(side.decode_tok_s for side in sides),
        low=_mean(side.low for side in sides),
        high=_mean(side.high for side in sides),
        ttft_s=median(side.ttft_s for side in sides),
        prompt_tok_s=_mean(speeds) if speeds else None,
        window=window,
    )


def _mean(values: Iterable[float]) -> float:
    found = figures.geometric_mean(values)
    assert found is not None
    return found


# ------------------------------------------------------------------------ JSON


def to_json(
    result: Result,
    *,
    when: str,
    names: Mapping[str, str],
    files: Mapping[str, Sequence[Mapping[str, Any]]],
    surroundings: Mapping[str, Any],
    advice: Sequence[Mapping[str, str]],
    profile: str = "",
) -> dict[str, Any]:
    """The object of `localspec bench --json`. Its names are an interface.

    Args:
        result: The figures.
        when: Date and time of the start, ISO 8601.
        names: `target` and `draft` as the person calls them.
        files: For `target` and `draft`, name, size and sha256 of each file.
        surroundings: What else used the machine.
        advice: What to do about it.
        profile: The saved profile that some of the settings come from; empty = none.
    """
    measured, together = result.measured, result.together
    ready, costs = measured.ready, measured.costs
    load = asdict(measured.load)
    return {
        **head("bench", FORMAT, when, partial=measured.partial, error=measured.error),
        **_kind_json(together),
        "kinds": {name: _kind_json(kind) for name, kind in result.kinds.items()},
        "cost_ratio": result.cost_ratio,
        "verify_curve": {str(size): value for size, value in result.verify_curve.items()},
        "costs": None
        if costs is None
        else {"depth": costs.depth, "plain_s": costs.plain_s, "draft_step_s": costs.draft_step_s},
        "lengths": [
            {
                "length": point.length,
                "context": point.context,
                "drafted": point.drafted,
                "decode_tok_s": point.window.tok_s,
                "acceptance_rate": point.window.acceptance_rate,
            }
            for point in measured.depths
        ],
        "runs": [_run_json(run) for run in measured.runs],
        "draft": {
            "state": ready.draft.state,
            "reason": ready.draft.reason,
            "name": ready.draft.name,
            "overlap": ready.draft.overlap,
            "overlap_reason": ready.draft.no_overlap,
        },
        "protocol": {
            **asdict(measured.protocol),
            "lengths": list(measured.protocol.lengths),
            "prompts": [{"kind": one.kind, "digest": one.digest} for one in measured.prompts],
        },
        "settings": {
            **{key: value for key, value in load.items() if key not in ("target", "draft", "template_file")},
            **{f"draft_{key}": value for key, value in load["draft"].items() if key not in _NOT_SETTINGS},
            "target": names["target"],
            "draft": names["draft"],
            "profile": profile or None,
            "threads": ready.threads,
            **asdict(measured.sampling),
        },
        "models": {
            "target": asdict(ready.target),
            "draft": asdict(ready.draft_model) if ready.draft_model else None,
        },
        "files": {role: list(parts) for role, parts in files.items()},
        "versions": dict(ready.versions),
        "llama_cpp_commit": ready.versions.get("ggml commit"),
        "device": {
            "target": ready.target.device,
            "draft": ready.draft_model.device if ready.draft_model else None,
            **machine(),
            "cores": psutil.cpu_count(logical=False) or psutil.cpu_count(),
        },
        "memory": asdict(measured.memory or ready.memory),
        "surroundings": {**surroundings, "others_cpu_share": result.others_cpu},
        "advice": list(advice),
        "seconds": measured.seconds,
    }


def head(
    command: str, version: int, when: str, *, partial: bool, error: LocalspecError | None
) -> dict[str, Any]:
    """How the object of every measurement begins.

    Args:
        command: What measured.
        version: Of the object.
        when: Date and time of the start, ISO 8601.
        partial: It was stopped before the end.
        error: What ended it.
    """
    return {
        "kind": f"localspec {command}",
        "format": version,
        "when": when,
        "partial": partial,
        "error": error.to_json() if error else None,
    }


def machine() -> dict[str, str]:
    """System and processor."""
    return {"system": platform.platform(), "processor": platform.processor() or platform.machine()}


def ratio_json(ratio: Ratio | None) -> dict[str, Any]:
    """A speedup and its interval."""
    return {
        "speedup": ratio.value if ratio else None,
        "speedup_interval": None if ratio is None or ratio.low is None else [ratio.low, ratio.high],
    }


def _kind_json(kind: Kind) -> dict[str, Any]:
    speedup = kind.speedup
    return {
        "baseline": _side_json(kind.baseline),
        "drafted": _side_json(kind.drafted),
        **ratio_json(speedup),
        "verdict": speedup.verdict if speedup else None,
        "bound": kind.bound,
        "measured_over_bound": kind.of_bound,
        "same_text": kind.same_text,
        "repetition": kind.repetition,
    }


def _side_json(side: Side | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {
        "decode_tok_s": side.decode_tok_s,
        "spread": [side.low, side.high],
        "ttft_s": side.ttft_s,
        "prompt_tok_s": side.prompt_tok_s,
        **_window_json(side.window),
    }


def _window_json(window: Window) -> dict[str, Any]:
    return {
        "rounds": window.rounds,
        "drafted_tokens": window.drafted,
        "accepted": window.accepted,
        "acceptance_rate": window.acceptance_rate,
        "mean_accepted_length": window.mean_accepted_length,
        "per_position": list(window.per_position),
        "per_position_unconditional": list(window.per_position_unconditional),
        "by_source": {name: source.to_json() for name, source in window.by_source.items()},
    }


def _run_json(run: Run) -> dict[str, Any]:
    return {
        "kind": run.kind,
        "prompt": run.prompt,
        "repeat": run.repeat,
        "drafted": run.drafted,
        "order": run.order,
        "decode_tok_s": run.tok_s,
        "window_tokens": run.window.tokens,
        "window_s": run.window.seconds,
        **_window_json(run.window),
        "tokens": len(run.token_ids),
        "finish_reason": run.reason,
        "prompt_tokens": run.stats.prompt_tokens,
        "ttft_s": run.stats.ttft_s,
        "prompt_tok_s": run.stats.prompt_tok_s,
        "draft_s": run.stats.draft_s,
        "verify_s": run.stats.verify_s,
        "other_s": run.stats.other_s,
        "others_cpu_share": run.others_cpu,
        "draft_state": run.draft.state,
        "draft_reason": run.draft.reason,
    }
