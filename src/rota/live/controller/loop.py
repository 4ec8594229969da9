"""The controller: turns reports and requests into events, and plans into commands.

One turn: apply what has come, let the policy decide if something calls for it, derive the commands,
write everything down in one transaction, and only then send the commands.

On a full disk (:mod:`rota.live.controller.room`) nothing is decided and nothing sent that is not
written down; what has come stays in memory, and the controller continues once there is room.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from rota.errors import StoreError, StoreLostError
from rota.folder import Folder
from rota.live.controller.agent_sessions import AgentSessions
from rota.live.controller.cleaner import Cleaner
from rota.live.controller.failed_decisions import FailedDecisions, without_digits
from rota.live.controller.job_api import JobApi
from rota.live.controller.job_files import JobFiles
from rota.live.controller.journal import Journal
from rota.live.controller.leases import LEASE_S, LOOK_EVERY_S, MARGIN_S, Leases
from rota.live.controller.log_copies import LogCopies
from rota.live.controller.node_api import NodeApi
from rota.live.controller.questions import Questions
from rota.live.controller.record import Noting, Record, Watcher
from rota.live.controller.recovery import DRAINED, LEASE_OVER, NODE_GONE, overdue
from rota.live.controller.room import Room
from rota.live.controller.snapshots import Snapshots
from rota.live.controller.supply import Supply
from rota.live.controller.sweep_api import SweepApi
from rota.live.controller.telemetry import Telemetry
from rota.live.controller.tickets import Certify, Tickets
from rota.live.controller.time_limit import LONGEST_DECISION_S, time_limit
from rota.live.provider.base import Provider
from rota.live.wire import clock
from rota.model.commands import Launch
from rota.model.decide.decision import take_decision
from rota.model.decide.diff import diff
from rota.model.events import (
    CommandSent,
    DecisionTaken,
    JobFinished,
    NodeUnreachable,
    PolicyFailed,
    RetryDue,
    StopRequested,
)
from rota.model.fallback import sentence
from rota.model.job import JobState
from rota.model.naming import jobs_text
from rota.model.notes import MOST_CHARS
from rota.model.turns import Ahead, Turns
from rota.model.view import View, identity
from rota.policy.base import Policy, checked
from rota.policy.registry import again
from rota.store.events import EventStore
from rota.store.members import Members

# Another error of a policy that goes on failing, and the same one of a policy that has decided in
# between, are told after so long.
FAILURE_TOLD_S = 60.0
POLICY_RETRY_S = 5.0  # where even the fallback raised, it is tried again after so long
# To decide takes longer the more jobs wait. New jobs alone call for no other decision until so many
# times as long has passed as the last one took, or this many seconds.
PACE, MOST_PACE_S = 9.0, 1.0
AWAIT_S = 10.0  # after a start agents of jobs have so long to tell before anything is decided

log = logging.getLogger("rota.controller")
notice = logging.getLogger("rota.notice")  # shown to whoever has started `rota up` as well


class Cycle(NamedTuple):
    """One decision and what followed, in seconds of a steady clock: until ``snapshot_s`` the view
    was made, until ``policy_s`` the policy decided, until ``commit_s`` all was written down.

    ``at_s`` is when it was taken by the cluster's clock, ``changed`` how many jobs it gives other
    GPUs than before.
    """

    at_s: float
    seq: int
    changed: int
    began_s: float
    snapshot_s: float
    policy_s: float
    commit_s: float


class Controller:
    """Owns the cluster's state. All methods run on one event loop, and none waits half-way.

    ``record`` is what is known, ``journal`` what has yet to be written down; users ask ``jobs``,
    ``files``, ``cleaner`` and ``sweeps``, administrators ``node_api``, agents talk to ``agents``.
    ``past`` notes every event as it is applied, from the log's first one on; ``members`` are the
    machines that have joined, by default those that the store has, and ``leases`` theirs;
    ``certify`` makes the certificates by which they hand state out to one another.
    """

    def __init__(
        self,
        store: EventStore,
        folder: Folder,
        policy: Policy,
        policy_name: str,
        provider: Provider,
        room: Room | None = None,
        watchers: Iterable[Watcher] = (),
        past: Noting | None = None,
        members: Members | None = None,
        leases: Leases | None = None,
        certify: Certify | None = None,
    ) -> None:
        self._policy = checked(policy)
        self.policy_name = policy_name
        self.policy_settings: Mapping[str, Any] = policy.settings
        self.resizes: bool = policy.resizes
        self.adapts: bool = policy.adapts
        self.fills: bool = policy.fill is not None
        self._provider = provider
        self.room = room or Room(folder, keeps_reserve=False)
        self.record = Record(store, folder, watchers, past)
        self.state = self.record.state
        self.journal = Journal(self.record, self.room)
        self.questions = Questions(self.record.outboxes)
        self.members = Members(store) if members is None else members
        self.copies = LogCopies(self.record, self.questions, self.members)
        self.files = JobFiles(self.record, self.questions, provider, self.members, self.copies)
        self.snapshots = Snapshots(self.record, self.room, folder.snapshots)
        self.supply = Supply(self.record, self.journal, provider, policy.turn_s)
        self.jobs = JobApi(
            self.record, self.journal, self.files, self.snapshots, self.supply.most_nodes
        )
        self.cleaner = Cleaner(self.record, self.journal, self.files, self.snapshots)
        self.sweeps = SweepApi(self.record, self.journal, self.jobs)
        self.telemetry = Telemetry(self.record, self.journal)
        self.leases = Leases(LEASE_S) if leases is None else leases
        self.node_api = NodeApi(self.record, self.journal, self.members, self.leases, self.supply)
        self.tickets = Tickets(self.record, self.members, certify)
        self.agents = AgentSessions(
            self.record,
            self.journal,
            self.telemetry,
            self.questions,
            self.supply,
            self.members,
            self.leases,
            self.tickets,
            self.turn,
        )
        self.node_api.has_parts = self.agents.gangs.has_parts
        self._tasks: list[asyncio.Task[None]] = []
        self._policy_retry_at_s: float | None = None
        self._decision_error: str | None = None  # why the last decision was none, if so
        self._failed_decisions = FailedDecisions(folder.failed_decisions)
        self._failure_told_s, self._tells_end = 0.0, False
        self._limit = partial(time_limit, LONGEST_DECISION_S)
        self.on_cycle: Callable[[Cycle], None] = lambda cycle: None  # told of each decision
        self._cycle: Cycle | None = None  # the decision of this turn, until it is written down
        self._paced_until_s = 0.0
        self._await_until_s = 0.0
        self.state.epoch = store.next_epoch()
        self.state.decision_needed = True

    def now_s(self) -> float:
        """The cluster's time: seconds since the epoch."""
        return self.record.now_s()

    # -- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to decide, and have the agents started that are not there."""
        self.record.keep_last_id()
        self.supply.look()
        self.agents.awaited = {
            name for row in self.state.open_rows() for name in self.agents.seats_of(row)
        }
        self._await_until_s = self._present_s() + AWAIT_S
        for name in self.members.names:  # its agent may have been answered a moment ago
            self.leases.renew(name, clock.boottime_s())
        self.room.look()
        vital = self._vital(self._run), self._vital(self._watch)
        going_on = *vital, self.copies.run(), self.snapshots.run()
        self._tasks = [asyncio.create_task(each) for each in going_on]
        await self._provider.start()

    def end_jobs(self) -> None:
        """Begin to end all jobs and agents; ``stopped`` is set when none is left.

        The jobs start anew with the next controller. :meth:`waits_for` tells what is left.
        """
        if not self.agents.ends_jobs:
            self.agents.end_jobs()
            self._tasks.append(asyncio.create_task(self._end_all()))

    async def _end_all(self) -> None:
        try:
            await self._provider.end()
        except Exception as error:
            log.critical("the controller stops before all jobs have ended", exc_info=True)
            self.journal.give_up(str(error))
        self.journal.stopped.set()

    def waits_for(self) -> dict[str, Any]:
        """Remaining ``jobs`` that have processes, and nodes with live ``agents``."""
        return {
            "jobs": [
                {
                    "id": self.state.spec[row].job_id,
                    "name": self.state.spec[row].name,
                    "node": self.record.state_on(row),
                }
                for row in self.record.index.going()
                if self.state.has_processes(row)
            ],
            "agents": sorted(node.name for node in self._provider.nodes() if node.is_alive),
        }

    async def stop(self) -> None:
        """Stop deciding. Jobs, and agents with jobs, continue unless they were told to end.

        Those that were told to end continue to do so.
        """
        self.questions.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not (self.journal.failed or self.agents.ends_jobs or self.record.living()):
            self.agents.end_jobs()
            await self._provider.wait_for_end(connected=set(self.record.outboxes.queues))
        else:
            await self._provider.stop()
        if not self.journal.failed:
            self.journal.try_again()
            if not self.journal.write_down():
                log.error("%d events had no room on the disk", len(self.journal.unwritten))
        if self.agents.ends_jobs:
            self.room.remove()
        self.record.store.close()

    async def _vital(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something without which there is no controller."""
        try:
            await work()
        except StoreLostError:
            return  # the journal has given up
        except Exception as error:
            # What is in memory and what is on disk may differ now: only a restart is safe.
            log.critical(
                "the controller stops; jobs go on, and a restart takes over", exc_info=True
            )
            self.journal.give_up(str(error))

    async def _run(self) -> None:
        while True:
            self.turn()
            self.journal.kick.clear()
            # Not wait_for: where both come at once, that one forgets that it was cancelled.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._sleep_s()):
                    await self.journal.kick.wait()

    async def _watch(self) -> None:
        """Watch the disk and the nodes, and have a turn taken when they change.

        Where a look is late, this process stood still: that time is not the silence of others.
        """
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            nodes_changed = not self.agents.ends_jobs and self.supply.look()
            nodes_changed = self._look_at_machines() or nodes_changed
            if self.room.look() or self.journal.unwritten or nodes_changed:
                self.journal.kick.set()

    def _look_at_machines(self) -> bool:
        """Place nothing on machines that are not heard; once their leases are over, their jobs may
        start elsewhere. True if something has changed.
        """
        state, now_s, booted_s = self.state, self.now_s(), clock.boottime_s()
        changed = False
        for name in self.leases.take_over(booted_s):
            if (index := state.node_index.get(name)) is not None and state.nodes[index].alive:
                notice.warning("node %s has not been heard for its whole lease: it is lost", name)
                why = NODE_GONE if name in self.members.leaving else LEASE_OVER
                self.journal.lose_node(name, now_s, why)  # before the next node is
                changed = True
        with contextlib.suppress(StoreError):  # a full disk: the next look tries again
            self.node_api.let_go()
        for name, left_s in self.leases.silent(booted_s).items():
            index = state.node_index.get(name)
            if index is None or not state.nodes[index].alive:
                continue
            if name in self.record.outboxes.queues:  # its hello has come, and is being written down
                continue
            until_s = now_s + left_s if left_s < math.inf else None
            if not (index in state.unreachable and _near(state.unreachable[index], until_s)):
                self.journal.note(NodeUnreachable(now_s, name, until_s))
                changed = True
        self.agents.gangs.look()
        return changed

    def _sleep_s(self) -> float | None:
        if self.journal.unwritten or self.agents.ends_jobs:
            return None
        if self._awaits():
            return max(0.0, self._await_until_s - self._present_s())
        state, times = self.state, list(self.state.backoff.values())
        if state.wake_at_s is not None and not self.room.is_tight:
            times.append(state.wake_at_s)
        if self._policy_retry_at_s is not None and not self.room.is_tight:
            times.append(self._policy_retry_at_s)
        if state.decision_needed and not self.room.is_tight:
            times.append(self._paced_until_s)
        times += [at_s for _, at_s in self._time_limits()]
        now_s = self.now_s()
        drained_by = (closing.by_s for closing in state.closed.values() if closing.drains)
        times += [at_s for at_s in drained_by if at_s is not None and at_s > now_s]
        return max(0.0, min(times) - self.now_s()) if times else None

    def turn(self) -> None:
        """Take a decision, if one is due, and every action that follows from it."""
        self.tickets.look()
        if self.journal.is_behind and not self.journal.write_down():
            return
        if not (self.agents.ends_jobs or self._awaits()):
            self._advance()
        is_written = self.journal.write_down()
        cycle, self._cycle = self._cycle, None
        if cycle is not None and is_written:
            cycle = cycle._replace(commit_s=time.perf_counter())
            self.record.process_counts.cycle_s.add(cycle.commit_s - cycle.began_s)
            self.on_cycle(cycle)

    def _awaits(self) -> bool:
        """True if some agents have yet to report the jobs that ended without a controller."""
        return bool(self.agents.awaited) and self._present_s() < self._await_until_s

    def _present_s(self) -> float:
        """Seconds, without those for which this process stood still."""
        return self.leases.presence.at(clock.boottime_s())

    def _advance(self) -> None:
        state, now_s = self.state, self.now_s()
        for row in [row for row, at_s in state.backoff.items() if at_s <= now_s]:
            self.journal.note(RetryDue(now_s, row))
        for row, at_s in self._time_limits():
            if at_s <= now_s:
                self.journal.note(StopRequested(now_s, row, JobState.TIMEOUT))
        for index, row in overdue(state, now_s):
            about = {"job_id": state.spec[row].job_id, "attempt": state.attempt[row]}
            kill = {"type": "kill", **about, "why": DRAINED}
            self.record.outboxes.tell(state.nodes[index].name, kill)
        while state.unmeetable:
            row, why = next(iter(state.unmeetable.items()))
            self.journal.note(JobFinished(now_s, row, JobState.CANCELLED, None, why))
        if not self.room.is_tight:
            self._decide_if_due(now_s)
        commands = diff(state)
        if self.room.is_tight:  # running jobs may end or take their turns, nothing begins
            commands = [each for each in commands if not isinstance(each, Launch)]
        for command in commands:
            self.journal.note(CommandSent(now_s, command))
            self.journal.once_written.append(partial(self.agents.dispatch, command))
        for command in commands:
            self.telemetry.write_sharers(command.row, now_s)

    def _decide_if_due(self, now_s: float) -> None:
        state, retry_at_s = self.state, self._policy_retry_at_s
        woken = state.wake_at_s is not None and state.wake_at_s <= now_s
        if woken:
            for row in (*state.holding, *state.stored):
                adapts = state.spec[row].adapt is not None
                if row in state.active and (adapts or len(state.sizes(row)) > 1):
                    self.telemetry.write_progress(row, now_s)
        called = state.decision_needed and (
            self.journal.calls_at_once or self._paced_until_s <= now_s
        )
        if called or woken or (retry_at_s is not None and retry_at_s <= now_s):
            self._decide(now_s)
            self.journal.calls_at_once = False
            took_s = self.now_s() - now_s
            self._paced_until_s = now_s + took_s + min(PACE * took_s, MOST_PACE_S)

    def _decide(self, now_s: float) -> None:
        """Ask the policy. If it fails, a fallback decides, and the policy is asked again."""
        self._policy_retry_at_s = self._decision_error = None
        laps, before = [time.perf_counter()], self.state.fallback.by
        try:
            lap = partial(_note_time, laps)
            more = self.supply.most_nodes(), self._note_failure, self._limit
            event = take_decision(self.state, self._policy, now_s, lap, *more)
        except Exception as error:  # a policy is anybody's code, and what it asks for as well
            log.exception("no decision is possible; the last plan stays")
            self._decision_error = str(error)
            self.state.decision_needed = False
            self.state.wake_at_s = None
            self._policy_retry_at_s = now_s + POLICY_RETRY_S
            return
        self.journal.unwritten.append(event)
        if self._tells_end and event.fallback != before:
            if event.fallback:
                how = sentence(event.fallback)
                notice.error("policy %s fails: %s; see `rota ps`", self.policy_name, how)
            else:
                notice.warning("policy %s decides again", self.policy_name)
                self._tells_end = False
        began_s, viewed_s, decided_s = (*laps, laps[-1])[:3]
        changed, times = len(event.allocations), (began_s, viewed_s, decided_s, decided_s)
        self._cycle = Cycle(event.at_s, event.seq, changed, *times)
        self._log_warnings(event)

    @property
    def policy_error(self) -> str | None:
        """The policy's error if it failed at the last decision, else None."""
        fallback = self.state.fallback
        return self._decision_error or (fallback.error if fallback.by else None)

    def _note_failure(self, error: Exception) -> None:
        """Log a failure of the policy, and keep the decision's input."""
        state, text = self.state, str(error)[:MOST_CHARS]
        now_s, policy = self.now_s(), identity(self._policy)
        same = without_digits(text) == without_digits(state.fallback.error)
        goes_on, recent = bool(state.fallback.by), now_s - self._failure_told_s < FAILURE_TOLD_S
        if (goes_on and same) or (recent and (goes_on or same)):
            return  # the same again, or one of many
        self._failure_told_s, self._tells_end = now_s, True
        log.error("policy %s failed", policy, exc_info=error)
        file = self._failed_decisions.keep(state, self.policy_name, self._policy, now_s, error)
        self.journal.note(PolicyFailed(now_s, policy, text, file))

    def _log_warnings(self, event: DecisionTaken) -> None:
        """Log a policy's new warnings: policies are pure, and can't log."""
        told: dict[str, list[int]] = {}
        for row in event.notes.warnings if event.notes is not None else ():
            for since_s, warning in self.state.notes.warned.get(row, {}).values():
                if since_s >= event.at_s:
                    told.setdefault(warning, []).append(row)
        for warning, rows in told.items():
            log.warning("%s: %s", jobs_text(self.state.ids(rows)), warning)

    def new_policy(self) -> Policy:
        """Another policy object with the settings of the one in force, for decisions on copies."""
        return again(self._policy)

    def turns(self, row: int) -> Turns | None:
        """The jobs that take turns where the job lives, if the policy reports them."""
        if row not in self.state.active:
            return None
        try:
            return self._policy.turns(View(self.state, self.now_s(), self._policy), row)
        except BaseException:  # a policy is anybody's code
            log.exception("policy %s can't tell whose turn it is", identity(self._policy))
            return None

    def ahead(self, row: int) -> Ahead | None:
        """The jobs that come before a waiting one, if the policy reports them."""
        if row not in self.state.active:
            return None
        try:
            return self._policy.ahead(View(self.state, self.now_s(), self._policy), row)
        except BaseException:  # a policy is anybody's code
            log.exception("policy %s can't tell who comes first", identity(self._policy))
            return None

    def quota(self, row: int) -> int | None:
        """GPUs of the quota of the job's queue; None if the policy has no quotas, or can't tell."""
        try:
            return self._policy.quota(View(self.state, self.now_s(), self._policy), row)
        except BaseException:  # a policy is anybody's code
            log.exception("policy %s can't tell a job's quota", identity(self._policy))
            return None

    def queues(self) -> tuple[str, ...]:
        """The queues that have quotas, if these are all that have any; else none."""
        return self._policy.queues()

    def queue_weight(self, queue: str) -> float:
        """The share of a queue that has no quota, relative to the others' shares."""
        return self._policy.queue_weight(queue)

    def _time_limits(self) -> list[tuple[int, float]]:
        """(row, time) at which each running job with a limit will have run for that long."""
        state = self.state
        limits = []
        for row, limit_s in self.record.limits_s.items():
            since_s = state.since_s[row]
            if not state.is_open(row) or since_s < 0:
                continue
            # While an agent has yet to tell whether the job has run on, nobody knows how long.
            awaited = self.agents.awaited
            if not awaited or awaited.isdisjoint(self.agents.seats_of(row)):
                limits.append((row, since_s + limit_s - state.service_s[row]))
        return limits


def _near(one_s: float | None, other_s: float | None) -> bool:
    """True if two times, of which None is never, differ by less than clocks of one lease do."""
    if one_s is None or other_s is None:
        return one_s is other_s
    return abs(one_s - other_s) < MARGIN_S


def _note_time(laps: list[float]) -> None:
    laps.append(time.perf_counter())
