"""Answers whose acceptance is forced: everything is computed as ever, and then the choices are overruled by a script.

Models with drawn weights agree on nothing. So the target's choice at each position is taken from a script, and the
draft's is the same one with a given chance; the time that both choices take is spent nevertheless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from localspec.spec.answer import Answer as EngineAnswer
from localspec.spec.answer import Request
from localspec.spec.curve import Costs
from localspec.spec.engine import Engine
from localspec.spec.events import Finished, Round, Sampling
from localspec.spec.sampling import Choice, Row, Sampler
from scripts.peers.answers import Answer
from scripts.peers.clock import NativeClock
from scripts.peers.ours import to_answer

_FIRST_ID = 259  # those before are control tokens and bytes
_MARGIN = 1.0


@dataclass(frozen=True, slots=True)
class Script:
    """What is said.

    Attributes:
        prompt: Ids of the prompt.
        ids: Those of the whole text, the prompt first.
        luck: For each position, a number between 0 and 1: a draft is right where it is under the acceptance.
    """

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    luck: tuple[float, ...]

    @classmethod
    def drawn(cls, n_vocab: int, prompt: int, tokens: int, seed: int = 1) -> Script:
        """A text of drawn ids.

        Args:
            n_vocab: Size of the vocabulary.
            prompt: Tokens of the prompt.
            tokens: Tokens of the answer.
            seed: Of the draw.
        """
        rng = np.random.default_rng(seed)
        ids = rng.integers(_FIRST_ID, n_vocab, prompt + tokens + 64)  # drafts may go beyond the end
        return cls(tuple(ids[:prompt].tolist()), tuple(ids.tolist()), tuple(rng.random(len(ids)).tolist()))


class ForcedSampler(Sampler):
    """Chooses as ever, and then says what the script says.

    Args:
        sampling: How tokens are chosen.
        script: What is said.
        acceptance: The chance that a proposed token is the right one, wherever those before it are.
    """

    def __init__(self, sampling: Sampling, script: Script, acceptance: float) -> None:
        super().__init__(sampling)
        self._script, self._acceptance = script, acceptance

    def choose(self, row: Row, position: int, history: Sequence[int]) -> int:
        """See `Sampler.choose`."""
        super().choose(row, position, history)
        return self._script.ids[position]

    def propose(self, row: Row, position: int, history: Sequence[int]) -> Choice:
        """See `Sampler.propose`."""
        super().propose(row, position, history)
        right = self._script.ids[position]
        wrong = _FIRST_ID if right != _FIRST_ID else _FIRST_ID + 1
        # The draft knows how often it is right, and nothing about single tokens.
        return Choice(
            right if self._script.luck[position] < self._acceptance else wrong, self._acceptance, _MARGIN
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """An answer, and what our own code took of each round.

    Attributes:
        answer: Its counters.
        own_s: Seconds of each round that were not spent inside llama.cpp.
        round_s: Seconds of each round.
    """

    answer: Answer
    own_s: tuple[float, ...]
    round_s: tuple[float, ...]


def ask(
    engine: Engine,
    script: Script,
    acceptance: float,
    tokens: int,
    clock: NativeClock,
    *,
    length: int,
    costs: Costs | None = None,
    temperature: float = 0.7,
) -> Measured:
    """One answer.

    Args:
        engine: The pair; what its caches hold of the prompt is used.
        script: What is said.
        acceptance: The chance of a proposed token.
        tokens: Of the answer.
        clock: Running.
        length: The draft length, with `costs` the greatest; 0 is plain decoding.
        costs: The prices by which each round's length is chosen.
        temperature: At which both models choose before they are overruled.

    Raises:
        DecodeError: llama.cpp failed.
    """
    sampling = Sampling(temperature=temperature, top_p=0.9, seed=1)
    engine.set_length(length, costs)
    answer = EngineAnswer(engine, Request(list(script.prompt), sampling, max_tokens=tokens, ignore_eos=True))
    answer.sampler = ForcedSampler(sampling, script, 1.0)
    answer.draft_sampler = ForcedSampler(answer.draft_sampler.sampling, script, acceptance)
    rounds: list[Round] = []
    own, whole = [], []
    last: Finished | None = None
    at, native = 0.0, 0.0
    for event in answer.run(lambda: False):
        if isinstance(event, Finished):
            last = event
        if isinstance(event, Round):
            if rounds and event.stats.rounds > rounds[-1].stats.rounds:
                whole.append(event.stats.decode_s - at)
                own.append(whole[-1] - (clock.seconds - native))
            at, native = event.stats.decode_s, clock.seconds
            rounds.append(event)
    assert last is not None
    return Measured(to_answer(rounds, last), tuple(own), tuple(whole))
