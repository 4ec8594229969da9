"""Time that a program has to end, in which the agent's own absence does not count.

An agent that stood still may have done so with its jobs: a container was paused, for example.
"""

from rota.model.presence import Presence

LOOK_S = 1.0  # between looks at what is left, at most
LEAST_S = 1e-6  # less may be nothing where it is added to a clock's time: a timer would not advance


class Grace:
    """What is left of a grace, by a clock that goes on while this process stands still."""

    def __init__(self, left_s: float, now_s: float) -> None:
        self._presence = Presence(LOOK_S)
        self._ends_s = self._presence.at(now_s) + left_s

    def left_s(self, now_s: float) -> float:
        """The rest of it, to be asked for every LOOK_S or more often; 0 or less once it is over."""
        left_s = self._ends_s - self._presence.at(now_s)
        return left_s if left_s > LEAST_S else min(0.0, left_s)
