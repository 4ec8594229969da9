"""Ends the processes of a suspended attempt after writing their state into arenas.

Each rank writes its state into an arena, and holds on to it. Only when all have is that written
down, and only then they end: whatever is killed before, the processes have the state, and after
that the arenas have it. :mod:`rota.live.agent.restore_from_arena` brings it back from there.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from rota.errors import ArenaError
from rota.folder import in_host_memory
from rota.live.agent.attempt_report import Account
from rota.live.agent.ending import Ending
from rota.live.agent.record import Vacated
from rota.live.agent.restarting import Restarting
from rota.live.agent.restore_from_arena import Returning
from rota.live.agent.states import State
from rota.live.wire import Message
from rota.live.wire.arena_file import read_header

WRITING_TIMEOUT_S = 300.0  # an arena that is not there by then will not come
END_TIMEOUT_S = 5.0  # a process whose state is in its arena is killed after so long

Outcome = Callable[[str | None], object]  # is told the error, or None


class Vacating:
    """The arenas of one attempt, whose ``state`` it changes.

    Arenas are made in ``folder``. ``spilled`` is called when all are whole, and the processes of
    the ranks are to end: others may stand by.
    """

    def __init__(
        self,
        attempt: Account,
        ending: Ending,
        restarting: Restarting,
        returning: Returning,
        folder: Path,
        spilled: Callable[[], object],
    ) -> None:
        self.returning = returning
        self._attempt = attempt
        self._ending = ending
        self._restarting = restarting
        self._folder = folder
        self._spilled = spilled
        self._round = 0  # of writing: an answer to a request that was called off must not count
        self._written: dict[int, int] | None = None  # bytes by slot, while arenas are written
        self._outcome: Outcome | None = None

    @property
    def writing(self) -> bool:
        """True while arenas are being written."""
        return self._written is not None

    def files_in_memory(self) -> list[Path]:
        """Arenas of this attempt in host memory, in use or kept for the next suspension."""
        return list(self._folder.glob(self._names())) if in_host_memory(self._folder) else []

    def files(self) -> list[Path]:
        """Arenas of this attempt, whole or not, wherever they are."""
        folders = dict.fromkeys((self._folder, self._attempt.folder))
        return [file for folder in folders for file in folder.glob(self._names())]

    def _arena(self, folder: Path, slot: int) -> Path:
        return folder / f"{self._attempt.job_id}-{self._attempt.number}-{slot}.arena"

    def _names(self) -> str:
        return f"{self._attempt.job_id}-{self._attempt.number}-*.arena*"

    # -- into arenas ---------------------------------------------------------------------------

    def refusal(self) -> str | None:
        """The reason for which the attempt can't give up its processes now; None if it can."""
        attempt = self._attempt
        if attempt.state != State.SUSPENDED or self.writing:
            return f"job {attempt.job_id} is {attempt.state}, and not at rest"
        if attempt.record.flow is not None:
            return f"job {attempt.job_id} keeps its processes: {attempt.record.keeps}"
        if attempt.spans:
            return f"job {attempt.job_id} keeps its processes: they are on several nodes"
        if attempt.crowd:
            return f"job {attempt.job_id} keeps its processes: {attempt.crowd}"
        for rank in attempt.members:
            if rank.suspended is None:
                return f"job {attempt.job_id} was stopped where it was, and not at a boundary"
            if rank.writer is None:
                return f"rank {rank.index} of job {attempt.job_id} has no connection"
            if attempt.record.stays:
                return f"job {attempt.job_id} keeps its processes: others have device memory, too"
            if keeps := rank.suspended.get("keeps", "its library is an older one"):
                return f"job {attempt.job_id} keeps its processes: {keeps}"
        return None

    def vacate(self, outcome: Outcome) -> None:
        """Have the state of a suspended attempt written to arenas, and its processes ended.

        ``outcome`` is called with None when that is done, or with the error for which the state
        stays in the processes. Arenas are in host memory, or on the disk if there is no room.
        """
        if self._attempt.is_vacated:
            outcome(None)
            return
        if refused := self.refusal():
            outcome(refused)
            return
        self._outcome = outcome
        self._write_to(self._folder)

    def _write_to(self, folder: Path) -> None:
        attempt = self._attempt
        self._round += 1
        self._written = {}
        self._paths = {rank.index: self._arena(folder, rank.index) for rank in attempt.members}
        for rank in attempt.members:
            path = str(self._paths[rank.index])
            rank.send({"type": "vacate", "path": path, "round": self._round})
        attempt.after(WRITING_TIMEOUT_S, self._took_too_long, self._round)

    def heard(self, slot: int, message: Message) -> None:
        """A rank has written its arena, or has failed to."""
        if self._written is None or message.get("round") != self._round:
            at_rest = self._attempt.state == State.SUSPENDED and not self._attempt.is_vacated
            if self._written is None and at_rest:
                self.remove_arenas()  # the rank began after its file had been removed
            return
        if message["type"] == "kept":
            on_disk = self._attempt.folder
            if message.get("full") and self._paths[slot].parent != on_disk:
                self.remove_arenas()
                self._write_to(on_disk)
            else:
                self.call_off(str(message["error"]))
            return
        self._written[slot] = int(message["bytes"])
        members = self._attempt.record.members
        if self._written.keys() >= set(members):
            self._leave()

    def call_off(self, error: str) -> None:
        """Leave the state in the processes."""
        if self._written is None:
            return
        self._written = None
        self.remove_arenas()
        self._conclude(error)

    def _leave(self) -> None:
        """All arenas are complete: from here on they hold the state."""
        attempt, written = self._attempt, self._written or {}
        try:
            for path in self._paths.values():
                read_header(path)
        except ArenaError as error:
            self.call_off(str(error))
            return
        self._written = None
        attempt.record.vacated = Vacated(
            arenas={str(slot): str(path) for slot, path in self._paths.items()},
            bytes=sum(written.values()),
            at_s=attempt.world.now_s(),
            step=max(int(rank.suspended["step"]) for rank in attempt.members if rank.suspended),
        )
        try:
            attempt.save(durable=False)  # host memory does not outlast a power cut either
        except OSError as error:
            attempt.record.vacated = None
            self.remove_arenas()
            self._conclude(f"its record can't be written: {error.strerror}")
            return
        self._remove_strays()  # a rank may have begun in host memory after another found no room
        self._spilled()
        for rank in attempt.ranks:
            rank.send({"type": "end"})
            if rank.suspended is None:  # the rank stood by
                rank.signal(signal.SIGKILL)
        attempt.after(END_TIMEOUT_S, self._kill)
        self.ended()

    def _took_too_long(self, round_: int) -> None:
        if round_ == self._round:
            self.call_off(f"its state was not written within {WRITING_TIMEOUT_S:.0f} s")

    def _kill(self) -> None:
        if self._attempt.is_vacated and not self.returning.under_way:
            self._attempt.kill_ranks()

    def _conclude(self, error: str | None) -> None:
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            outcome(error)

    # -- ends ----------------------------------------------------------------------------------

    def ended(self) -> None:
        """A process of a vacated attempt has ended, or there is none: take the next step."""
        attempt = self._attempt
        if attempt.ended is not None:
            return
        if self._restarting.leaving:
            self._restarting.ended()
        elif self.returning.under_way:
            self.returning.ended()
        elif any(rank.alive for rank in attempt.ranks):
            return  # the processes are ending
        elif attempt.stopping:
            self._ending.without_processes()
        else:
            attempt.cancel_timers()
            self._conclude(None)
            if attempt.state == State.RESUMING:
                self.returning.start()
            else:
                attempt.tell_memory()
                attempt.at_rest()

    def adopt(self) -> None:
        """After a change of agents: abandon a restoration, and end processes that had to end."""
        attempt = self._attempt
        if self._restarting.leaving:
            self._restarting.adopt()
            return
        attempt.become(State.SUSPENDED)
        for rank in attempt.ranks:
            rank.signal(signal.SIGKILL)
        self._remove_strays()
        try:
            for path in attempt.arenas:
                read_header(path)
        except ArenaError as error:
            self._ending.lose(str(error))

    def look(self) -> None:
        """Lose the attempt if an arena with its state was removed."""
        attempt = self._attempt
        is_at_rest = attempt.state == State.SUSPENDED and not attempt.is_guest
        if is_at_rest and not (self._restarting.leaving or self.returning.under_way):
            gone = next((path for path in attempt.arenas if not path.exists()), None)
            if gone is not None:
                self._ending.lose(f"somebody has removed its state, {gone}")

    def closed(self) -> None:
        """The attempt has ended: nothing is left of it in arenas."""
        self._written = None
        self.remove_arenas()
        self._conclude(f"job {self._attempt.job_id} has ended")

    def remove_arenas(self) -> None:
        """Remove every arena of this attempt."""
        for folder in (self._folder, self._attempt.folder):
            for file in folder.glob(self._names()):
                with contextlib.suppress(OSError):
                    file.unlink()

    def _remove_strays(self) -> None:
        """Remove arenas that the record does not name: in host memory, or on the disk."""
        used = set(self._attempt.arenas)
        for folder in (self._folder, self._attempt.folder):
            for file in set(folder.glob(self._names())) - used:
                with contextlib.suppress(OSError):
                    file.unlink()

    def moved(self, before: Vacated, arenas: dict[str, str]) -> bool:
        """Record that the arenas have moved, completely. False if nobody is to look for them there.

        ``before`` is the record's entry from when the move began: since then the attempt may have
        continued, and have written other arenas. Raises OSError if the record can't be written.
        """
        attempt = self._attempt
        if attempt.state != State.SUSPENDED or attempt.record.vacated is not before:
            return False
        attempt.record.vacated = replace(before, arenas=arenas)
        try:
            attempt.save()
        except OSError:
            attempt.record.vacated = before
            raise
        return True
