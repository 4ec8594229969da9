"""The event stream over kills of the controller: each event once, and news of progress."""

import threading

from rota.client.client import Client
from rota.client.events import Connected, Disconnected, Logged, Progress

from .conftest import DEADLINE_S, until


class Reader:
    """A client in a thread of its own, which notes what it is told until a job has ended."""

    def __init__(self, folder, job):
        self.seen = []
        self._folder, self._job = folder, job
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        with Client(folder=self._folder) as client:
            for told in client.events(after=0, patience_s=DEADLINE_S):
                self.seen.append(told)
                if isinstance(told, Logged) and (told.kind, told.job_id) == (
                    "JobFinished",
                    self._job,
                ):
                    return

    def has_progress_since(self, number):
        """True once progress has been told among what came after the first ``number``."""
        return any(isinstance(each, Progress) for each in self.seen[number:])

    def join(self):
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


def test_no_event_is_missed_or_told_twice_over_kills_of_the_controller(cluster):
    job = cluster.train("out", "--steps", 10**6)
    reader = Reader(cluster.folder, job)
    for _ in range(2):
        number = len(reader.seen)
        until(lambda number=number: reader.has_progress_since(number), "progress is told")
        cluster.kill_controller()
        cluster.up()
    cluster.client.cancel(job)
    cluster.ends(job, "CANCELLED")
    reader.join()
    logged = [each for each in reader.seen if isinstance(each, Logged)]
    assert [each.seq for each in logged] == [*range(1, len(logged) + 1)]
    written = [type(event).__name__ for event in cluster.events()]
    assert [each.kind for each in logged] == written[: len(logged)]
    told = [line.text for each in logged for line in each.lines if line.job_id == job]
    story = [event["line"] for event in cluster.client.story(job)]
    assert told == story[: len(told)]
    links = [type(each) for each in reader.seen if isinstance(each, Connected | Disconnected)]
    assert links == [Connected, Disconnected, Connected, Disconnected, Connected]
