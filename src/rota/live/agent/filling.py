"""The background attempts of a node: beside whom each is, how it is held back, how both fare.

Each process of a foreground attempt has a page, and each process of a background attempt a link to
the page of the one on its GPU: a session's gate asks by it before each piece. A program without a
session, one process that has several GPUs, or one that computes beside its pieces where CPU cores
stand for GPUs, is run in slices of time. All of it is found out anew from the attempts' records, so
that the agent's successor goes on with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rota.live.agent.attempt import Attempt
from rota.live.agent.attempt_report import Account
from rota.live.agent.cpu_groups import Groups, GroupsV1
from rota.live.agent.launching import fills_of, has_pages, page_of
from rota.live.agent.processes import cpu_seconds
from rota.live.agent.rank import Rank
from rota.live.agent.states import State
from rota.live.wire import Message
from rota.share.controllers import SlowdownFeedback, Totals
from rota.share.marks import NOBODY, Seen
from rota.share.page import PageReader, is_told, read_fill, tell_mute
from rota.share.slowdown import Slowdown
from rota.share.stop import Duty, Throttle
from rota.share.weight import Autogroup, CgroupWeight, Way, measure

LOOK_EVERY_S = 0.2
TELL_EVERY_S = 5.0  # by which time a foreground has done enough steps to tell a harvest by,
LEAST_STEPS, PATIENCE_S = 16, 30.0  # at least so many, unless it takes too long
# CPU time in a second beside the pieces: more is work that no gate holds back, and it is over once
# there has been less than the other for so long.
STRAY, NO_STRAY, NO_STRAY_S = 0.1, 0.02, 30.0
ON_DEVICE = {State.STARTING, State.ADOPTED, State.RUNNING, State.SUSPENDING, State.RESUMING}

log = logging.getLogger("rota.agent")


class Filling:
    """Holds the background attempts among a node's ``attempts`` back.

    ``notify`` is called with what the controller is to know of them; ``ways`` are those in which
    they may be given less weight on the CPU, the first that works is used.
    """

    def __init__(
        self,
        attempts: Callable[[], Collection[Attempt]],
        notify: Callable[[Message], None],
        ways: Sequence[Way],
        *,
        cores_stand_for_gpus: bool,
    ) -> None:
        self._attempts, self._notify = attempts, notify
        self._weight = Weight(ways)
        self._cores_stand_for_gpus = cores_stand_for_gpus
        self._holds: dict[tuple[str, int], Hold] = {}

    async def run(self) -> None:
        """Look after them until cancelled."""
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                self.look(time.monotonic())
        finally:
            for hold in self._holds.values():
                hold.let_go()
            self._weight.close()

    def look(self, now_s: float) -> None:
        """See who is beside whom by now, and how that goes; seconds of CLOCK_MONOTONIC."""
        here = {(each.job_id, each.number): each for each in self._attempts() if _runs(each)}
        for key in self._holds.keys() - here.keys():
            self._holds.pop(key).let_go()
        for key, attempt in here.items():
            if not attempt.record.background:
                continue
            hold = self._holds.get(key)
            if hold is None:
                hold = self._holds[key] = Hold(attempt)
                attempt.changed = self._changed
            mates = [each for each in self._attempts() if _is_beside(each, attempt)]
            hold.stand_beside(mates, now_s)
            if hold.is_stray(now_s, cores=self._cores_stand_for_gpus):
                hold.throttle()
            self._weight.lower(attempt)
            report = hold.report(now_s)
            if report is not None:
                self._notify(report)

    def _changed(self, attempt: Account) -> None:
        """The attempt's state is another: unless it runs, its processes are somebody else's."""
        hold = self._holds.get((attempt.job_id, attempt.number))
        if hold is not None and attempt.state != State.RUNNING:
            hold.let_go()


class Beside(NamedTuple):
    """The foreground attempt on a background one's GPU, or the first of several, and the page.

    ``limit`` is the slowdown that it allows, the least that any of them does.
    """

    job_id: str
    page: Path
    limit: float


class Device:
    """One GPU of a background attempt: the page that is followed there, and CPU time beside it."""

    def __init__(self, attempt: Attempt, position: int) -> None:
        self._attempt, self._position = attempt, position
        own = len(attempt.record.members) == len(attempt.record.gpus)
        self.link = fills_of(attempt.folder, attempt.record.members[position] if own else position)
        self.beside: Beside | None = None
        self._reader = PageReader(Path())
        self._read: Path | None = None  # the page that the reader has
        self._cpu: tuple[float, float, float] | None = None  # when, CPU time, that of pieces

    @property
    def gpu(self) -> int:
        """The GPU by its number on the node."""
        return self._attempt.record.gpus[self._position]

    # -- the page ------------------------------------------------------------------------------

    def stand_beside(self, mates: Sequence[Attempt]) -> None:
        """Follow the page of these foreground attempts. Raises OSError if that can't be told."""
        beside = self.beside = self._page_of(mates) if mates else None
        if beside is None:
            self.link.unlink(missing_ok=True)
            return
        if not is_told(beside.page) and (pid := self._worker_of(mates)):
            tell_mute(beside.page, pid, beside.limit)
        if os.path.realpath(self.link) != str(beside.page.resolve()):
            draft = self.link.with_name(f"{self.link.name}.new")
            draft.unlink(missing_ok=True)
            draft.symlink_to(beside.page)
            draft.replace(self.link)

    def _page_of(self, mates: Sequence[Attempt]) -> Beside:
        """The page to follow: that of the process on the GPU, or one that stands for several."""
        mate, limit = mates[0], min(each.record.max_slowdown for each in mates)
        if len(mates) > 1:
            name = f"several{self._position or ''}.marks"
            return Beside(mate.job_id, self._attempt.folder / name, limit)
        return Beside(mate.job_id, page_of(mate.folder, self._rank_of(mate).index), limit)

    def _rank_of(self, mate: Attempt) -> Rank:
        """The foreground process on the GPU."""
        gpus = mate.record.gpus
        return mate.members[gpus.index(self.gpu) if has_pages(mate.record) else 0]

    def _worker_of(self, mates: Sequence[Attempt]) -> int:
        """A foreground process that is alive; 0 if none is yet."""
        return next((rank.worker for rank in map(self._rank_of, mates) if rank.alive), 0)

    def seen(self, now_s: float) -> Seen:
        """What is seen of the foreground there."""
        page = self.beside.page if self.beside is not None else None
        if page != self._read:
            self.close()
            self._read = page
            if page is not None:
                self._reader = PageReader(page)
        return self._reader.read(now_s) if page is not None else NOBODY

    def close(self) -> None:
        """Look at no page."""
        self._reader.close()
        self._read = None

    # -- how it goes ---------------------------------------------------------------------------

    def stray(self, rank: Rank, now_s: float) -> float:
        """A rank's CPU time beside its pieces since the last look, for each second."""
        told, before = read_fill(self.link), self._cpu
        pieces_s = told.busy_s if told is not None else 0.0
        self._cpu = now_s, cpu_seconds([rank.shim]), pieces_s
        if before is None:
            return 0.0
        then_s, cpu_before_s, pieces_before_s = before
        spent_s = self._cpu[1] - cpu_before_s
        return (spent_s - (pieces_s - pieces_before_s)) / (now_s - then_s)

    def totals(self, now_s: float) -> Totals | None:
        """What the gate there has told; None if nothing. A slowdown is that of the present page."""
        told = read_fill(self.link)
        if told is None:
            return None
        is_old = now_s - told.at_s > TELL_EVERY_S
        return Totals(*told[3:])._replace(slowdown=None if is_old else told.slowdown)


