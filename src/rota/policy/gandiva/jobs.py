"""Gandiva's memory of each job: its home, its measured speeds, and the trials with it."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from rota.model.job import Suspension
from rota.model.measured.profile import Placement
from rota.model.notes import Notes as Told
from rota.model.notes import Packed
from rota.model.probe import Probe
from rota.model.view import View, WhatIf
from rota.policy.base import LEAST_TURN_S
from rota.policy.gandiva.servers import Home

TURN_DOUBLINGS = 30  # at most, so that a turn stays a finite number of seconds
MEASURED_S = 1.0  # of run time, at least, before a job's own speed counts as known


# What marks of before plans had notes told people.
TOLD_IN_MARKS = ("trials", "tried")


class StepsSeen(NamedTuple):
    """``steps`` done in ``ran_s`` seconds of run time, when it was last looked at."""

    ran_s: float
    steps: float


class Pack(NamedTuple):
    """Jobs on one GPU. ``gain`` is their work in sum, relative to each alone.

    Under probe, since ``began_s``, it is None; then ``newcomer`` is the job that leaves if the pack
    does not do more than ``beat``, which is what turns on the GPU would do. ``predicted`` is what
    others of these kinds did, if any; ``came_from`` the node that the newcomer has left, or -1.
    """

    rows: tuple[int, ...]
    gain: float | None
    newcomer: int = -1
    beat: float = 1.0
    predicted: float | None = None
    began_s: float = 0.0
    came_from: int = -1


class Move(NamedTuple):
    """A move under probe: where the job lived, and its steps a second there.

    ``predicted`` is the speed that it was to have, relative to before. A job that it changed places
    with is the ``partner``: the two are judged together. ``overhead_s`` is what it had lost to
    suspensions and starts before.
    """

    before: Home
    was: float
    what: str = "move"
    predicted: float = 1.0
    partner: int = -1
    overhead_s: float = 0.0


class Notes:
    """One job's mark, read and changed. What is not changed is not written.

    ``home`` is where it lives, empty while it is in the queue, and ``queued_s`` since when it is
    there; ``pack`` is with whom it shares its GPU. They are looked at most, so that they are plain
    attributes: to be changed with :meth:`set_home`, :meth:`set_queued_s` and :meth:`set_pack`.
    """

    def __init__(self, mark: Any) -> None:
        self._before = mark
        self._mark: dict[str, Any] = mark or {}  # not to be changed but through _own
        self._is_own = False
        self._probes: list[Probe] = []  # ended in this decision
        self._was_packed = self._mark.get("pack")
        for told in TOLD_IN_MARKS:
            if told in self._mark:
                del self._own()[told]
        home = self._mark.get("home")
        self.home: Home = tuple((node, gpus) for node, gpus in home) if home else ()
        pack = self._mark.get("pack")
        self.pack = Pack(tuple(pack[0]), *pack[1:]) if pack else None
        self.queued_s: float | None = self._mark.get("queued_s")

    def are_as(self, mark: Any) -> bool:
        """True if these are what would be read of ``mark`` now, which nobody changes in place."""
        return self._before is mark and not self._is_own and not self._probes

    @property
    def is_changed(self) -> bool:
        """True if this decision has something new to remember of the job, or to tell."""
        return self._is_own or bool(self._probes)

    @property
    def is_moved(self) -> bool:
        """True if a move of the job is under probe."""
        return "move" in self._mark

    def _own(self) -> dict[str, Any]:
        """The job's memory, to be changed."""
        if not self._is_own:
            self._mark, self._is_own = dict(self._mark), True
        return self._mark

    def _forget(self, key: str) -> None:
        if key in self._mark:
            del self._own()[key]

    def set_home(self, home: Home) -> None:
        """Set the job's home."""
        self.home = home
        self._own()["home"] = [list(part) for part in home]

    def leave(self) -> None:
        """Remove the job from its home, and from the queue."""
        self.set_home(())
        self.move = None
        self.set_queued_s(None)
        if self.pack is None:  # else it is still to be credited for its part of the GPU
            self.seen = None

    @property
    def credit(self) -> float:
        """Seconds per priority that it is taken to have run before it came here."""
        return float(self._mark.get("credit", 0.0))

    @credit.setter
    def credit(self, seconds: float) -> None:
        self._own()["credit"] = seconds

    @property
    def lent(self) -> float:
        """The part of ``credit`` that the job was given when it moved here."""
        return float(self._mark.get("lent", 0.0))

    def weight(self, priority: int) -> float:
        """The weight of its turns: its priority, unless it has a part of its search's."""
        return float(self._mark.get("weight", priority))

    def set_weight(self, weight: float) -> None:
        """Its turns have this weight from now on."""
        self._own()["weight"] = weight

    def lend(self, seconds: float) -> None:
        """Credit it as it comes to live with others."""
        if seconds != self.lent:
            self._own()["lent"] = seconds
        if seconds:
            self.credit += seconds

    def give_back(self) -> None:
        """Return the job to its former home, where that credit counts for nothing."""
        if self.lent:
            self.credit -= self.lent
            del self._own()["lent"]

    def set_queued_s(self, at_s: float | None) -> None:
        """Set the time since which the job has been in the queue; None if it is not there."""
        self.queued_s = at_s
        if at_s is None:
            self._forget("queued_s")
        else:
            self._own()["queued_s"] = at_s

    @property
    def alone(self) -> float | None:
        """Steps a second when it had its GPUs for itself, as measured before the present probe."""
        return self._mark.get("alone")

    @alone.setter
    def alone(self, rate: float | None) -> None:
        if rate is not None:
            self._own()["alone"] = rate

    @property
    def were_looked_at(self) -> bool:
        """True if the job's progress is known from which something is being measured."""
        return "seen" in self._mark

    @property
    def seen(self) -> StepsSeen | None:
        """Its progress at the beginning of what is being measured."""
        return StepsSeen(*self._mark["seen"]) if "seen" in self._mark else None

    @seen.setter
    def seen(self, seen: StepsSeen | None) -> None:
        if seen is None:
            self._forget("seen")
        else:
            self._own()["seen"] = list(seen)

    @property
    def moved_s(self) -> float | None:
        """Time at which the job was last given another home."""
        return self._mark.get("moved_s")

    @moved_s.setter
    def moved_s(self, at_s: float) -> None:
        self._own()["moved_s"] = at_s

    @property
    def undone(self) -> int:
        """Number of consecutive moves that were undone, because the job was slower elsewhere."""
        return int(self._mark.get("undone", 0))

    @undone.setter
    def undone(self, moves: int) -> None:
        if moves != self.undone:
            self._own()["undone"] = moves

    def set_pack(self, pack: Pack | None) -> None:
        """Set the jobs with which the job shares its GPU from now on; None for none."""
        self.pack = pack
        self._forget("part")
        if pack is None:
            self._forget("pack")
        else:
            self._own()["pack"] = [list(pack.rows), *pack[1:]]

    @property
    def part(self) -> float:
        """The part of its pack's GPU time that it is charged for."""
        whole = 1 if self.pack is None else len(self.pack.rows)
        return float(self._mark.get("part", 1 / whole))

    @part.setter
    def part(self, part: float) -> None:
        self._own()["part"] = part

    @property
    def apart(self) -> set[int]:
        """Jobs that it was packed with in vain."""
        return set(self._mark.get("apart", ()))

    @apart.setter
    def apart(self, rows: set[int]) -> None:
        self._own()["apart"] = sorted(rows)

    @property
    def move(self) -> Move | None:
        """Its move, while that is under probe."""
        move = self._mark.get("move")
        return Move(tuple((n, g) for n, g in move[0]), *move[1:]) if move else None

    @move.setter
    def move(self, move: Move | None) -> None:
        if move is None:
            self._forget("move")
        else:
            self._own()["move"] = [[list(part) for part in move.before], *move[1:]]

    @property
    def speeds(self) -> Mapping[str, float]:
        """Steps a second on each GPU type that it has left, or has just come to."""
        speeds: Mapping[str, float] = self._mark.get("speeds", {})
        return speeds

    def learn(self, kind: str, speed: float) -> None:
        """Remember its steps a second on a GPU type."""
        self._own()["speeds"] = {**self.speeds, kind: speed}

    def resized(self, at_s: float) -> None:
        """Drop the speed measured at another size, and the probe with it."""
        move = self.move
        if move is not None:
            mates = () if move.partner < 0 else (move.partner,)
            places = (nodes_of(self.home), nodes_of(move.before))
            self.note(Probe(at_s, move.what, move.predicted, None, True, mates, *places))
        for key in ("alone", "seen", "move"):
            self._forget(key)

    def note(self, tried: Probe) -> None:
        """Tell what a probe came to; speeds are relative to those before it.

        ``measured`` is None if the job does not tell how fast it is, or was before.
        """
        self._probes.append(tried)

    def write(self, what_if: WhatIf, row: int, told: Told) -> None:
        """Remember what has changed, and tell of it."""
        if self._probes:
            told.probes[row] = tuple(self._probes)
        if not self._is_own:
            return
        if self._mark != (self._before or {}):
            what_if.mark(row, self._mark)
        if self._mark.get("pack") != self._was_packed:
            pack = self.pack
            told.packs[row] = None if pack is None else Packed(pack.rows, pack.gain)


