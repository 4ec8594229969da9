"""Integer and boolean buffers of a model, such as how many batches were normalised."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rota.errors import InputError

MOST_COUNTERS = 16  # numbers in an integer buffer that may change


class Counters:
    """Counters of models. After each batch all ranks have those of its last shard, byte for byte.

    They travel as bytes among the gradients, whose types hold the numbers up to 255 exactly. Large
    ones (masks, tables of positions) must stay as they are.
    """

    def __init__(self, buffers: Sequence[torch.Tensor]) -> None:
        integers = [b for b in buffers if not (b.is_floating_point() or b.is_complex())]
        self.changing = [b for b in integers if b.numel() <= MOST_COUNTERS]
        self._fixed = [b for b in integers if b.numel() > MOST_COUNTERS]
        self._versions: list[int] = []
        self._sizes = [b.nbytes for b in self.changing]
        self.num_bytes = sum(self._sizes)

    def begin(self) -> None:
        """A batch begins."""
        self._versions = [b._version for b in self._fixed]

    def check(self) -> None:
        """Raises InputError if a large buffer has changed since the batch began."""
        for buffer, version in zip(self._fixed, self._versions, strict=True):
            if buffer._version != version:
                raise InputError(
                    f"forward changes an integer buffer of {buffer.numel()} numbers (shape "
                    f"{tuple(buffer.shape)}), and ranks can keep up to {MOST_COUNTERS} equal; "
                    "make it a float buffer, or keep it outside of the model"
                )

    def pack(self, place: torch.Tensor) -> None:
        """Write the bytes into a vector of ``num_bytes`` numbers."""
        flat = [b.detach().reshape(-1).contiguous().view(torch.uint8) for b in self.changing]
        place.copy_(torch.cat(flat))

    def unpack(self, place: torch.Tensor) -> None:
        """Take over what :meth:`pack` wrote."""
        for buffer, values in zip(self.changing, place.split(self._sizes), strict=True):
            # A copy begins where any type may begin.
            exact = values.real.to(torch.uint8, copy=True)
            buffer.copy_(exact.view(buffer.dtype).view_as(buffer))
