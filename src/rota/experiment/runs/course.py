"""The progress of a simulation's jobs over time, and the number of jobs that share a GPU."""

from math import inf

from rota.sim.simulation import Simulation


class Course:
    """A simulation under way, which is looked at between its events.

    ``first_s`` (row -> seconds after arrival) tells when each job had done ``work_s`` of its work,
    in seconds at speed 1; jobs that have not are left out.
    """

    def __init__(self, simulation: Simulation, work_s: float = inf) -> None:
        self.simulation = simulation
        self.state = simulation.state
        self.first_s: dict[int, float] = {}
        self._work_s = work_s
        self._seen = 0  # rows that have been looked at so far
        self._not_yet: set[int] = set()

    def until(self, at_s: float) -> None:
        """Let everything happen that does up to ``at_s``."""
        while self.next_s() <= at_s:
            self.step()

    def until_all_have(self) -> None:
        """Go on until each job has done ``work_s`` of its work, or nothing more happens."""
        while not self.simulation.all_arrived or len(self.first_s) < len(self.state.spec):
            if not self.step():
                break

    def step(self) -> bool:
        """Go to the next instant at which something happens. False if there is none."""
        foreseen = self._foreseen_s()
        went = self.simulation.step()
        now_s = self.simulation.engine.now_s
        for row, at_s in foreseen.items():
            if at_s <= now_s:
                self.first_s[row] = at_s - self.state.submit_s[row]
                self._not_yet.remove(row)
        return went

    def work_s(self, at_s: float) -> list[float]:
        """Seconds of its work that each job has done by ``at_s``, which no event lies before."""
        return [self.state.work(row, at_s) for row in range(len(self.state.spec))]

    def num_sharing(self) -> int:
        """Number of jobs that share a GPU with another one now."""
        shared = [held for held in self.state.held if held is not None and held.shared]
        return sum(sum(one.overlaps(other) for other in shared) > 1 for one in shared)

    def next_s(self) -> float:
        """Time of the next event; infinity if there is none."""
        engine, wake_at_s = self.simulation.engine, self.state.wake_at_s
        next_s = engine.next_time_s()
        times = (next_s, wake_at_s if self.state.active else None)
        return min((time for time in times if time is not None), default=inf)

    def _foreseen_s(self) -> dict[int, float]:
        """Time at which each running job will have done ``work_s``, if nothing changes before."""
        state = self.state
        if self._work_s == inf:
            return {}
        self._not_yet.update(range(self._seen, len(state.spec)))
        self._seen = len(state.spec)
        return {
            row: since_s + (self._work_s - state.work(row, since_s)) / state.speed[row]
            for row in self._not_yet
            if (since_s := state.since_s[row]) >= 0
        }
