"""The data loader of elastic training: each sample of an epoch once, on whichever rank."""

from __future__ import annotations

import operator
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from rota.errors import InputError
from rota.train.adaptation import Adaptation
from rota.train.lr_scaling import check_rule
from rota.train.shards import (
    Piece,
    even_part,
    even_pieces,
    next_size,
    one_piece,
    pieces,
    seed_of,
    shards_of_rank,
)
from rota.train.world import World

SHARDS = 8  # of a batch, unless the program says otherwise: as many ranks can share it


class Position:
    """Position in the data: the epoch, its samples that are done, and the number of batches."""

    def __init__(self) -> None:
        self.epoch = 0
        self.samples = 0
        self.batches = 0  # of all epochs


class Loader:
    """Batches of a dataset, of which each rank loads its own pieces. Made by ``Session.loader``.

    ``batch_size`` is the global one; with ``per_rank`` it is that of the present batch, so many
    samples for each rank, a shard each; with an ``adaptation`` it is what that says. The samples of
    an epoch are put in an order that ``seed`` and the number of the epoch give alone; a batch is
    the next ``batch_size`` of them, the last one may be smaller (or is left out, with
    ``drop_last``). Random generators of Python, NumPy and torch are set anew for every piece, so
    that augmentation and dropout are the same wherever the piece is worked on.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        shards: int,
        per_rank: int | None = None,
        adaptation: Adaptation | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        world: World,
        batches: Callable[[], Iterator[Iterable[Any]]],
    ) -> None:
        check_dataset(dataset)
        batch_size = _count("batch_size", batch_size, 1)
        shards = _count("shards", shards, 1)
        _check_sizes(dataset, batch_size, shards, _flag("drop_last", drop_last))
        if collate_fn is not None and not callable(collate_fn):
            raise InputError(f"s.loader: collate_fn={collate_fn!r} must be a function, or left out")
        self.dataset = dataset
        self.batch_size = batch_size
        self.shards = shards
        self.most_ranks = shards
        self.per_rank = per_rank
        self.adaptation = adaptation
        self.seed = _whole("seed", seed)
        self.position = Position()
        self.whole = False  # True if a rank gets its samples in one piece, for any number of shards
        self.even = False  # True if parts of ranks are even, for any number of shards
        self._shuffle = _flag("shuffle", shuffle)
        self._drop_last = drop_last
        self._num_workers = _workers(num_workers)  # None: by CPU cores
        self._collate_fn = collate_fn
        self._world = world
        self._batches = batches
        self._order: tuple[int, Sequence[int]] = (-1, ())
        self._stream: _Stream | None = None
        self._wait_s = 0.0

    def __iter__(self) -> Iterator[Iterable[Any]]:
        """The batches left in the present epoch.

        Each is one optimiser step, and iterates over this rank's pieces.
        """
        return self._batches()

    def fit(self) -> None:
        """Set the size of the next batch for the present gang, if that changes it."""
        if self.per_rank is not None:
            self.shards = self._world.size
            self.batch_size = self.per_rank * self.shards
        if self.adaptation is not None:
            self.adaptation.fit(self._world.size)
            self.shards, self.batch_size = self.adaptation.shards, self.adaptation.size

    @property
    def varies(self) -> bool:
        """True if the size of batches may change."""
        return self.per_rank is not None or self.adaptation is not None

    @property
    def workers(self) -> int:
        """Number of processes that load data; 0: the program itself does."""
        return self._stream.workers if self._stream is not None else 0

    @property
    def initial(self) -> int:
        """Samples of the batch for which the learning rate is meant."""
        if self.adaptation is not None:
            return self.adaptation.limits.initial
        return self.per_rank or self.batch_size

    def __len__(self) -> int:
        """Batches in one epoch, if they are all as large as the present one."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole + (1 if rest and not self._drop_last else 0)

    @property
    def epoch_samples(self) -> int:
        """Samples in one epoch; slightly fewer where batches grow and the last is dropped."""
        fixed = self._drop_last and not self.varies
        return len(self) * self.batch_size if fixed else len(self.dataset)

    def indices(self) -> Sequence[int]:
        """The samples of the batch at the position; empty at the end of the epoch."""
        order, first = self._order_of(self.position.epoch), self.position.samples
        size = self.batch_size
        if self.adaptation is not None and not self._drop_last:
            least = self.adaptation.limits.least_per_rank
            size = next_size(size, len(order) - first, least)
        batch = order[first : first + size]
        return batch if len(batch) == self.batch_size or not self._drop_last else ()

    def pieces_of(self, rank: int, world_size: int | None = None) -> list[Piece]:
        """The pieces of the batch at the position that one rank works through."""
        shards = shards_of_rank(self.shards, world_size or self._world.size, rank)
        size = -(-self.batch_size // self.shards)
        if self.even:
            return [even_part(self.indices(), rank, world_size or self._world.size)]
        if self.adaptation is not None:
            least = self.adaptation.limits.least_per_rank
            return even_pieces(self.indices(), size, shards, least)
        cut = one_piece if self.whole else pieces
        return cut(self.indices(), size, shards)

    def load(self, piece: Piece, *, ahead: bool = True) -> Any:
        """The samples of a piece, collated; ``ahead``: by workers, with the following pieces."""
        since_s = time.monotonic()
        where = (self.position.epoch, self.position.batches, piece)
        if self._num_workers != 0 and ahead:
            if self._stream is None or not self._stream.leads_to(where, self._world):
                self.close()
                self._stream = _Stream(self, self._world, where)
            loaded = self._stream.next()
        else:
            loaded = _load(self.dataset, self._collate, self._seed(piece), piece.samples)
        self._wait_s += time.monotonic() - since_s
        set_seeds(self._seed(piece))
        return loaded

    def take_wait_s(self) -> float:
        """Seconds that the program has waited for data since the last call."""
        wait_s, self._wait_s = self._wait_s, 0.0
        return wait_s

    def advance(self) -> None:
        """Move to the next batch."""
        self.position.samples += len(self.indices())
        self.position.batches += 1

    def next_epoch(self, epoch: int) -> None:
        """Move to the beginning of an epoch."""
        self.position.epoch, self.position.samples = epoch, 0

    def close(self) -> None:
        """End the worker processes."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _collate(self, samples: list[Any]) -> Any:
        if self._collate_fn is not None:
            return self._collate_fn(samples)
        return default_collate(samples)

    def _seed(self, piece: Piece) -> int:
        return seed_of(self.seed, self.position.batches, piece.shard)

    def _order_of(self, epoch: int) -> Sequence[int]:
        if self._order[0] != epoch:
            size = len(self.dataset)
            if self._shuffle:
                generator = torch.Generator().manual_seed(seed_of(self.seed, epoch))
                order = torch.randperm(size, generator=generator).tolist()
            else:
                order = range(size)
            self._order = (epoch, order)
        return self._order[1]

    def ahead(self) -> Iterator[tuple[int, int, Piece]]:
        """The pieces of this rank from the position to the end of the epoch, with their places."""
        kept = self.position
        look = self.position = Position()
        look.epoch, look.samples, look.batches = kept.epoch, kept.samples, kept.batches
        found = []
        while len(self.indices()):
            found += [(look.epoch, look.batches, p) for p in self.pieces_of(self._world.rank)]
            self.advance()
        self.position = kept
        return iter(found)


class _Stream:
    """Worker processes that load one rank's pieces ahead, while its share stays the same."""

    def __init__(self, loader: Loader, world: World, where: tuple[int, int, Piece]) -> None:
        self._generation = (world.generation, world.rank, world.size)
        places = [place for place in loader.ahead() if place[:2] >= where[:2]]
        while places and places[0] != where:
            places.pop(0)
        self._places = places
        seeds = [seed_of(loader.seed, batches, piece.shard) for _, batches, piece in places]
        tasks = [(seed, p.samples) for seed, (_, _, p) in zip(seeds, places, strict=True)]
        workers = loader._num_workers
        if workers is None:
            workers = min(world.cores.workers(world.size), len(tasks))
        self.workers = workers
        self._loader = DataLoader(
            _Pieces(loader.dataset, loader._collate, tasks),
            batch_size=None,
            num_workers=self.workers,
        )
        self._iterator: Any = iter(self._loader)

    def leads_to(self, where: tuple[int, int, Piece], world: World) -> bool:
        """True if the next piece to come out is the one at ``where``."""
        same = self._generation == (world.generation, world.rank, world.size)
        return same and bool(self._places) and self._places[0] == where

    def next(self) -> Any:
        """The next piece, loaded."""
        self._places.pop(0)
        return next(self._iterator)

    def close(self) -> None:
        """End the worker processes."""
        self._iterator = None


class _Pieces:
    """A dataset for torch's DataLoader whose items are whole pieces."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any], tasks: list[Any]) -> None:
        self._dataset, self._collate, self._tasks = dataset, collate, tasks

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> Any:
        seed, samples = self._tasks[index]
        return _load(self._dataset, self._collate, seed, samples)


def _load(
    dataset: Any, collate: Callable[[list[Any]], Any], seed: int, samples: Sequence[int]
) -> Any:
    set_seeds(seed)
    if hasattr(dataset, "__getitems__"):
        return collate(dataset.__getitems__(list(samples)))
    return collate([dataset[index] for index in samples])


def set_seeds(seed: int) -> None:
    """Set the random generators of Python, torch and, if it is loaded, NumPy."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


def batch_policy(
    batch_size: int | None,
    batch_size_per_rank: int | None,
    lr_scaling: str | None,
    shards: int | None,
    most_ranks: int,
    *,
    adapts: bool = False,
    warmup_epochs: float = 0.0,
) -> tuple[int, int | None]:
    """The size of the largest batch, and that of each rank's part if batches grow. InputError.

    Where the scheduler ``adapts`` batches, it is the initial size.
    """
    if (batch_size is None) == (batch_size_per_rank is None):
        raise InputError(
            "s.loader: give either batch_size, of all ranks together whatever their number, or "
            f"batch_size_per_rank; not batch_size={batch_size!r} and "
            f"batch_size_per_rank={batch_size_per_rank!r}"
        )
    if adapts and batch_size is None:
        raise InputError(
            f"s.loader: batch_size_per_rank={batch_size_per_rank!r} grows with the gang, and the "
            "scheduler is to choose batches (adapt=True, or batch: {mode: adapt} in the job file); "
            "give batch_size, that of the first batches, or leave the other out"
        )
    if batch_size is not None:
        if lr_scaling is not None and not adapts:
            raise InputError(
                f"s.loader: lr_scaling={lr_scaling!r} is for batch_size_per_rank, or adapt=True; a "
                "batch_size of all ranks together does not change, and so the learning rate must "
                "not either"
            )
        check_rule(lr_scaling, warmup_epochs)
        return _count("batch_size", batch_size, 1), None
    batch_size_per_rank = _count("batch_size_per_rank", batch_size_per_rank, 1)
    check_rule(lr_scaling, warmup_epochs)
    if shards is not None:
        raise InputError(
            f"s.loader: shards={shards!r} is for batch_size; with batch_size_per_rank each rank's "
            "part of a batch is one shard"
        )
    return batch_size_per_rank * most_ranks, batch_size_per_rank


def default_shards(dataset: Any, batch_size: int, most_ranks: int) -> int:
    """Number of shards of a batch unless the program gives one: the same wherever it runs.

    ``SHARDS``, or as many as can have samples. Raises InputError if a rank would have none.
    """
    check_dataset(dataset)
    most = min(SHARDS, batch_size, len(dataset)) or 1
    shards = -(-batch_size // -(-batch_size // most))
    if shards < most_ranks:
        raise InputError(
            f"s.loader: the job may have {most_ranks} ranks, and its batches of {batch_size} "
            f"samples are cut into {shards} shards by default; give s.loader(..., shards=...), at "
            f"least {most_ranks} and the same wherever the program runs, or allow fewer GPUs"
        )
    return shards


def check_dataset(dataset: Any) -> None:
    """Raises InputError if it is not a map-style dataset."""
    indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not indexed or isinstance(dataset, IterableDataset):
        raise InputError(
            f"s.loader: {type(dataset).__name__} has no length or can't be indexed; an elastic "
            "loader needs a map-style dataset, because it must find any sample again"
        )


def _whole(name: str, value: Any) -> int:
    """The number as a Python int, NumPy's integers included."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise InputError(f"s.loader: {name}={value!r} must be a whole number") from None


def _count(name: str, value: Any, least: int) -> int:
    wrong = InputError(f"s.loader: {name}={value!r} must be a whole number from {least}")
    try:
        number = _whole(name, value)
    except InputError:
        raise wrong from None
    if number < least:
        raise wrong
    return number


def _workers(value: Any) -> int | None:
    """The number of workers; None for ``auto``."""
    if isinstance(value, str) and value == "auto":
        return None
    try:
        return _count("num_workers", value, 0)
    except InputError as error:
        raise InputError(f"{error}, or 'auto'") from None


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"s.loader: {name}={value!r} must be True or False")
    return value


def _check_sizes(dataset: Any, batch_size: int, shards: int, drop_last: bool) -> None:
    if shards > batch_size:
        raise InputError(
            f"s.loader: a batch of {batch_size} samples can't be cut into {shards} shards; "
            "use a larger batch_size, or fewer shards"
        )
    least = batch_size if drop_last else shards
    if len(dataset) < least:
        raise InputError(
            f"s.loader: the dataset has {len(dataset)} samples, which is less than "
            + ("one batch" if drop_last else "one for each shard")
            + f" ({least}); use a smaller batch_size or fewer shards"
        )
