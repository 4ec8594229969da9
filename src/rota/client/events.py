"""The event stream of a controller, followed through its restarts."""

from typing import Any, NamedTuple

from rota.client.connection import Connection
from rota.client.stream import Stream, why_of
from rota.errors import BusyError, CursorError


class Line(NamedTuple):
    """A line that an event has added to the story of a job."""

    job_id: str
    text: str


class Logged(NamedTuple):
    """An event of the log. ``data`` are its fields as docs/reference/api.md lists them by kind.

    ``job_id`` is the job that it is about, None for none or several. ``cursor`` is the place after
    it: a stream that begins there goes on with the next event.
    """

    seq: int
    at_s: float
    kind: str
    job_id: str | None
    data: dict[str, Any]
    lines: tuple[Line, ...]
    cursor: str

    @property
    def sentence(self) -> str | None:
        """The line that the event has added to its job's story, if any."""
        texts = (line.text for line in self.lines if self.job_id in (None, line.job_id))
        return "; ".join(texts) or None


class Progress(NamedTuple):
    """News, which are not in the log: the latest ``progress`` of a job, as its detail has it."""

    job_id: str
    progress: dict[str, Any]


class Resync(NamedTuple):
    """Events were left out: read what there is anew. The stream goes on after event ``seq``."""

    seq: int
    cursor: str


class Connected(NamedTuple):
    """A controller answers, and the stream goes on after event ``seq``."""

    seq: int
    cursor: str


class Disconnected(NamedTuple):
    """No controller answers, for the reason ``why``; it is tried again until one does."""

    why: str


class Busy(NamedTuple):
    """The stream has no place, for the reason ``why``: read the present state anew.

    It comes again every few seconds until there is a place; the stream then tells all that has
    happened meanwhile.
    """

    why: str


Told = Logged | Progress | Resync | Connected | Disconnected | Busy


class Events(Stream[Told]):
    """The event stream. It ends by ``break`` only, or by an error after ``patience_s``."""

    def __init__(
        self,
        connection: Connection,
        after: int | str | None,
        patience_s: float | None,
        *,
        busy: bool,
    ) -> None:
        place = None if after is None else str(after)
        super().__init__(connection, "/events", {}, place, patience_s)
        self._looks_meanwhile = busy
        self._is_ours = False  # the place: whether a stream has told it
        self._told_away = True  # a first connection that fails is no news

    @property
    def cursor(self) -> str | None:
        """The place after the last event that was told; None before the first connection."""
        return self._place

    def _told(self, event: str, data: Any, place: str) -> Told | None:
        if event == "progress":
            return Progress(data["job_id"], data["progress"] or {})
        if event not in ("logged", "begin", "resync"):  # of a later version
            return None
        self._place, self._is_ours = place, True
        if event == "logged":
            lines = tuple(Line(each["job_id"], each["line"]) for each in data.pop("lines"))
            return Logged(**{name: data[name] for name in _FIELDS}, lines=lines, cursor=place)
        if event == "resync":
            return Resync(data["seq"], place)
        self._told_away, self._connection.met = False, True
        return Connected(data["seq"], place)

    def _failed(self, error: Exception) -> Told | None:
        if isinstance(error, CursorError):
            if not (self._is_ours and error.begin):
                raise error
            self._place = error.begin
            return Resync(int(error.begin.rpartition("-")[2]), error.begin)
        if isinstance(error, BusyError) and self._looks_meanwhile:
            return Busy(str(error))
        told = None if self._told_away else Disconnected(why_of(error))
        self._told_away = True
        return told


_FIELDS = ("seq", "at_s", "kind", "job_id", "data")
