"""The text of `localspec bench` and of its `--compare`, at most 80 columns wide. No colour, no markup."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from localspec.cli.output import size
from localspec.measure.figures import VERDICTS

if TYPE_CHECKING:
    from localspec.measure.advice import Advice
    from localspec.measure.bench import Measured
    from localspec.measure.compare import Comparison
    from localspec.measure.figures import Ratio
    from localspec.measure.result import Kind, Result, Side
    from localspec.worker.protocol import ModelInfo

_WIDTH = 80
_NAME = 11
_SHOWN_SIZES = 10
_HARD_SPACE = "\u00a0"  # no line ends there


def report(result: Result, advice: Sequence[Advice], busy: str) -> str:
    """Everything for a person.

    Args:
        result: The figures.
        advice: What to do.
        busy: What else used the machine; empty when nothing did.
    """
    measured = result.measured
    blocks = [_head(measured), _speeds(result)]
    if result.together.drafted is not None:
        blocks.append(_acceptance(result))
    blocks.append(_verdict(result))
    blocks.append(
        [*_latency(result.together), *_costs(result), *_memory(measured), *_circumstances(result, busy)]
    )
    if measured.depths:
        blocks.append(_depths(measured))
    blocks += [advice_lines(one) for one in advice]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def advice_lines(advice: Advice) -> list[str]:
    """One piece of advice; the command is not broken, so that it can be copied."""
    return [
        *_wrapped(advice.seen, first="! "),
        *_wrapped(advice.cause, first="  "),
        f"  Try: {advice.command}",
    ]


def comparison(found: Comparison, names: tuple[str, str]) -> str:
    """Two results side by side."""
    lines = [f"A = {names[0]}", f"B = {names[1]}", ""]
    if found.changed:
        lines.append("Changed:")
        for name, before, after in found.changed:
            lines += _wrapped(f"{name}: {before} -> {after}", first="  ", rest="      ")
    else:
        lines.append("Nothing changed: same versions, files, device, settings and prompts.")
    lines += ["", f"{'':<26}{'A':>9}{'B':>9}{'change':>9}   beyond noise?"]
    for one in found.differences:
        share = one.name == "acceptance"
        before, after = (f"{value:.1%}" if share else f"{value:.2f}" for value in (one.before, one.after))
        word = "yes" if one.real else "no" if one.low is not None else "not known"
        lines.append(
            f"{one.name[:26]:<26}{before:>9}{after:>9}{one.change:>+9.1%}   {word}{_interval(one.low, one.high)}"
        )
    for sentence in found.warnings:
        lines += ["", *_wrapped(sentence, first="! ")]
    return "\n".join(lines) + "\n"


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" ({low - 1:+.0%} to {high - 1:+.0%})"


# ----------------------------------------------------------------------- parts


def _head(measured: Measured) -> list[str]:
    ready, protocol, sampling = measured.ready, measured.protocol, measured.sampling
    lines = []
    if measured.partial:
        why = f": {measured.error}" if measured.error else ""
        lines += [*_wrapped(f"PARTIAL: stopped after {len(measured.runs)} answers{why}"), ""]
    lines += _wrapped(f"target  {_model(ready.target)}", rest="        ")
    draft = ready.draft
    if draft.state == "on":
        k = f"auto, at most {measured.load.n_draft}" if draft.auto else f"{draft.n_draft}"
        model = _model(ready.draft_model) if ready.draft_model else draft.name
        lines += _wrapped(f"draft   {model}, {k} tokens a round", rest="        ")
    else:
        lines += _wrapped(f"draft   off: {draft.reason}", rest="        ")
    lines += _wrapped(
        f"method  {protocol.tokens} tokens an answer, the first {protocol.skip} left out, {protocol.repeats}"
        f" repeats, temperature {sampling.temperature:g}, seed {sampling.seed}; median (slowest to fastest)",
        rest="        ",
    )
    return lines


def _model(info: ModelInfo) -> str:
    where = (
        info.device
        if not info.gpu_layers
        else f"{info.device}, {info.gpu_layers} of {info.n_layer + 1} layers"
    )
    return f"{info.name} {info.quant}, {info.kv_type} cache, {where}"


def _rows(result: Result) -> list[tuple[str, Kind]]:
    rows = list(result.kinds.items())
    return [*rows, ("together", result.together)] if len(rows) > 1 else rows


def _speeds(result: Result) -> list[str]:
    paired = result.together.drafted is not None
    head = f"{'':<{_NAME}}{'baseline tok/s':<22}"
    lines = [head + (f"{'drafted tok/s':<22}speedup (95 % interval)" if paired else "")]
    for name, kind in _rows(result):
        line = f"{_short(name):<{_NAME}}{_rate(kind.baseline):<22}"
        lines.append((line + (f"{_rate(kind.drafted):<22}{_ratio(kind.speedup)}" if paired else "")).rstrip())
    return [line.rstrip() for line in lines]


def _rate(side: Side | None) -> str:
    return f"{_speed(side.decode_tok_s)} ({_speed(side.low)} to {_speed(side.high)})" if side else "-"


def _speed(value: float) -> str:
    """Three digits, which is more than repeats agree on."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}× (one pair only)"
    return f"{ratio.value:.2f}× ({ratio.low:.2f} to {ratio.high:.2f})"


