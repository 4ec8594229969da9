"""Reasons for which a gap is none for a background job."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Why(Enum):
    """What is wrong with a gap, as a clause about the job."""

    PLACE = "its state can go on only elsewhere"
    TYPE = "it asked for GPUs of another type"
    MEMORY = "its memory is not known to fit beside that of {other}"
    STRICT = "{other} allows no slowdown"
    APART = "{other} became too slow beside it, or beside a job like it, and a pause is on"
    CALM = "its last trial was undone, and a pause is on"
    STARVED = "it, or a job like it, got nothing beside {other}, and a pause is on"
    SMALL = "too little is left"


class Refusal(NamedTuple):
    """Why a gap is none for a job, the foreground row that is to blame, and until when."""

    why: Why
    other: int = -1
    again_s: float | None = None

    @property
    def is_undone(self) -> bool:
        """True if an undone trial is the reason."""
        return self.why in (Why.APART, Why.CALM)