def nodes_of(home: Home) -> tuple[tuple[int, int], ...]:
    """The nodes of a home, as a probe tells them: whichever GPUs."""
    return tuple((node, 0) for node, _ in home)


def level(
    notes: Mapping[int, Notes],
    rows: Collection[int],
    home: Home,
    had: Callable[[int], float],
    owner_of: Mapping[int, str],
) -> None:
    """Credit jobs that come to live together with what the least served has had who live there.

    ``had`` tells seconds per priority. ``owner_of`` tells owners if they take turns: then only jobs
    of the same owner are compared with each other, those on other nodes if none lives there.
    """
    nodes = {node for node, _ in home}
    for row in rows:
        owner = owner_of.get(row)
        alike = [other for other in notes if other not in rows and owner_of.get(other) == owner]
        here = [r for r in alike if not nodes.isdisjoint(node for node, _ in notes[r].home)]
        others = [had(r) for r in here]
        if not others and owner is not None:
            others = [had(r) for r in alike if notes[r].home]
        notes[row].lend(max(0.0, min(others) - had(row)) if others else 0.0)


def goes_on(view: View, row: int, quantum_s: float, longest_s: float) -> bool:
    """True if a job's turn is not over yet, as each would cost it what it did since a checkpoint.

    Of a job that starts again from a checkpoint of its own turns double with each suspension, up
    to ``longest_s``: one that is complete before it has written any must not begin for ever.
    """
    if view.target[row] is None or view.suspension[row] != Suspension.RESTART:
        return False
    if view.since_s[row] < 0:
        return True
    own_s = turn_s(view, row, quantum_s, longest_s)
    return view.now_s - view.since_s[row] < own_s - quantum_s / 2  # turns end with quanta