def _acceptance(result: Result) -> list[str]:
    lines = [
        f"{'':<{_NAME}}{'accepted':<10}{'tokens/round':<14}{'bound':<8}{'of bound':<10}by position (conditional)"
    ]
    for name, kind in _rows(result):
        if kind.drafted is None:
            continue
        window = kind.drafted.window
        rate = "-" if window.acceptance_rate is None else f"{window.acceptance_rate:.0%}"
        length = "-" if window.mean_accepted_length is None else f"{window.mean_accepted_length:.2f}"
        bound = "-" if kind.bound is None else f"{kind.bound:.2f}×"
        share = "-" if kind.of_bound is None else f"{kind.of_bound:.0%}"
        positions = " ".join(f"{value:.0%}".rstrip("%") for value in window.per_position)
        if len(positions) > _WIDTH - 53:
            positions = positions[: _WIDTH - 55].rpartition(" ")[0] + " …"
        lines.append(
            f"{_short(name):<{_NAME}}{rate:<10}{length:<14}{bound:<8}{share:<10}{positions}".rstrip()
        )
    if result.together.drafted is None or not result.together.drafted.window.drafted:
        return lines  # there is nothing to explain
    return [
        *lines,
        *_wrapped(
            "accepted: of the drafted tokens. tokens/round: what a target step yields. bound: the speedup that the"
            " parts of a round allow. by position: of the drafts that came so far, in %.",
            first="",
        ),
    ]


def _verdict(result: Result) -> list[str]:
    speedup = result.together.speedup
    if speedup is None:
        return []
    alone = speedup.low is None
    said = "One pair cannot tell noise from gain" if alone else VERDICTS[speedup.verdict]
    if result.together.drafted is not None and not result.together.drafted.window.drafted:
        reason = (
            "no length pays at these costs"
            if result.measured.ready.draft.auto
            else "it had nothing to propose"
        )
        return _wrapped(
            f"Nothing was drafted: {reason}, so both sides did the same work ({_ratio(speedup)})."
        )
    kinds = {name: kind.speedup.verdict for name, kind in result.kinds.items() if kind.speedup}
    lines = _wrapped(f"{said}: {_ratio(speedup)}.")
    apart = [name for name, verdict in kinds.items() if verdict != speedup.verdict]
    if apart and not alone:
        lines += _wrapped(
            "Not so for " + ", ".join(f"{_short(name, 30)} ({kinds[name]})" for name in apart) + "."
        )
    return lines


