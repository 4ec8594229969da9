"""How a try to tell a hook has ended."""

from typing import NamedTuple


class Outcome(NamedTuple):
    """``arrived``, or not; ``answer`` tells why, in words without secrets."""

    arrived: bool
    answer: str