class Hold:
    """One background attempt: the pages that it follows, and its throttle, if it has one.

    Its processes are throttled together: a gang runs while each of its GPUs has a gap.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._devices = [Device(attempt, i) for i in range(len(attempt.record.gpus))]
        self._duty: Duty | None = None
        self._throttling: asyncio.Task[None] | None = None
        self._throttle: Throttle | None = None
        self._stray_until_s = 0.0
        self._before: tuple[float, list[Totals | None]] | None = None
        self._cpu_at_s = 0.0

    # -- the pages -----------------------------------------------------------------------------

    def stand_beside(self, mates: Sequence[Attempt], now_s: float) -> None:
        """Follow the pages of these foreground attempts, which have some of its GPUs as well."""
        for device in self._devices:
            there = [mate for mate in mates if device.gpu in mate.record.gpus]
            before = device.beside
            try:
                device.stand_beside(there)
            except OSError as error:
                if now_s >= self._stray_until_s:
                    whom = device.beside.job_id if device.beside is not None else None
                    about = (self._attempt.job_id, whom, error)
                    log.warning("job %s can't be told that it is beside job %s: %s", *about)
                self._stray_until_s = now_s + NO_STRAY_S  # without a page no gate holds it back
            if device.beside != before:
                self._before = None

    # -- slices of time ------------------------------------------------------------------------

    def is_stray(self, now_s: float, *, cores: bool) -> bool:
        """True if it computes where no gate holds it back. ``cores``: they stand for GPUs."""
        if all(device.beside is None for device in self._devices):
            return False
        if not self._has_gates:
            return True
        if cores and now_s >= self._cpu_at_s:
            self._cpu_at_s = now_s + 1.0
            each = zip(self._devices, self._ranks, strict=True)
            stray = max(device.stray(rank, now_s) for device, rank in each)
            if stray > (NO_STRAY if now_s < self._stray_until_s else STRAY):
                self._stray_until_s = now_s + NO_STRAY_S
        return now_s < self._stray_until_s

    @property
    def _has_gates(self) -> bool:
        """True if a process on each GPU asks for itself."""
        ranks = self._ranks
        return len(ranks) == len(self._devices) and all(rank.writer for rank in ranks)

    def throttle(self) -> None:
        """Run the attempt in slices from now on, until :meth:`let_go`."""
        if self._throttling is None:
            self._duty = Duty([SlowdownFeedback() for _ in self._devices])
            self._before = None
            self._throttling = asyncio.create_task(self._run_in_slices(self._duty))

    async def _run_in_slices(self, duty: Duty) -> None:
        attempt, ranks = self._attempt, self._ranks
        self._throttle = Throttle([rank.shim for rank in ranks], duty, self._signal)
        try:
            while _runs(attempt) and not attempt.stopping and any(rank.alive for rank in ranks):
                now_s = time.monotonic()
                if all(device.beside is None for device in self._devices):
                    break
                if self._has_gates and now_s >= self._stray_until_s:
                    break
                seen = [device.seen(now_s) for device in self._devices]
                await asyncio.sleep(self._throttle.turn(seen, now_s))
        finally:
            self._throttle.close()
            for device in self._devices:
                device.close()
            self._throttle = self._duty = self._throttling = self._before = None

    def _signal(self, number: signal.Signals) -> None:
        for rank in self._ranks:
            rank.signal(number)

    def let_go(self) -> None:
        """Run it as it comes."""
        if self._throttle is not None:
            self._throttle.close()  # at once: whoever stops it next must find it running
        if self._throttling is not None:
            self._throttling.cancel()

    @property
    def _ranks(self) -> list[Rank]:
        return self._attempt.members

    # -- how it goes ---------------------------------------------------------------------------

    def report(self, now_s: float) -> Message | None:
        """How it went since the last report, once there is enough to tell; None before.

        Of a gang the harvest is the least on any of its GPUs. The slowdown is that of the job which
        is shown to be furthest beyond its limit, else of the one that may be.
        """
        if self._before is None:
            self._before = now_s, self._totals(now_s)
            return None
        then_s, before = self._before
        passed_s, now = now_s - then_s, self._totals(now_s)
        if passed_s < TELL_EVERY_S:
            return None
        fared = [
            (device.beside, be.steps - was.steps, be.busy_s - was.busy_s, be.slowdown)
            for device, was, be in zip(self._devices, before, now, strict=True)
            if was is not None and be is not None
        ]
        if len(fared) < len(self._devices):
            self._before = None
            is_alone = all(device.beside is None for device in self._devices)
            return self._told(None, None, 1.0) if is_alone else None
        steps = [count for mate, count, _, _ in fared if mate is not None]
        if min(steps, default=LEAST_STEPS) < LEAST_STEPS and passed_s < PATIENCE_S:
            return None
        self._before = now_s, now
        harvest = min(min(1.0, max(0.0, busy_s) / passed_s) for _, _, busy_s, _ in fared)
        beside = [(mate, slowdown) for mate, _, _, slowdown in fared if mate is not None]
        known = [(mate, slowdown) for mate, slowdown in beside if slowdown is not None]
        if known:
            mate, slowdown = max(known, key=_beyond)
            return self._told(mate.job_id, slowdown, harvest)
        return self._told(beside[0][0].job_id if beside else None, None, harvest)

    def _told(self, beside: str | None, slowdown: Slowdown | None, harvest: float) -> Message:
        told: Message = {"beside": beside, "harvest": harvest}
        if slowdown is not None:
            ratio, low, high, pairs = slowdown
            told |= {"slowdown": ratio, "low": low, "high": high, "pairs": pairs}
        return self._attempt.about("filling") | told

    def _totals(self, now_s: float) -> list[Totals | None]:
        if self._duty is not None:
            return list(self._duty.totals())
        return [device.totals(now_s) for device in self._devices]


def _beyond(told: tuple[Beside, Slowdown]) -> tuple[float, float]:
    """How far a job is beyond its limit for certain, 0 if it is not, and how far it may be."""
    mate, slowdown = told
    return max(0.0, slowdown.low / mate.limit - 1), slowdown.high / mate.limit


class Weight:
    """Gives background attempts the least weight on the CPU, by the first way that works."""

    def __init__(self, ways: Sequence[Way]) -> None:
        self._ways = ways
        self._finding: asyncio.Task[Way | None] | None = None
        self._lowered: dict[tuple[str, int], set[int]] = {}

    def lower(self, attempt: Attempt) -> None:
        """Have an attempt's processes give way; those held by a control group do already."""
        if attempt.record.millicores is not None:
            return
        if self._finding is None:
            self._finding = asyncio.create_task(asyncio.to_thread(_first_that_works, self._ways))
        way = self._finding.result() if self._finding.done() else None
        if way is None:
            return
        below = {pid for rank in attempt.ranks for pid in rank.below()}
        done = self._lowered.setdefault((attempt.job_id, attempt.number), set())
        for pid in below - done:
            with suppress(OSError):  # gone, or written too often: it is tried again
                way.lower(pid)
                done.add(pid)
        done &= below

    def close(self) -> None:
        """Undo what was made for it."""
        for way in self._ways:
            way.close()


