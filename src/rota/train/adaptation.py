"""Batches whose size the scheduler chooses: as many samples per rank and turn, so many turns."""

from __future__ import annotations

import os
from typing import NamedTuple

from rota.errors import InputError
from rota.live.wire import Message
from rota.train.shards import num_pieces

OWN = (0, 0)
MOST_SAMPLES = (1 << 24) - 1  # of a batch: single precision has all whole numbers up to there


# The size of a batch, the samples of a piece, how often gradients are accumulated, for how many
# ranks.
Word = tuple[int, int, int, int]


class Limits(NamedTuple):
    """Samples of a batch: the initial one and the largest, and what a rank takes in one turn."""

    initial: int
    most: int
    most_per_rank: int
    least_per_rank: int = 1

    @property
    def most_ranks(self) -> int:
        """The most ranks that each have at least their least part of the largest batch."""
        return self.most // self.least_per_rank


class Adaptation:
    """The size of the next batches, and how they are cut.

    A batch has ``size`` samples. Every rank works through ``1 + accumulation`` pieces of it, of
    ``per_rank`` samples each, or a few less where that does not come out even. Until the scheduler
    says otherwise a batch is the initial one, and one that it has chosen stays as it is when the
    gang changes: then it is cut anew, into as few pieces as ``most_per_rank`` allows. No piece has
    fewer than ``least_per_rank`` samples: ranks for which that leaves nothing take part without.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.size = limits.initial
        self.per_rank = self.accumulation = 0
        self.world = 0  # number of ranks it is cut for
        self._fit: tuple[int, int] | None = None  # the size and samples of a piece before these
        self.wanted: tuple[int, int] | None = None  # by the scheduler, for one of the next batches
        self.answers: list[Message] = []  # for the agent

    @property
    def shards(self) -> int:
        """The number of pieces."""
        return self.world * (1 + self.accumulation)

    @property
    def scale(self) -> float:
        """The size in initial batches."""
        return self.size / self.limits.initial

    def fit(self, world: int) -> None:
        """Cut the next batch for so many ranks."""
        if world != self.world:
            if self.world:
                self._fit = (self.size, self.per_rank)
            self.per_rank, self.accumulation = self._cut(self.size, world)
            self.world = world

    def _cut(self, size: int, world: int) -> tuple[int, int]:
        """The fewest pieces in which ranks can take a batch."""
        least = self.limits.least_per_rank
        turns = -(-size // (world * self.limits.most_per_rank))
        if world == 1 and size > self.limits.initial:
            # Of a single gradient the noise can't be told without bias.
            turns = max(turns, num_pieces(size, 2, least))
        return -(-size // num_pieces(size, world * turns, least)), turns - 1

    def word(self) -> Word:
        """Rank 0's word to all ranks, sent with the present batch and valid from the next one on.

        Zeros if nothing changes. An impossible change is refused, once.
        """
        if self.wanted is None:
            return (0, 0, 0, 0)
        if self.wanted == OWN:
            initial = self.limits.initial
            return (initial, *self._cut(initial, self.world), self.world)
        per_rank, accumulation = self.wanted
        error = self._refusal(per_rank, accumulation)
        if error is not None:
            self._answer(self.wanted, error)
            self.wanted = None
            return (0, 0, 0, 0)
        size = self.world * per_rank * (1 + accumulation)
        size = max(min(size, self.limits.most), self.limits.initial)
        return (size, per_rank, accumulation, self.world)

    def hear(self, word: Word) -> bool:
        """Take over rank 0's word. True if it changes the batches."""
        if word[0] == 0:
            return False
        if word[:2] != (self.size, self.per_rank):
            self._fit = (self.size, self.per_rank)
        self.size, self.per_rank, self.accumulation, self.world = word
        batch = (self.per_rank, self.accumulation)
        if self.wanted == OWN and self.size == self.limits.initial:
            batch = OWN
        if self.wanted == batch:
            self.wanted = None
        self._answer(batch, None)
        return True

    def want(self, per_rank: int, accumulation: int) -> None:
        """Note the batches that the scheduler wants next; ``OWN`` stands for the initial ones."""
        self.wanted = (per_rank, accumulation)

    def step_back(self) -> bool:
        """Return to the previous batch, because the present one does not fit into memory.

        Pieces of the present size become forbidden, and so do pieces of more than half of it that
        were never tried. If the previous pieces were not smaller, larger batches become forbidden
        instead. Returns False if there is no previous batch: the program's own batch does not fit.
        """
        batch, (initial, _, _, least) = (self.per_rank, self.accumulation), self.limits
        size, per_rank = self._fit or (initial, self._cut(initial, self.world)[0])
        if per_rank < self.per_rank and 2 * least - 1 < self.per_rank:  # all batches can be cut
            most = max(per_rank, self.per_rank // 2, 2 * least - 1)
            self.limits = self.limits._replace(most_per_rank=most)
        elif size < self.size:
            self.limits = self.limits._replace(most=size)
        else:
            return False
        self.size, self.world, self._fit = min(size, self.size), 0, None
        self._answer(batch, "out of memory")
        return True

    def told(self) -> list[Message]:
        """Messages that the agent has not been sent yet."""
        answers, self.answers = self.answers, []
        return answers

    def state(self) -> list[int]:
        """The state that a newcomer needs."""
        word = [self.size, self.per_rank, self.accumulation, self.world]
        return [*word, self.limits.initial, self.limits.most_per_rank, self.limits.most]

    def load(self, state: list[int]) -> None:
        """Load what :meth:`state` gave, unless the program has another initial batch since."""
        size, per_rank, accumulation, world, initial, fits, *known = state
        if initial != self.limits.initial:
            return
        # A rank can't know of the first ones, nor a later attempt of what did not fit.
        most = min([self.limits.most, *known])
        self.limits = self.limits._replace(most_per_rank=fits, most=most)
        self.size = min(size, self.limits.most)
        self.per_rank, self.accumulation = per_rank, accumulation
        self.world = world if self.size == size else 0  # 0: to be cut anew

    def _refusal(self, per_rank: int, accumulation: int) -> str | None:
        """The reason for which batches can't be cut like that; None if they can."""
        initial, most, most_per_rank, least = self.limits
        turns = self.world * (1 + accumulation)
        size = f"{self.world} ranks x {per_rank} samples x {1 + accumulation}"
        if not least <= per_rank <= most_per_rank:
            return f"a rank takes {least} to {most_per_rank} samples at once, and not {per_rank}"
        if turns * (per_rank - 1) >= most or turns * least > most:  # more than by rounding up
            return f"{size} are more than the largest batch of {most}"
        if turns * (per_rank + 1) <= initial:
            return f"{size} are fewer than the initial batch of {initial}"
        return None

    def _answer(self, batch: tuple[int, int], error: str | None) -> None:
        self.answers.append({"type": "tuned", "batch": list(batch), "refusal": error})


def is_asked_for(adapt: bool | None) -> bool:
    """True if the scheduler is to choose batches: as the program says, else as the job file does.

    Raises InputError.
    """
    if adapt is not None and not isinstance(adapt, bool):
        raise InputError(f"s.loader: adapt={adapt!r} must be True, False or None")
    return "ROTA_MAX_BATCH" in os.environ if adapt is None else adapt


def limits_of(initial: int, samples: int, world: int) -> Limits:
    """The limits of a training's batches, from the job file and the dataset's ``samples``.

    ``world`` is the fewest ranks that there are. A rank's part of the initial batch is assumed to
    fit; more is allowed only if the job file says so, or if batches could not be cut into pieces of
    the least size otherwise. Raises InputError.
    """
    most = int(os.environ.get("ROTA_MAX_BATCH", initial))
    if most < initial:
        raise InputError(
            f"batch.max_global in the job file is {most}, and s.loader(batch_size={initial}) is "
            "the initial batch, below which none goes; raise the one or lower the other"
        )
    least = int(os.environ.get("ROTA_MIN_BATCH_PER_GPU", "1"))
    if least > min(initial, samples):
        what = f"s.loader(batch_size={initial})" if least > initial else f"a dataset of {samples}"
        raise InputError(
            f"batch.min_per_gpu in the job file is {least}, and {what} has fewer samples than that "
            "for a single GPU; raise the one or lower the other"
        )
    most = max(min(most, samples, MOST_SAMPLES), initial)
    fits = max(-(-initial // world), 2 * least - 1)
    return Limits(initial, most, int(os.environ.get("ROTA_MAX_BATCH_PER_GPU", fits)), least)
