"""Positions in feedback queues, taken and given up in constant time."""

from collections import deque
from math import inf

from rota.model.view import View
from rota.policy.tiresias.queues import Queue, Standing

MOST_GIVEN_UP = 64  # numbers without a job that a list may hold, apart from as many as have one


class QueuePositions:
    """The places of all active jobs in their queues.

    A place is a serial number: those that run in a queue stand in order of theirs, and so do those
    that wait. A number that was given up is left where it stands, and skipped when it comes up.
    """

    def __init__(self, num_queues: int) -> None:
        self._num_queues = num_queues
        self._clear()

    def _clear(self) -> None:
        self._standing: dict[int, Standing] = {}
        self._queues = [Queue() for _ in range(self._num_queues)]
        self._row_of: dict[int, int] = {}  # serial -> row
        self._first_serial, self._last_serial = 0, 0

    def _first_that_fits(self, queue: Queue, free: int) -> int | None:
        row_of, best = self._row_of, None
        queue.least_gpus = inf
        for num_gpus, line in queue.waiting.items():
            while line and line[0] not in row_of:
                line.popleft()
            if line:
                if num_gpus < queue.least_gpus:
                    queue.least_gpus = num_gpus
                if num_gpus <= free and (best is None or line[0] < best):
                    best = line[0]
        return None if best is None else row_of[best]

    def _run(self, view: View, row: int, standing: Standing) -> None:
        """Let the job stand last among those that run in its queue."""
        queue = self._queues[standing.queue]
        self._last_serial = standing.serial = serial = self._last_serial + 1
        standing.runs = True
        self._row_of[serial] = row
        queue.used_gpus += view.num_gpus[row]
        queue.num_running += 1
        queue.running.append(serial)
        if len(queue.running) > 2 * queue.num_running + MOST_GIVEN_UP:
            queue.running = [serial for serial in queue.running if serial in self._row_of]

    def _wait(self, view: View, row: int, standing: Standing, *, first: bool = False) -> None:
        """Let the job stand last, or first, among those that wait in its queue."""
        num_gpus = view.num_gpus[row]
        queue = self._queues[standing.queue]
        line = queue.line(num_gpus)
        if len(line) > queue.longest.get(num_gpus, MOST_GIVEN_UP):
            line = deque(serial for serial in line if serial in self._row_of)
            queue.waiting[num_gpus] = line
            queue.longest[num_gpus] = 2 * len(line) + MOST_GIVEN_UP
        standing.runs = False
        if first:
            self._first_serial -= 1
            standing.serial = self._first_serial
            line.appendleft(standing.serial)
        else:
            self._last_serial += 1
            standing.serial = self._last_serial
            line.append(standing.serial)
        self._row_of[standing.serial] = row

    def _leave(self, view: View, row: int, standing: Standing) -> None:
        """Take the job out of its place."""
        del self._row_of[standing.serial]
        if standing.runs:
            queue = self._queues[standing.queue]
            queue.used_gpus -= view.num_gpus[row]
            queue.num_running -= 1

    def _return(self, view: View, left: list[tuple[int, int, bool]]) -> None:
        """Give jobs their former places back: (row, serial, whether it ran) each.

        Those who have waited left their lines at the front, those who ran left at the end of their
        queue, and all numbers that were given out since stand there as well: only as many places
        are looked at as have changed, however many jobs wait.
        """
        standing, queues, row_of = self._standing, self._queues, self._row_of
        for row, _, _ in left:
            self._leave(view, row, standing[row])
        waited: dict[tuple[int, int], list[int]] = {}
        stopped: dict[int, list[int]] = {}
        for row, serial, ran in left:
            queue = standing[row].queue
            if ran:
                stopped.setdefault(queue, []).append(serial)
            else:
                waited.setdefault((queue, view.num_gpus[row]), []).append(serial)
        for (queue, num_gpus), serials in waited.items():
            line = queues[queue].line(num_gpus)
            while line and line[0] not in row_of:
                line.popleft()
            line.extendleft(sorted(serials, reverse=True))
        for queue, serials in stopped.items():
            running, first = queues[queue].running, min(serials)
            while running and running[-1] > first:
                serial = running.pop()
                if serial in row_of:
                    serials.append(serial)
            running.extend(sorted(serials))
        for row, serial, ran in left:
            standing[row].serial, standing[row].runs = serial, ran
            row_of[serial] = row
            if ran:
                queues[standing[row].queue].used_gpus += view.num_gpus[row]
                queues[standing[row].queue].num_running += 1
