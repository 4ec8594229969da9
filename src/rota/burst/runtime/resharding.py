"""Moves samples between ranks: the re-sharding between layers on different groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from rota.burst.runtime.groups import Groups, talk
from rota.burst.runtime.placement import Move


class Rows(NamedTuple):
    """What is known of a tensor anywhere: the shape of one sample, and the type."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    needs_gradient: bool


class Transfer:
    """One tensor on its way; :meth:`arrived` waits for it.

    ``own`` is what this rank has of it, None if it has no sample. Raises PeerLost.
    """

    def __init__(
        self, part: Move, own: torch.Tensor | None, rows: Rows, device: torch.device, groups: Groups
    ) -> None:
        self._part, self._rows = part, rows
        self._own = own.detach() if own is not None else None
        self._work: Any = None
        self._device = device
        if not any(part.sent) and not any(part.taken):
            return
        self._sent = self._packed([row for to in part.sent for row in to])
        sizes = [len(rows) for rows in part.taken]
        self._taken = torch.empty((sum(sizes), self._width), dtype=torch.uint8, device=device)
        self._work = talk(
            dist.all_to_all_single,
            self._taken,
            self._sent,
            sizes,
            [len(rows) for rows in part.sent],
            group=groups.of(part.ranks),
            async_op=True,
        )

    @property
    def _width(self) -> int:
        """Bytes of one sample."""
        size = self._rows.dtype.itemsize
        for length in self._rows.shape:
            size *= length
        return size

    def _packed(self, rows: Sequence[int]) -> torch.Tensor:
        """These rows, as bytes: gloo does not know all types."""
        if not rows or self._own is None:
            return torch.empty((0, self._width), dtype=torch.uint8, device=self._device)
        chosen = _select(self._own, rows).contiguous()
        return chosen.view(len(rows), -1).view(torch.uint8)

    def arrived(self) -> torch.Tensor | None:
        """This rank's samples from now on; None if it has none. Raises PeerLost."""
        part, rows = self._part, self._rows
        if self._work is not None:
            talk(self._work.wait)
        if part.stays:
            return self._own if part.rows else None
        if not part.rows:
            return None
        places = [row for of in part.taken for row in of]
        come = None
        if places:
            come = self._taken.view(rows.dtype).view(len(places), *rows.shape)
            if places == list(range(part.rows)):
                return come
        found = torch.empty((part.rows, *rows.shape), dtype=rows.dtype, device=self._device)
        before, after = part.kept
        if self._own is not None and before:
            _put(found, after, _select(self._own, before))
        if come is not None:
            _put(found, places, come)
        return found


def _select(tensor: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    if _neighbours(rows):
        return tensor[rows[0] : rows[-1] + 1]
    return tensor.index_select(0, torch.tensor(rows, device=tensor.device))


def _put(into: torch.Tensor, rows: Sequence[int], values: torch.Tensor) -> None:
    if _neighbours(rows):
        into[rows[0] : rows[-1] + 1] = values
    else:
        into.index_copy_(0, torch.tensor(rows, device=into.device), values)


def _neighbours(rows: Sequence[int]) -> bool:
    return all(after == before + 1 for before, after in pairwise(rows))
