"""The table of troubles as code: what was seen, the likely cause, the command that mends it. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from localspec.measure.figures import best_length, predicted_gain
from localspec.measure.seen import Seen
from localspec.measure.surroundings import BUSY_SHARE
from localspec.memory.devices import human
from localspec.options import UNQUANTISED

_LOW_ACCEPTANCE = 0.2  # a draft of another family stays below
_REPEATS = 0.25
_FALLING = 0.85  # acceptance deep in the answer over acceptance at its start
_HEAVY_STEP = 0.5  # of a target step
_FULL = 0.97
_CONTEXT = 0.85
_HELD = 0.1  # of the GPU's memory, from which other programs matter
_SCARCE = 0.08  # of the RAM


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do."""

    seen: str
    """What was seen, with figures."""
    cause: str
    """The likely cause."""
    command: str
    """What mends it, ready to copy."""
    kind: str = ""
    """One word for the rule that said it."""

    def to_json(self) -> dict[str, str]:
        """For `--json`."""
        return {"seen": self.seen, "cause": self.cause, "command": self.command}


def advise(seen: Seen) -> list[Advice]:
    """All that applies, the most pressing first."""
    rules: tuple[Callable[[Seen], Advice | None], ...] = (
        _memory,
        _context,
        _cpu_build,
        _busy,
        _held,
        _scarce,
        _off,
        _nothing_accepted,
        _draft_on_cpu,
        _heavy_draft,
        _too_long,
        _slower,
        _no_gain,
        _falling,
        _repeats,
        _nearly_full,
    )
    said = [(rule.__name__.strip("_"), rule(seen)) for rule in rules]
    return [replace(found, kind=kind) for kind, found in said if found is not None]


def _memory(seen: Seen) -> Advice | None:
    if not seen.out_of_memory:
        return None
    if seen.kv in UNQUANTISED:
        way = ("An 8-bit cache takes half of the memory", f"--kv q8_0{_ctx(seen)}")
    elif seen.n_ctx > 2048:
        way = ("A shorter context takes less", f"--kv {seen.kv} --ctx {max(seen.n_ctx // 2, 2048)}")
    else:
        way = (
            "What is left to give up is the draft",
            f"--kv {seen.kv} --ctx {seen.n_ctx or 2048} --draft lookup",
        )
    draft = "" if "--draft" in way[1] else _draft(seen)
    return Advice(
        seen.out_of_memory,
        f"Weights, both caches and buffers are more than is free. {way[0]}; a smaller draft comes last.",
        f"localspec run {seen.target}{draft} {way[1]}".replace("  ", " "),
    )


def _ctx(seen: Seen) -> str:
    return f" --ctx {seen.n_ctx}" if seen.n_ctx else ""


def _context(seen: Seen) -> Advice | None:
    if not seen.n_ctx or seen.context_used < _CONTEXT * seen.n_ctx:
        return None
    return Advice(
        f"{seen.context_used:,} of {seen.n_ctx:,} tokens of the context are used.",
        "When it is full the answer ends. /drop forgets the oldest turn; a longer context has to be loaded.",
        "/drop",
    )


def _held(seen: Seen) -> Advice | None:
    if seen.gpu_busy or not seen.vram_total or seen.gpu_held < _HELD * seen.vram_total:
        return None
    names = f" ({', '.join(seen.gpu_programs)})" if seen.gpu_programs else ""
    return Advice(
        f"Other programs hold {human(seen.gpu_held)} of {human(seen.vram_total)} on the GPU{names}.",
        "That is missing for weights and caches, and a draft is the first to be left out. Close what is not needed.",
        "nvidia-smi",
    )


def _scarce(seen: Seen) -> Advice | None:
    if not seen.ram_total or seen.ram_free >= _SCARCE * seen.ram_total:
        return None
    return Advice(
        f"{human(seen.ram_free)} of {human(seen.ram_total)} RAM are free.",
        "A model that does not fit beside the rest is read from the disk again for every token.",
        f"localspec run {seen.target} --kv q8_0 --ctx 2048".replace("  ", " "),
    )


def _cpu_build(seen: Seen) -> Advice | None:
    if not seen.idle_gpu or seen.target_on_gpu:
        return None
    return Advice(
        f"All ran on the CPU, beside an idle {seen.idle_gpu}.",
        "This llama-cpp-python was built for the CPU only.",
        seen.gpu_build or "localspec doctor",
    )


