"""The lines of jobs' stories by the events that brought them."""

from array import array
from bisect import bisect_left


class Lines:
    """Lines of all stories, in the order of the events' numbers.

    :meth:`of` may be called from another thread while :meth:`note` is.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._rows = array("q")
        self._seqs = array("q")

    def note(self, seq: int, row: int, line: str) -> None:
        """Add a line that the event ``seq`` brought to the story of the job ``row``."""
        self._texts.append(line)
        self._rows.append(row)
        self._seqs.append(seq)

    def of(self, seq: int) -> list[tuple[int, str]]:
        """(row, line) of each line that an event brought."""
        seqs, end = self._seqs, len(self._seqs)
        index, found = bisect_left(seqs, seq, 0, end), []
        while index < end and seqs[index] == seq:
            found.append((self._rows[index], self._texts[index]))
            index += 1
        return found
