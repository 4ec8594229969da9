"""One batch of elastic training: the pieces of a rank, and the gradients of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rota.errors import InputError
from rota.live.wire import COMPUTING, WAITING
from rota.share.marks import FORWARD, LOAD, OPTIMISE, REDUCE
from rota.share.page import MarkWriter
from rota.train.gradient_clock import GradientClock
from rota.train.gradients import Gradients
from rota.train.loader import Loader, set_seeds
from rota.train.lr_scaling import LrScaling
from rota.train.member import Member
from rota.train.pulse import Pulse
from rota.train.shards import Piece, seed_of
from rota.train.turns import Turns


class Batch:
    """A batch: iterate over this rank's pieces, and call ``backward`` on the loss of each.

    When the loop ends, ``.grad`` holds the mean gradient of the whole batch, the same on all ranks,
    until the next batch begins. If a rank is lost before that, the loop continues with the pieces
    that this rank then has, from the first one; until then only gradients have changed.
    """

    def __init__(
        self,
        loader: Loader,
        gradients: Gradients,
        lr_scaling: LrScaling | None,
        member: Member,
        pulse: Pulse,
        page: MarkWriter,
        turns: Turns,
        clock: GradientClock | None = None,
    ) -> None:
        self._loader = loader
        self._lr_scaling = lr_scaling
        self._gradients = gradients
        self._member = member
        self._pulse = pulse
        self._page = page
        self._turns = turns
        self.samples = len(loader.indices())
        self.begun = self.complete = False
        self._clock = clock
        adaptation = loader.adaptation
        self.cut = (
            (adaptation.world, adaptation.per_rank, adaptation.accumulation) if adaptation else None
        )
        if lr_scaling is not None:
            lr_scaling.scale = loader.batch_size / loader.initial

    def __iter__(self) -> Iterator[Any]:
        if self.complete:
            raise InputError("this batch has been worked through; take the next one")
        loader, gradients = self._loader, self._gradients
        self.begun = True
        while not self.complete:
            pieces = self._pieces()
            if loader.adaptation is not None:
                gradients.word = loader.adaptation.word()
            gradients.begin(
                sum(piece.weight for piece in pieces),
                # Not for what happens to be a single piece: bits must not depend on the ranks.
                alone=self._member.rehearses or loader.shards == 1,
                place=self._place(),
                last=self._last(),
                number=loader.position.batches,
            )
            for number, piece in enumerate(pieces):
                if number:
                    gradients.next_shard()
                self._page.enter(LOAD)
                loaded = loader.load(piece, ahead=not self._member.rehearses)
                self._turns.begin()
                self._page.enter(FORWARD)
                if self._clock is not None:
                    self._clock.start()
                yield loaded
                if self._clock is not None:
                    self._clock.stop()
                gradients.take(piece.shard, piece.weight)
            self._turns.begin()  # without pieces it has come here without
            self._turns.meet()
            self._pulse.enter(WAITING, sum(len(piece.samples) for piece in pieces))
            self._page.enter(REDUCE)
            self._reduce()
            self._page.enter(OPTIMISE)
            self._pulse.enter(COMPUTING)
        if self._member.rehearses:
            gradients.make_room()
        set_seeds(seed_of(loader.seed, loader.position.batches, loader.shards))

    def undo(self) -> None:
        """Restore all but gradients to the state before this batch, which is still to come."""
        self._gradients.next_shard()

    def _place(self) -> int:
        """A number that tells this batch from others."""
        position = self._loader.position
        return seed_of(position.epoch, position.samples, position.batches)

    def _last(self) -> int:
        """The shard with the last samples of the batch; a rehearsal has shard 0 alone."""
        if self._member.rehearses:
            return 0
        return self._loader.pieces_of(0, world_size=1)[-1].shard

    def _pieces(self) -> list[Piece]:
        """This rank's pieces; a newcomer that rehearses works through a single one by itself."""
        if self._member.rehearses:
            return [self._loader.pieces_of(0, world_size=1)[0]._replace(shard=0, weight=1.0)]
        return self._loader.pieces_of(self._member.world.rank)

    def _reduce(self) -> None:
        """Add up over all ranks, or join a working group if this one is broken."""
        world, loader = self._member.world, self._loader
        everybody = [[0]]
        if not self._member.rehearses:
            everybody = [
                [piece.shard for piece in loader.pieces_of(rank) if piece.weight]
                for rank in range(world.size)
            ]
        rank = 0 if self._member.rehearses else world.rank
        failure = None
        try:
            self._gradients.reduce(everybody, rank, loader.position.batches)
        except RuntimeError as error:
            failure = str(error)
        if failure is not None:
            self._member.recover(failure)
        # The others may have completed the batch before the group broke, and handed over its sum.
        if self._gradients.reduced_batch == loader.position.batches:
            parts = sum(1 for piece in loader.pieces_of(0, world_size=1) if piece.weight)
            self._gradients.give(parts, self.samples / loader.initial)
            self._count()
            self.complete = True

    def _count(self) -> None:
        """Update the counters by what all ranks have learned, unless this rank rehearses."""
        gradients, adaptation = self._gradients, self._loader.adaptation
        if self._member.rehearses:
            return
        if self._lr_scaling is not None:
            share = self.samples / self._loader.batch_size
            unit, every = gradients.measured_in
            self._lr_scaling.complete(share, gradients.squares, unit=unit, every=every)
        if adaptation is not None:
            adaptation.hear(gradients.heard)
