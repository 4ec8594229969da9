"""Checks the program's own values that are kept with the state of training."""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any, BinaryIO

from rota.errors import InputError

PLAIN = (type(None), bool, int, float, str, bytes)


class _Trial(pickle.Pickler):
    """Pickles without tensors, which are sent separately, and without copying large buffers."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, 5, buffer_callback=lambda _: False)

    def persistent_id(self, value: Any) -> str | None:
        torch = sys.modules.get("torch")
        return "tensor" if torch is not None and isinstance(value, torch.Tensor) else None


def check_kept(values: dict[str, Any], *, handed_over: bool) -> None:
    """Raises InputError if one of these can't be kept, or not be ``handed_over`` to other ranks."""
    for name, value in values.items():
        if type(value) in PLAIN:
            continue
        if handed_over:
            _check_handed_over(name, value)
        try:
            with open(os.devnull, "wb") as nowhere:
                _Trial(nowhere).dump(value)
        except Exception as error:  # any error of the value's own methods
            raise InputError(
                f"s.save: {name}={type(value).__name__} can't be pickled, so that no other rank "
                f"can get it ({error}); save numbers, text, tensors, and lists and dicts of them"
            ) from None


def _check_handed_over(name: str, value: Any) -> None:
    from rota.train.values import encode

    try:
        encode(value)
    except TypeError as error:
        raise InputError(
            f"s.save: {name}={type(value).__name__}: {error}: other ranks would not get it"
        ) from None