def _busy(seen: Seen) -> Advice | None:
    if seen.gpu_busy:
        names = f" ({', '.join(seen.gpu_programs)})" if seen.gpu_programs else ""
        if seen.one_answer:
            return Advice(
                f"Other programs use the GPU: it is {seen.gpu_percent} % busy while we rest{names}.",
                "They take memory bandwidth, which is what decoding lives on. Without them answers come faster.",
                "nvidia-smi",
            )
        return Advice(
            f"Other programs used the GPU{names}.",
            "They take memory bandwidth, which is what decoding lives on. Close them and measure again.",
            _again(seen),
        )
    if seen.others_cpu > BUSY_SHARE:
        names = f" ({', '.join(seen.busy_programs)})" if seen.busy_programs else ""
        most = "" if seen.one_answer else "up to "
        took = f"Other programs took {most}{seen.others_cpu:.0%} of the CPU{names}."
        if seen.threads > 1 and not seen.target_on_gpu:
            return Advice(
                took,
                "Each step waits for its slowest thread, so one core that is taken slows all of them down many times."
                " Close the others, or leave them a core.",
                _command(seen, f"--threads {seen.threads - 1}"),
            )
        if not seen.one_answer:
            return Advice(took, "Runs beside them vary more. Close them and measure again.", _again(seen))
    return None


def _off(seen: Seen) -> Advice | None:
    if not seen.draft_off_reason or seen.draft in ("", "none"):
        return None
    if seen.n_draft == 0:
        command = f"localspec bench {seen.target}{_draft(seen)} --n-draft auto"
    elif seen.is_model:
        command = f"localspec check {seen.target} {seen.draft}"
    else:
        command = "localspec doctor"
    return Advice(
        f"Nothing was drafted: {seen.draft_off_reason}.", "Without a draft there is no speedup.", command
    )


def _nothing_accepted(seen: Seen) -> Advice | None:
    # The first position: a long draft accepts little of its end however well it fits.
    rate = seen.per_position[0] if seen.per_position else seen.acceptance_rate
    if rate is None or rate >= _LOW_ACCEPTANCE or seen.gains:
        return None
    if seen.draft == "lookup":
        return Advice(
            f"Only {rate:.0%} of the drafts had a right first token.",
            "These texts do not repeat what they read; lookup earns on edits, code and quotations.",
            "localspec models",
        )
    if not seen.is_model:
        return None
    return Advice(
        f"Only {rate:.0%} of the drafts had a right first token.",
        "The draft does not belong to the target: another vocabulary, another family or a broken quantisation.",
        f"localspec check {seen.target} {seen.draft}",
    )


def _draft_on_cpu(seen: Seen) -> Advice | None:
    if (
        not (seen.target_on_gpu and seen.is_model and seen.draft_layers and not seen.draft_on_gpu)
        or seen.gains
    ):
        return None
    return Advice(
        f"The target is on the GPU, the draft on the CPU{_step(seen)}.",
        "A draft beside the GPU often takes longer than it saves.",
        _command(seen, "--draft-device auto --draft-gpu-layers -1 --kv q8_0"),
    )


def _heavy_draft(seen: Seen) -> Advice | None:
    ratio = seen.cost_ratio
    if not seen.is_model or seen.gains or ratio is None:
        return None
    deeper = seen.draft_layers > seen.target_layers > 0
    if ratio < _HEAVY_STEP and not (deeper and (seen.bound or 0) < 1):
        return None
    layers = (
        f", and the draft has {seen.draft_layers} layers, the target {seen.target_layers}" if deeper else ""
    )
    return Advice(
        f"A draft step takes {ratio:.2f} of a target step{layers}.",
        "The draft is too slow for what it saves; a smaller one, or one that costs nothing, pays sooner.",
        _command(seen, "", draft="lookup"),
    )


def _too_long(seen: Seen) -> Advice | None:
    """A shorter draft would have been cheaper, by the measured parts."""
    if seen.auto or seen.gains or not seen.per_position or seen.cost_ratio is None or not seen.verify_curve:
        return None
    best, gain = best_length(seen.per_position, dict(seen.verify_curve), seen.cost_ratio)
    now = predicted_gain(seen.per_position, dict(seen.verify_curve), seen.cost_ratio, len(seen.per_position))
    if not 0 < best < len(seen.per_position) or gain < 1.03 or gain < 1.05 * now:
        return None
    last = seen.per_position[-1]
    return Advice(
        f"Position {len(seen.per_position)} is accepted in {last:.0%} of the rounds that reach it.",
        f"The draft is too long; the measured parts allow {gain:.2f}× at length {best}, {now:.2f}× at this one.",
        f"localspec bench {seen.target}{_draft(seen)} --n-draft {best}",
    )


