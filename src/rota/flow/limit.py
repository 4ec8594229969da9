"""How long an operation of a program may run. Pure: looks come with their time."""

from __future__ import annotations

from collections.abc import Iterable


class Limit:
    """Finds the operations of a program that run for longer than ``seconds``.

    Time counts from the first look that shows an operation, so a late look can't end one too early.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._since_s: dict[int, float] = {}

    def begin_anew(self, operation: int) -> None:
        """Count an operation's time from the next look on."""
        self._since_s.pop(operation, None)

    def exceeded(self, running: Iterable[int], now_s: float) -> list[int]:
        """Returns those of the running operations that have run for too long, by number."""
        self._since_s = {each: self._since_s.get(each, now_s) for each in running}
        return [each for each, since_s in self._since_s.items() if now_s - since_s > self.seconds]
