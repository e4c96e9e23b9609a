"""The words around the pictures of a report: title, verdict, key figures, and how it was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from localspec.measure.report_data import (
    Json,
    at,
    between,
    clean,
    fixed,
    number,
    objects,
    share,
    short,
    size,
    spread,
)

_VERDICTS = {
    "faster": "The draft is faster",
    "slower": "Off is fastest: the draft is slower",
    "within noise": "Within noise: neither is faster",
}
Rows = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Texts of the page; the template escapes them."""

    title: str
    subtitle: str
    verdict: str = ""
    warnings: tuple[str, ...] = ()
    key: tuple[tuple[str, str, str], ...] = ()
    """Name, figure, remark."""
    facts: tuple[tuple[str, Rows], ...] = ()
    advice: tuple[Mapping[str, str], ...] = field(default=())


def page(result: Json) -> Page:
    """The words of a result of `bench` or `tune`."""
    tune = at(result, "kind") == "localspec tune"
    target = at(result, "models", "target", "name") or at(result, "settings", "target") or "target"
    draft = "" if tune else at(result, "draft", "name")
    title = f"localspec {'tune' if tune else 'bench'}: {short(target, 60)}"
    if draft and at(result, "drafted"):
        title += f" with {short(draft, 60)}"
    processor = at(result, "device", "processor")
    device = at(result, "device", "target") or processor or "device not known"
    where = device if device == processor or device != "CPU" else f"CPU ({processor or 'not known'})"
    return Page(
        title=title,
        subtitle=f"{at(result, 'when') or 'date not known'} · {where} · {at(result, 'device', 'system') or ''}",
        verdict=_tune_verdict(result) if tune else _verdict(result),
        warnings=tuple(_warnings(result)),
        key=tuple(_tune_key(result) if tune else _key(result)),
        facts=tuple(_facts(result)),
        advice=tuple(
            {name: str(at(one, name) or "") for name in ("seen", "cause", "command")}
            for one in objects(at(result, "advice"))
        ),
    )


def _verdict(result: Json) -> str:
    value = number(at(result, "speedup"))
    if value is None:
        return ""
    interval = between(at(result, "speedup_interval"), "×")
    if not interval:
        return f"One pair cannot tell noise from gain: {value:.2f}×."
    said = _VERDICTS.get(str(at(result, "verdict")), "Speedup")
    return f"{said}: {value:.2f}× ({interval}, 95 % interval)."


def _tune_verdict(result: Json) -> str:
    best = at(result, "best")
    if best is None:
        return ""
    if not at(best, "draft"):
        off = at(best, "verdict") == "off is fastest"
        return (
            "Off is fastest: take no draft."
            if off
            else "Within noise: no draft gains anything, so take none."
        )
    length = at(best, "n_draft")
    how = "the length chosen round by round" if length == "auto" else f"{length} tokens a round"
    return (
        f"Chosen: {short(at(best, 'draft'), 60)}, {how}: {fixed(at(best, 'speedup'), unit='×')} of no draft."
    )


def _warnings(result: Json) -> list[str]:
    found = []
    if at(result, "partial"):
        error = at(result, "error", "message")
        found.append(f"Partial: it was stopped before the end.{f' {error}' if error else ''}")
    notes = at(result, "notes")
    found += [str(one) for one in notes] if isinstance(notes, list) else []
    for kind, one in _items(at(result, "winners_by_kind")):
        other = short(at(one, "draft") or "no draft")
        length = f" at length {at(one, 'n_draft')}" if at(one, "draft") else ""
        found.append(
            f"For {clean(kind, 40)} alone, {other}{length} is faster by {share(at(one, 'faster_by'))}."
        )
    reason = at(result, "draft", "reason")
    if at(result, "draft", "state") == "off" and reason and not at(result, "drafted"):
        found.append(f"Draft off: {reason}.")
    if at(result, "same_text") is False:
        found.append("The texts with and without the draft differ; localspec verify tells where and why.")
    if (
        at(result, "surroundings", "busy")
        or (number(at(result, "surroundings", "others_cpu_share")) or 0) > 0.15
    ):
        found.append("Other programs used the machine meanwhile; the figures are low and vary.")
    return found


