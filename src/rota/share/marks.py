"""What a foreground training tells of itself: the segment of a step that it is in, and times."""

from typing import NamedTuple

# Segments. A step is the loading of its data, forward, backward, the reduction of gradients, and
# the optimiser with what follows until the next step; WAIT is a wait for others inside of it.
IDLE, LOAD, FORWARD, BACKWARD, REDUCE, OPTIMISE, WAIT, OTHER = range(8)
NAMES = ("idle", "load", "forward", "backward", "reduce", "optimise", "wait", "other")
STEP = (LOAD, FORWARD, BACKWARD, REDUCE, OPTIMISE, WAIT)  # what a step's time is made of

ALIVE, STOPPED, GONE = "alive", "stopped", "gone"  # the process that writes marks

LIMIT = 1.1  # of a foreground's slowdown where it allows no other, as published

Seconds = tuple[float, ...]  # by segment
NONE: Seconds = (0.0,) * len(NAMES)


class Mark(NamedTuple):
    """One entry of a page. Times are those of CLOCK_MONOTONIC, which all processes share.

    IDLE: the training is off its device, or suspended. OTHER: it computes outside of its steps, as
    in a validation.
    """

    pid: int
    started_s: float  # when that process began, seconds of CLOCK_BOOTTIME
    epoch: int  # a new one wherever times must be learned anew
    steps: int  # finished in this epoch
    segment: int
    since_s: float  # when that segment began
    sums_s: Seconds  # seconds in each segment in this epoch, until ``since_s``
    done_s: Seconds  # the same, until the end of the last step
    limit: float = LIMIT  # of the slowdown that it allows


class Seen(NamedTuple):
    """What was seen of a foreground at one moment."""

    mark: Mark | None = None  # None: there is no page, or nothing was ever written
    torn: bool = False  # there is a page that can't be read
    process: str = ALIVE  # the one of the mark


NOBODY = Seen()