def turn_s(view: View, row: int, quantum_s: float, longest_s: float) -> float:
    """Seconds of a job's turn: see :func:`goes_on`."""
    if view.suspension[row] != Suspension.RESTART:
        return quantum_s
    doublings = min(view.preemptions[row], TURN_DOUBLINGS)
    return min(quantum_s * 2.0**doublings, longest_s)


def look(view: View, row: int) -> StepsSeen | None:
    """A job's steps and run time so far; None if it does not report steps."""
    ran_s = view.attained_s(row)
    if view.spec[row].simulated:  # a second of its work is a step
        return StepsSeen(ran_s, view.work_s(row))
    told = view.progress[row] or {}
    if told.get("step") is None or told.get("at_s") is None:
        return None
    if view.since_s[row] >= 0:  # it ran on for a while after it told
        ran_s -= min(max(view.now_s - told["at_s"], 0.0), view.now_s - view.since_s[row])
    return StepsSeen(ran_s, float(told["step"]))


def left_s(before: StepsSeen | None, now: StepsSeen | None, least_s: float) -> float:
    """Seconds of run time until a rate can be told; some, if it should be there but is not."""
    ran_s = now.ran_s - before.ran_s if before is not None and now is not None else 0.0
    left = least_s - ran_s
    return left if left > LEAST_TURN_S else least_s


def rate(before: StepsSeen | None, now: StepsSeen | None, least_s: float) -> float | None:
    """Steps a second between two looks; None unless they are ``least_s`` of run time apart."""
    if before is None or now is None or now.ran_s - before.ran_s < least_s:
        return None
    steps = now.steps - before.steps
    return steps / (now.ran_s - before.ran_s) if steps >= 0 else None


def speed_alone(view: View, row: int, notes: Notes) -> float | None:
    """Steps a second of a job that has its GPUs for itself; what is known from before otherwise.

    A job that had told nothing at the last decision has not been seen since: then its profile
    tells, which is measured whether there are decisions or not.
    """
    if notes.pack is None and notes.move is None:
        measured = rate(notes.seen, look(view, row), MEASURED_S)
        return measured or notes.alone or _told(view, row, notes.home)
    return notes.alone


def _told(view: View, row: int, home: Home) -> float | None:
    """Steps a second alone on such GPUs as the job lives on, as its own reports tell."""
    profile = view.own_profile(row)
    if profile is None:
        return None
    types = sorted({view.nodes[node].gpu_type for node, _ in home})
    speed = profile.speeds.get(Placement("+".join(types), sum(gpus for _, gpus in home), len(home)))
    if speed is None or not speed.mean or speed.seconds < MEASURED_S:
        return None
    return 1 / speed.mean


def profiled(view: View, row: int, gpu_type: str, num_gpus: int) -> float | None:
    """Steps a second alone on GPUs of a type, as the job or others of its kind were measured.

    None of simulated jobs, which have no profiles.
    """
    step_s = view.step_s(row, Placement(gpu_type, num_gpus))
    return 1 / step_s if step_s else None