def ways_of(groups: Groups | None) -> list[Way]:
    """The ways in which an agent may lower the weight of jobs that no control group holds.

    A group of version 2 can't be beside processes that are in none.
    """
    ways: list[Way] = [Autogroup()]
    if isinstance(groups, GroupsV1):
        tree = groups.trees[0]
        ways.append(CgroupWeight(tree.parent, tree.name))
    return ways


def _first_that_works(ways: Sequence[Way]) -> Way | None:
    """The way that was found to work by trying; None if none does."""
    reasons = []
    for way in ways:
        found = measure(way)
        if found.works:
            text = "background jobs give way on the CPU by %s: %.2f s beside each second of others"
            log.info(text, way.name, found.ratio)
            return way
        reasons.append(f"{way.name}: {found.why or f'{found.ratio:.2f} s'}")
    log.warning("background jobs do not give way on the CPU: %s", "; ".join(reasons) or "no way")
    return None


def _runs(attempt: Account) -> bool:
    return attempt.state == State.RUNNING and attempt.ended is None


def _is_beside(other: Attempt, attempt: Attempt) -> bool:
    """True if the other one is in the foreground on a GPU of the background attempt."""
    return (
        not other.record.background
        and other.state in ON_DEVICE
        and not set(other.record.gpus).isdisjoint(attempt.record.gpus)
        and any(rank.alive for rank in other.members)
    )
