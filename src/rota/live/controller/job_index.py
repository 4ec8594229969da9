"""Jobs by what lists ask for: those that go on, those that ended lately, by outcome and by name."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from heapq import merge

from rota.model.job import JobState
from rota.model.state.state import ClusterState

FIRST_FINAL = int(JobState.SUCCEEDED)


class JobIndex:
    """Rows of the jobs of a state, brought up to date by each call.

    A call takes time in proportion to the jobs that go on, not to those that have ever been.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._num_seen = 0
        self._going: list[int] = []
        self._lately: list[int] = []  # have ended, and not long ago when they were last looked at
        self._ended: dict[int, list[int]] = {}  # by outcome, rising
        self._named: dict[str, list[int]] = {}

    def going(self) -> list[int]:
        """The rows of jobs that have not ended, rising. Not to be changed."""
        state, specs = self._state.state, self._state.spec
        new = range(self._num_seen, len(specs))
        for row in new:
            self._named.setdefault(specs[row].name, []).append(row)
        self._num_seen = len(specs)
        known = [*self._going, *new] if new else self._going
        going = [row for row in known if state[row] < FIRST_FINAL]
        if len(going) < len(known):
            ended = [row for row in known if state[row] >= FIRST_FINAL]
            for row in ended:
                insort(self._ended.setdefault(state[row], []), row)
            self._lately += ended
        self._going = going
        return going

    def lately(self, since_s: float) -> list[int]:
        """The rows of jobs that have ended after that time, which rises from call to call."""
        self.going()
        finish_s = self._state.finish_s
        self._lately = [row for row in self._lately if finish_s[row] > since_s]
        return self._lately

    def named(self, name: str) -> Sequence[int]:
        """The rows of the jobs of that name, rising."""
        self.going()
        return self._named.get(name, ())

    def walk(
        self, states: set[JobState] | None, after: int | None, *, newest_first: bool
    ) -> Iterator[int]:
        """The rows of jobs in these states, or of all jobs; those that come after a row."""
        going = self.going()
        if states is None:
            return walk(range(len(self._state.spec)), after, newest_first=newest_first)
        lists = [self._ended[each] for each in states if each in self._ended]
        if any(each < FIRST_FINAL for each in states):
            state = self._state.state
            lists.append([row for row in going if state[row] in states])
        walks = [walk(rows, after, newest_first=newest_first) for rows in lists]
        return merge(*walks, reverse=newest_first)


def walk(rows: Sequence[int], after: int | None, *, newest_first: bool) -> Iterator[int]:
    """Rising rows in one order or the other; those that come after a row, if it is given."""
    if newest_first:
        end = len(rows) if after is None else bisect_left(rows, after)
        return (rows[index] for index in range(end - 1, -1, -1))
    begin = 0 if after is None else bisect_right(rows, after)
    return (rows[index] for index in range(begin, len(rows)))