def _slower(seen: Seen) -> Advice | None:
    if not seen.loses or seen.speedup is None:
        return None
    if seen.one_answer:
        auto = "" if seen.auto else " A length chosen by price stops drafting where that is so."
        return Advice(
            f"With the draft this answer was slower than without: {seen.speedup:.2f}× ({seen.speeds}).",
            f"On this text the draft costs more than it saves.{auto}",
            "/draft off" if seen.auto else "/n-draft auto",
        )
    parts = _parts(seen)
    return Advice(
        f"With the draft it is slower: {seen.speedup:.2f}×{_interval(seen)}.",
        f"Off is fastest for this pair on this machine{parts}.",
        f"localspec run {seen.target} --draft none".replace("  ", " "),
    )


def _no_gain(seen: Seen) -> Advice | None:
    if seen.speedup is None or seen.gains or seen.loses or seen.one_answer:
        return None
    return Advice(
        f"No speedup beyond noise: {seen.speedup:.2f}×{_interval(seen)}.",
        f"The draft saves about what it costs{_parts(seen)}, or the runs scatter too much to tell.",
        f"localspec bench {seen.target}{_draft(seen)} --repeats 7".replace("  ", " "),
    )


def _falling(seen: Seen) -> Advice | None:
    if seen.auto or len(seen.acceptance_by_length) < 2:
        return None
    (first, high), (last, low) = min(seen.acceptance_by_length), max(seen.acceptance_by_length)
    if low > _FALLING * high:
        return None
    if seen.one_answer:
        return Advice(
            f"Acceptance has fallen from {high:.0%} at {first:,} tokens of this conversation to {low:.0%} at {last:,}.",
            "The draft follows long texts less well, or what is written now is harder to guess. A length chosen by"
            " price wastes less there.",
            "/n-draft auto",
        )
    return Advice(
        f"Acceptance falls from {high:.0%} at {first} tokens to {low:.0%} at {last}.",
        "The draft follows long texts less well; a length that follows the text wastes less there.",
        f"localspec run {seen.target}{_draft(seen)} --n-draft auto".replace("  ", " "),
    )


def _repeats(seen: Seen) -> Advice | None:
    if seen.repetition < _REPEATS:
        return None
    change = "temp 0.7" if seen.temperature < 0.5 else "repeat-penalty 1.1"
    return Advice(
        f"An answer repeats itself: {seen.repetition:.0%} of its tokens continue a passage that it had before.",
        "Repeated text is easy to draft, so its speedup says little. The draft does not cause it: the text is the"
        " target's own.",
        f"/{change}" if seen.one_answer else _command(seen, f"--{change}"),
    )


def _nearly_full(seen: Seen) -> Advice | None:
    if not seen.vram_total or seen.vram_used < _FULL * seen.vram_total or seen.out_of_memory:
        return None
    return Advice(
        f"{seen.vram_used / seen.vram_total:.0%} of the GPU's memory is in use.",
        "At the brim some drivers move memory into RAM, which is slower than no draft.",
        _command(seen, "--kv q8_0"),
    )


def _draft(seen: Seen) -> str:
    return f" --draft {seen.draft}" if seen.draft and seen.draft != "none" else ""


def _again(seen: Seen) -> str:
    return f"localspec bench {seen.target}{_draft(seen)}".rstrip()


def _command(seen: Seen, change: str, draft: str = "") -> str:
    """Measure with this change; of a chat: go on with it."""
    which = f"{seen.target}{f' --draft {draft}' if draft else _draft(seen)}"
    words = ("run", which, change, "--continue") if seen.one_answer else ("bench", which, change)
    return " ".join(filter(None, ("localspec", *words)))


def _interval(seen: Seen) -> str:
    return f" ({seen.low:.2f} to {seen.high:.2f})" if seen.low is not None and seen.high is not None else ""


def _step(seen: Seen) -> str:
    ratio = seen.cost_ratio
    return "" if ratio is None else f"; a draft step takes {ratio:.2f} of a target step"


def _parts(seen: Seen) -> str:
    if seen.bound is None or seen.mean_accepted_length is None:
        return ""
    return f": a round yields {seen.mean_accepted_length:.2f} tokens, and its parts allow {seen.bound:.2f}× at most"