def _key(result: Json) -> list[tuple[str, str, str]]:
    found = []
    for side, name in (("baseline", "no draft"), ("drafted", "with draft")):
        rate, ends = number(at(result, side, "decode_tok_s")), spread(at(result, side))
        if rate is not None:
            remark = f"{ends[0]:.2f} to {ends[1]:.2f}" if ends else ""
            found.append((f"{name}, tok/s", f"{rate:.2f}", remark))
    rest = (
        ("speedup", fixed(at(result, "speedup"), unit="×"), between(at(result, "speedup_interval"), "×")),
        ("bound", fixed(at(result, "bound"), unit="×"), _of_bound(result)),
        ("accepted", share(at(result, "drafted", "acceptance_rate")), "of the drafted tokens"),
        ("tokens a round", fixed(at(result, "drafted", "mean_accepted_length")), "mean accepted length"),
        ("cost ratio c", fixed(at(result, "cost_ratio")), "draft step over target step"),
    )
    found += [one for one in rest if one[1] != "-"]
    for side, name in (("baseline", "no draft"), ("drafted", "with draft")):
        ttft, prompt = number(at(result, side, "ttft_s")), number(at(result, side, "prompt_tok_s"))
        if ttft is not None:
            remark = "" if prompt is None else f"prompt {prompt:.0f} tok/s"
            found.append((f"first token, {name}", f"{ttft:.2f} s", remark))
    return found


def _tune_key(result: Json) -> list[tuple[str, str, str]]:
    best = at(result, "best")
    if best is None:
        return []
    drafted = bool(at(best, "draft"))
    memory = at(best, "memory_bytes")
    rows = (
        ("no draft, tok/s", fixed(at(best, "baseline_tok_s")), ""),
        ("chosen, tok/s", fixed(at(best, "decode_tok_s")), ""),
        ("speedup", fixed(at(best, "speedup"), unit="×"), between(at(best, "speedup_interval"), "×")),
        ("draft", short(at(best, "draft") or "none"), f"{size(memory)} of memory" if memory else ""),
        ("length", clean(at(best, "n_draft")) if drafted else "-", "tokens a round"),
        ("cache", clean(at(best, "kv") or "-", 16), ""),
        ("threads", clean(at(best, "threads") or "-", 16), ""),
        ("batch", clean(at(best, "batch") or "-", 16), ""),
    )
    return [row for row in rows if row[1] != "-"]


def _of_bound(result: Json) -> str:
    value = number(at(result, "measured_over_bound"))
    return "" if value is None else f"{value:.0%} of it reached"


# ------------------------------------------------------------ how it was measured


def _facts(result: Json) -> list[tuple[str, Rows]]:
    found = [
        ("Machine", _rows(at(result, "device"))),
        ("Files", _files(result)),
        ("Versions", _rows(at(result, "versions"))),
        ("Settings", _rows(at(result, "settings"))),
        ("Method", _protocol(result) or _effort(result)),
        ("Meanwhile", _surroundings(result)),
    ]
    return [(title, rows) for title, rows in found if rows]


def _rows(value: object) -> Rows:
    if not isinstance(value, Mapping):
        return ()
    return tuple((str(key).replace("_", " "), _text(one)) for key, one in value.items())


def _text(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    figure = number(value)
    if figure is not None:
        return f"{figure:.15g}" if isinstance(value, int) else f"{figure:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(one)}" for key, one in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_text(one) for one in value) or "-"
    return str(value)


def _files(result: Json) -> Rows:
    found = []
    for role, parts in _items(at(result, "files")):
        for one in objects(parts):
            digest = at(one, "sha256")
            told = f"sha256 {digest}" if digest else "hash not known"
            found.append((role, f"{at(one, 'name')} ({size(at(one, 'size'))}, {told})"))
    return tuple(found)


def _protocol(result: Json) -> Rows:
    protocol = at(result, "protocol")
    rows = [row for row in _rows(protocol) if row[0] != "prompts"]
    for one in objects(at(protocol, "prompts")):
        rows.append((f"prompt, {clean(at(one, 'kind'), 24)}", f"digest {at(one, 'digest')}"))
    seconds = number(at(result, "seconds"))
    if seconds is not None:
        rows.append(("time of all", f"{seconds:.0f} s"))
    return tuple(rows)


def _effort(result: Json) -> Rows:
    seconds = number(at(result, "time_s"))
    time = () if seconds is None else (("time of all", f"{seconds:.0f} s"),)
    return (*_rows(at(result, "effort")), *time)


def _surroundings(result: Json) -> Rows:
    seen = at(result, "surroundings")
    if not isinstance(seen, Mapping):
        return ()
    rows = [
        ("CPU in use before", share(at(seen, "cpu_share"))),
        ("others' CPU, at most", share(at(seen, "others_cpu_share"))),
    ]
    percent = number(at(seen, "gpu_percent"))
    if percent is not None:
        rows.append(("GPU in use before", f"{percent:.0f}%"))
    for one in objects(at(seen, "programs")):
        rows.append(("program", f"{at(one, 'name')}, {share(at(one, 'share'))} of the CPU"))
    for one in objects(at(seen, "gpu_programs")):
        rows.append(("program on the GPU", f"{at(one, 'name')}, {size(at(one, 'bytes'))}"))
    return tuple(rows)


def _items(value: object) -> list[tuple[str, Any]]:
    return [(str(key), one) for key, one in value.items()] if isinstance(value, Mapping) else []
