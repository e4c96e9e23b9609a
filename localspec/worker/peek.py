"""One token of an answer, chosen again alone and in a batch: rounding or a fault? Runs in the engine's process."""

from __future__ import annotations

from localspec.spec.engine import Engine, Request
from localspec.spec.sampling import Sampler
from localspec.worker.loading import Loaded
from localspec.worker.prompt import to_request
from localspec.worker.protocol import Choosing, Peek, Peeked


def peek(loaded: Loaded, command: Peek) -> Peeked:
    """Evaluate prompt and answer token by token, then with the last `width` ids as one batch.

    Raises:
        DecodeError: llama.cpp failed.
    """
    engine = loaded.engine
    uncut = engine.context.has_state
    request, _ = to_request(command.question, loaded.template, engine.vocab, find_anchors=uncut)
    sampler = Sampler(request.sampling)
    width = max(min(command.width, len(command.answer), engine.context.max_outputs), 1)
    try:
        alone = _choose(engine, sampler, request, command, 1)
        batched = _choose(engine, sampler, request, command, width)
    finally:
        engine.clear()
    texts = {token: engine.vocab.piece(token).decode("utf-8", "replace") for token in command.candidates}
    return Peeked(alone, batched, width, texts)


def _choose(engine: Engine, sampler: Sampler, request: Request, command: Peek, width: int) -> Choosing:
    """The choice behind the answer, with its last `width` ids in one batch and the others one by one."""
    engine.clear()
    context, answer = engine.context, command.answer
    for _ in context.extend(request.prompt, anchors=request.anchors):  # as for the answer itself
        pass
    single = len(answer) - width
    for token in answer[: max(single, 0)]:
        context.decode([token], "last")
    if answer:
        context.decode(answer[-width:], "all")
    row = context.logits()[-1]
    history = [*request.prompt, *answer]
    choice = sampler.propose(row, len(history), history)
    return Choosing(choice.token, choice.margin, {token: float(row[token]) for token in command.candidates})
