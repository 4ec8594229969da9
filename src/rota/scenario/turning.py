"""The turning point of a ranking: the cost of a restart at which another policy becomes best."""

from collections.abc import Callable, Sequence
from math import inf, sqrt
from typing import NamedTuple

LEAST_S, MOST_S = 1.0, 300.0  # costs of a restart between which the turn is searched
CLOSE = 1.2  # ratio of two costs between which it is known well enough

# The average JCT of policies, by their places, if each restart takes so many seconds; infinity of
# one that does not finish.
Measure = Callable[[Sequence[int], float], dict[int, float]]


class Turn(NamedTuple):
    """The best policy where restarts are cheap, and the best where they are dear.

    ``at_s`` is the cost at which one replaces the other, None if none does.
    """

    cheap: int
    dear: int
    at_s: float | None


def turning_point(policies: Sequence[int], measure: Measure) -> Turn | None:
    """The best policy at restarts of 1 s and of 300 s, and by bisection where they change places.

    None if no policy finishes its jobs.
    """
    low, high = measure(policies, LEAST_S), measure(policies, MOST_S)
    cheap, dear = min(low, key=low.__getitem__), min(high, key=high.__getitem__)
    if inf in (low[cheap], high[dear]):
        return None
    if cheap == dear:
        return Turn(cheap, dear, None)
    least_s, most_s = LEAST_S, MOST_S
    while most_s / least_s > CLOSE:
        middle_s = sqrt(least_s * most_s)
        found = measure((cheap, dear), middle_s)
        if found[cheap] <= found[dear]:
            least_s = middle_s
        else:
            most_s = middle_s
    return Turn(cheap, dear, sqrt(least_s * most_s))