def _latency(together: Kind) -> list[str]:
    parts = []
    for name, side in (("without", together.baseline), ("with draft", together.drafted)):
        if side is not None:
            prompt = "" if side.prompt_tok_s is None else f", prompt {side.prompt_tok_s:.0f} tok/s"
            parts.append(f"{name}: first token after {side.ttft_s:.2f} s{prompt}")
    return _wrapped("; ".join(parts), first="latency  ", rest="         ")


def _costs(result: Result) -> list[str]:
    costs = result.measured.costs
    if costs is None:
        return []
    curve = result.verify_curve
    shown = [n for n in sorted(curve) if n > 1]
    # Small batches are where a draft length is chosen; further out a few points tell the shape.
    shown = shown if len(shown) <= _SHOWN_SIZES else [n for n in shown if n <= 9 or n == shown[-1]]
    step = f"target {costs.plain_s * 1000:.4g} ms a token at {costs.depth} tokens"
    if costs.draft_step_s is not None and result.cost_ratio is not None:
        ratio = f"cost ratio c = {result.cost_ratio:.2f}".replace(" ", _HARD_SPACE)
        step += f", draft {costs.draft_step_s * 1000:.4g} ms: {ratio}"
    lines = _wrapped(step, first="step     ", rest="         ")
    if shown:
        points = "  ".join(f"{n}:{_HARD_SPACE}{curve[n]:.2f}" for n in shown)
        lines += _wrapped(
            f"a batch of n tokens takes V(n) target steps  {points}", first="verify   ", rest="         "
        )
    return lines


def _memory(measured: Measured) -> list[str]:
    parts = []
    for name, info in (("target", measured.ready.target), ("draft", measured.ready.draft_model)):
        if info is not None and info.memory:
            inner = ", ".join(f"{key} {size(value)}" for key, value in info.memory.items())
            parts.append(f"{name} {size(sum(info.memory.values()))} ({inner})")
    use = measured.memory or measured.ready.memory
    total = f" of {size(use.total)}" if use.total else ""
    parts.append(f"{size(use.used)}{total} {use.label} in use")
    return _wrapped("; ".join(parts), first="memory   ", rest="         ")


def _circumstances(result: Result, busy: str) -> list[str]:
    lines = _wrapped(
        f"others took up to {result.others_cpu:.0%} of the CPU"
        + (f"; before the start {busy}" if busy else ""),
        first="machine  ",
        rest="         ",
    )
    same = result.together.same_text
    if same is not None:
        said = (
            "the same ids with and without the draft"
            if same
            else "ids differ; localspec verify tells where and why"
        )
        lines += _wrapped(said, first="text     ")
    return lines


def _depths(measured: Measured) -> list[str]:
    lines = [f"{'tokens':<{_NAME}}{'baseline tok/s':<22}{'drafted tok/s':<22}accepted"]
    for length in sorted({point.length for point in measured.depths}):
        points = {point.drafted: point for point in measured.depths if point.length == length}
        rates = [
            _speed(point.window.tok_s) if point is not None and point.window.tok_s is not None else "-"
            for point in (points.get(False), points.get(True))
        ]
        drafted = points.get(True)
        rate = drafted.window.acceptance_rate if drafted else None
        lines.append(
            f"{length:<{_NAME}}{rates[0]:<22}{rates[1]:<22}{'' if rate is None else f'{rate:.0%}'}".rstrip()
        )
    missing = sorted(set(measured.protocol.lengths) - {point.length for point in measured.depths})
    if missing and not measured.partial:
        context = measured.ready.context_size
        lines += _wrapped(f"The context of {context} tokens ended before {', '.join(map(str, missing))}.")
    return lines


def _short(name: str, width: int = _NAME - 1) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"


def _wrapped(text: str, first: str = "", rest: str | None = None) -> list[str]:
    rest = " " * len(first) if rest is None else rest
    lines = textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace(_HARD_SPACE, " ") for line in lines]
