"""Jobs by what lists ask for: those that go on, those that ended lately, by outcome, by label."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from heapq import merge

from rota.model.job import JobSpec, JobState
from rota.model.state.state import ClusterState

FIRST_FINAL = int(JobState.SUCCEEDED)

Label = tuple[str, str]  # a filter of lists, and its value


class JobIndex:
    """Rows of the jobs of a state, brought up to date by calls.

    The first call after an event takes time in proportion to the jobs that go on, not to those that
    have ever been.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._num_seen = 0
        self._events = -1  # of the state, when these rows were brought up to date
        self._going: list[int] = []
        self._begun: list[int] = []
        self._lately: list[int] = []  # have ended, and not long ago when they were last looked at
        self._ended: dict[int, list[int]] = {}  # by outcome, rising
        self._labelled: dict[Label, list[int]] = {}  # rising

    def going(self) -> list[int]:
        """The rows of jobs that have not ended, rising. Not to be changed."""
        if self._events == self._state.events:
            return self._going
        self._events = self._state.events
        state, specs = self._state.state, self._state.spec
        new = range(self._num_seen, len(specs))
        for row in new:
            for label in labels_of(specs[row]):
                self._labelled.setdefault(label, []).append(row)
        self._num_seen = len(specs)
        known = [*self._going, *new] if new else self._going
        going = [row for row in known if state[row] < FIRST_FINAL]
        if len(going) < len(known):
            ended = [row for row in known if state[row] >= FIRST_FINAL]
            for row in ended:
                insort(self._ended.setdefault(state[row], []), row)
            self._lately += ended
        self._going = going
        self._begun = [row for row in going if state[row] != JobState.PENDING]
        return going

    def begun(self) -> list[int]:
        """The rows of jobs that have not ended and are more than pending, rising."""
        self.going()
        return self._begun

    def lately(self, since_s: float) -> list[int]:
        """The rows of jobs that have ended after that time, which rises from call to call."""
        self.going()
        finish_s = self._state.finish_s
        self._lately = [row for row in self._lately if finish_s[row] > since_s]
        return self._lately

    def named(self, name: str) -> Sequence[int]:
        """The rows of the jobs of that name, rising."""
        return self.labelled(("name", name))

    def labelled(self, label: Label) -> Sequence[int]:
        """The rows of the jobs with that label, rising."""
        self.going()
        return self._labelled.get(label, ())

    def walk(
        self,
        states: set[JobState] | None,
        labels: Sequence[Label],
        after: int | None,
        *,
        newest_first: bool,
    ) -> Iterator[int]:
        """The rows of jobs in these states, None for all, that come after a row.

        All jobs with these labels are among them, and perhaps others.
        """
        state = self._state.state
        lists = [self.labelled(label) for label in labels]
        shortest: Sequence[int] = min(lists, key=len, default=range(len(state)))
        if states is None:
            return walk(shortest, after, newest_first=newest_first)
        found = [self._ended[each] for each in states if each in self._ended]
        if any(each < FIRST_FINAL for each in states):
            found.append([row for row in self.going() if state[row] in states])
        if len(shortest) < sum(map(len, found)):
            rows = walk(shortest, after, newest_first=newest_first)
            return (row for row in rows if state[row] in states)
        walks = [walk(rows, after, newest_first=newest_first) for rows in found]
        return merge(*walks, reverse=newest_first)


def labels_of(spec: JobSpec) -> list[Label]:
    """The labels of a job: its name, user, queue, search and tags."""
    labels = [("name", spec.name), ("user", spec.user), ("queue", spec.vc)]
    if spec.trial is not None:
        labels.append(("sweep", spec.trial.sweep.name))
    return labels + [("tag", tag) for tag in spec.tags]


def walk(rows: Sequence[int], after: int | None, *, newest_first: bool) -> Iterator[int]:
    """Rising rows in one order or the other; those that come after a row, if it is given."""
    if newest_first:
        end = len(rows) if after is None else bisect_left(rows, after)
        return (rows[index] for index in range(end - 1, -1, -1))
    begin = 0 if after is None else bisect_right(rows, after)
    return (rows[index] for index in range(begin, len(rows)))
