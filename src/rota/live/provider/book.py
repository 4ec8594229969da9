"""The nodes that a cluster has asked an engine for, and their fate: the same with every engine."""

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from rota.live.provider.asked import Asked

LOOK_PACES = 2  # from one look at the engine to the next while something is to change,
QUIET_PACES = 10  # and otherwise
END_S = 60.0  # for an agent that was told to end to do so
RETRY_S, MOST_RETRY_S = 10.0, 600.0  # to ask again after a refusal, or an end without an agent


class Admission(Protocol):
    """The cluster's side of the nodes, each of which calls from its machine."""

    def admit(self, node: str) -> str:
        """The text of the file by which the agent of a new node is let in."""

    def keep(self, nodes: Collection[str]) -> None:
        """Let in none but these from now on."""

    def is_connected(self, node: str) -> bool:
        """True if its agent is connected."""

    def may_run(self, node: str) -> bool:
        """True if processes of jobs may run there, as far as anybody knows but the engine."""

    def has_jobs(self, node: str, /) -> bool:
        """True if jobs may have processes there, as far as the event log tells."""


class Book:
    """The nodes of ``asked`` that ``engine`` has, or is to have: ``bounds`` are how many.

    ``engine`` is its name for people. ``clock`` tells seconds that never go back.
    """

    def __init__(
        self,
        engine: str,
        asked: Asked,
        bounds: tuple[int, int],
        admission: Admission,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine, self.asked, self.bounds = engine, asked, bounds
        self.admission, self.clock = admission, clock
        self.lived: set[str] = set()  # the nodes whose agents have been connected
        self.given_up: dict[str, float] = {}  # when the engine is to end it, if it is there
        self.unheard: set[str] = set()  # asked for without an answer
        self.trouble = ""  # why the engine does not answer
        self.failure = ""  # why it is not asked at once for what is wanted
        self.ends = False
        self._looked_s = -math.inf
        self.has_looked = False  # the engine has told what is there
        self._ask_at_s, self._failures = 0.0, 0
        self._complaints: dict[str, str] = {}  # what was told last, by what could not be done
        self._errors: list[str] = []

    # -- nodes ---------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[str]:
        """All names but those of nodes that were given up before they began."""
        self.note_living()
        return [
            name for name in self.asked.names if name in self.lived or name not in self.given_up
        ]

    @property
    def wanted(self) -> list[str]:
        """The names that were not given up."""
        return [name for name in self.asked.names if name not in self.given_up]

    @property
    def awaited(self) -> list[str]:
        """The names of these whose agents have not been connected yet."""
        self.note_living()
        return [name for name in self.wanted if name not in self.lived]

    def is_alive(self, name: str) -> bool:
        """True if the node's agent is connected."""
        return self.admission.is_connected(name)

    def may_run(self, name: str) -> bool:
        """True if processes may live on a node, as far as its agent and its lease tell."""
        return self.admission.may_run(name) or self.admission.is_connected(name)

    def note_living(self) -> None:
        """Take note of agents that are connected; a minute to end begins after the last job."""
        new = {name for name in self.asked.names if self.admission.is_connected(name)}
        if new - self.lived:
            self._failures, self.failure = 0, ""
        self.lived |= new
        for name in self.given_up:
            if self.admission.is_connected(name) and self.admission.has_jobs(name):
                self.given_up[name] = self.clock() + END_S

    def held(self, is_placed: Callable[[str], bool]) -> str:
        """So many of the wanted nodes are placed, in words."""
        wanted = self.wanted
        return f"{sum(map(is_placed, wanted))} of {len(wanted)} nodes held"

    # -- what is wanted ------------------------------------------------------------------------

    def scale(self, desired: int, is_placed: Callable[[str], bool]) -> None:
        """Note how many more nodes are asked for, or give up some that wait and have no place.

        Raises OSError if it can't be written down.
        """
        if self.ends:
            return
        least, most = self.bounds
        surplus = len(self.wanted) - min(max(desired, least), most)
        for _ in range(-surplus):
            self.asked.note()
        if surplus > 0 and self.has_looked:  # else nobody knows which of them are there
            waiting = [name for name in self.awaited if not is_placed(name)]
            for name in [*reversed(waiting)][:surplus]:
                self._give_up(name)

    def release(self, name: str) -> None:
        """Give a node up: at once if it has not begun, and else its agent has a minute to end."""
        self.note_living()
        if name in self.asked.names and name not in self.given_up:
            self._give_up(name)

    def release_all(self) -> None:
        """Give up all nodes, and ask for none any more."""
        self.ends = True
        for name in self.asked.names:
            self.release(name)
        self.look_soon()

    def due(self) -> list[str]:
        """The nodes that were given up, and whose agents had time to end."""
        self.note_living()
        return [name for name, at_s in self.given_up.items() if at_s <= self.clock()]

    def _give_up(self, name: str) -> None:
        if name in self.asked.noted:
            self.asked.drop(name)
        else:
            self.given_up[name] = self.clock() + (END_S if name in self.lived else 0.0)

    # -- what the engine does ------------------------------------------------------------------

    def to_ask(self) -> list[str]:
        """The nodes that the engine is to be asked for now."""
        return self.asked.noted if self.clock() >= self._ask_at_s else []

    def refused(self, names: Iterable[str]) -> None:
        """Note again what the engine was asked for in vain, but for what was given up meanwhile.

        Raises OSError.
        """
        names = list(names)
        self.asked.refused(names)
        for name in [name for name in names if name in self.given_up]:
            self.asked.drop(name)
            del self.given_up[name]

    def recall(self) -> None:
        """Count what the last controller asked for as unheard, unless the engine has known it."""
        self.unheard = set(self.asked.names) - {*self.asked.known, *self.asked.noted}

    def note_unheard(self, known: Collection[str]) -> None:
        """Note again what is unheard, as it was asked for in vain: all but the ``known``.

        What is given up stays asked for until it is there, or so late that it never will be.
        """
        again = self.unheard - {*known, *self.given_up}
        with contextlib.suppress(OSError):  # a full disk: after the next look
            if again:
                self.asked.refused([name for name in self.asked.names if name in again])
            self.unheard.clear()

    def settle(self, there: Collection[str], gone: Collection[str] = ()) -> set[str]:
        """Note what is there and what is gone. Returns the names that are no nodes any more.

        Once all nodes are given up, so are those of which the engine tells only now.
        """
        before = set(self.asked.names)
        self.asked.settle(there, gone)
        left = before - set(self.asked.names)
        self.lived -= left
        for name in left & self.given_up.keys():
            del self.given_up[name]
        if self.ends:
            for name in self.wanted:
                self.release(name)
        return left

    # -- when to look --------------------------------------------------------------------------

    def look_soon(self) -> None:
        """Have the next look be due."""
        self._looked_s = -math.inf

    def looks(self) -> None:
        """Note that the engine is looked at now."""
        self._looked_s = self.clock()

    def note_look(self) -> None:
        """Note that the engine has told what is there."""
        self.has_looked = True
        self.note_living()

    def is_look_due(self, pace_s: float, *, is_quiet: bool = True) -> bool:
        """True if it is time to look, which it is more often while something is to change."""
        is_quiet = is_quiet and not (self.given_up or self.awaited or self.trouble)
        is_quiet = is_quiet and all(map(self.is_alive, self.nodes))
        paces = QUIET_PACES if is_quiet else LOOK_PACES
        return self.clock() >= self._looked_s + paces * pace_s

    # -- words ---------------------------------------------------------------------------------

    def why(self, name: str) -> str:
        """The reason why a node is awaited, if the engine does not know of it; "" if it may."""
        if self.trouble:
            return f"{self.engine} does not answer: {self.trouble}"
        if name in self.asked.noted:
            return self.failure or f"{self.engine} is asked for it"
        return ""

    def heard(self, trouble: str = "") -> None:
        """Note that the engine has answered, or why it has not."""
        if trouble and not self.trouble:
            text = f"{self.engine} does not answer: {trouble}; jobs go on, and it is asked on"
            self._errors.append(text)
        self.trouble = trouble

    def tell(self, text: str) -> None:
        """Tell of something that has gone wrong."""
        self._errors.append(text)

    def complain(self, of: str, text: str) -> bool:
        """Tell of what can't be done, unless that was told last. Returns True if it is told."""
        is_new = self._complaints.get(of) != text
        if is_new:
            self._errors.append(text)
        self._complaints[of] = text
        return is_new

    def content(self, of: str) -> None:
        """Forget what was complained of."""
        self._complaints.pop(of, None)

    def fail(self, text: str) -> None:
        """Put off what is asked for, longer each time."""
        if text != self.failure:
            self._errors.append(text)
        pause_s = min(RETRY_S * 2**self._failures, MOST_RETRY_S)
        self._ask_at_s, self.failure = self.clock() + pause_s, text
        self._failures += 1

    def errors(self) -> list[str]:
        """Everything that was told since it was asked last."""
        errors, self._errors = self._errors, []
        return errors
