"""The names of nodes that an engine was asked for, written down before the engine hears of them."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

# A request of a controller that was killed may reach its engine late. After so long it never will.
LATE_S = 60.0
KNOWN = -1.0  # instead of the time of a request: the engine has it
NOTED = -2.0  # likewise: nobody has asked the engine for it yet


class Asked:
    """Which nodes of ``cluster`` an engine has, or may have yet, kept in ``file``.

    Their names are CLUSTER-1, CLUSTER-2 and so on; none is used twice. A controller that is killed
    after a name was written down finds it there: it asks for nothing a second time.
    """

    def __init__(self, file: Path, cluster: str, now_s: Callable[[], float] = time.time) -> None:
        self._file, self.cluster, self._now_s = file, cluster, now_s
        self._last = 0
        self._asked_s: dict[str, float] = {}  # when, by name, or KNOWN or NOTED
        if file.exists():
            kept = json.loads(file.read_text())
            self._last, self._asked_s = kept["last"], kept["asked_s"]

    @property
    def names(self) -> list[str]:
        """All names that the engine has or may have yet, in the order in which they were asked."""
        return list(self._asked_s)

    @property
    def noted(self) -> list[str]:
        """The names that were noted, and that the engine was not asked for yet."""
        return [name for name, at_s in self._asked_s.items() if at_s == NOTED]

    @property
    def known(self) -> list[str]:
        """The names that the engine has known."""
        return [name for name, at_s in self._asked_s.items() if at_s == KNOWN]

    def new(self) -> str:
        """The name of one more node, which is written down; only then the engine may be asked.

        Raises OSError, and there is no new name, if it can't be written down.
        """
        return self._new(self._now_s())

    def note(self) -> str:
        """Like :meth:`new`, for an engine that is asked later: after :meth:`ask`."""
        return self._new(NOTED)

    def ask(self, names: Iterable[str]) -> None:
        """Write down that the engine is being asked for what was noted. Raises OSError."""
        self._write(self._last, self._asked_s | dict.fromkeys(names, self._now_s()))

    def refused(self, names: Iterable[str]) -> None:
        """Note again what the engine was asked for in vain. Raises OSError."""
        still = [name for name in names if name in self._asked_s]
        self._write(self._last, self._asked_s | dict.fromkeys(still, NOTED))

    def drop(self, name: str) -> None:
        """Forget a name that was noted."""
        kept = {each: at_s for each, at_s in self._asked_s.items() if each != name}
        with contextlib.suppress(OSError):  # a full disk: the next controller notes it again
            self._write(self._last, kept)
        self._asked_s = kept

    def settle(self, known: Collection[str], gone: Collection[str] = ()) -> None:
        """Note what the engine tells to be there, and drop what is there no more.

        What it knows by a name of this cluster is counted, whoever asked for it. A name that it has
        never known counts as asked for, and is dropped when it is late, or among ``gone``.
        """
        late_s = self._now_s() - LATE_S
        kept = {
            name: KNOWN if name in known else at_s
            for name, at_s in self._asked_s.items()
            if name in known
            or at_s == NOTED
            or (at_s != KNOWN and at_s > late_s and name not in gone)
        }
        numbers = {name: self.number(name) for name in known if self.number(name)}
        kept |= dict.fromkeys(sorted(numbers.keys() - kept.keys(), key=numbers.__getitem__), KNOWN)
        last = max(self._last, *numbers.values(), 0)
        if (last, kept) != (self._last, self._asked_s):
            with contextlib.suppress(OSError):  # a full disk: the engine tells it again
                self._write(last, kept)
            self._last, self._asked_s = last, kept

    def number(self, name: str) -> int:
        """The number in a name of this cluster; 0 for any other name."""
        cluster, _, number = name.rpartition("-")
        return int(number) if cluster == self.cluster and number.isdecimal() else 0

    def _new(self, at_s: float) -> str:
        name = f"{self.cluster}-{self._last + 1}"
        self._write(self._last + 1, self._asked_s | {name: at_s})
        return name

    def _write(self, last: int, asked_s: dict[str, float]) -> None:
        draft = self._file.with_name(f"{self._file.name}.new")
        with open(draft, "w") as file:
            json.dump({"last": last, "asked_s": asked_s}, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._file)
        self._last, self._asked_s = last, asked_s
