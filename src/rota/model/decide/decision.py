"""One decision: ask the policy, check its plan, and make it an event."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from traceback import walk_tb
from typing import Any, NoReturn

from rota.errors import PlanError, PolicyError
from rota.model.allocation import Allocation
from rota.model.decide.cpus import check_cpus, with_cpus
from rota.model.decide.device_memory import leave_memory
from rota.model.decide.fallback import MOST_FAILURES, retry_after_s, without_memory
from rota.model.decide.fill import check_fill, leave_room, with_fill, without_stage
from rota.model.decide.live_limits import confine_whole, fits_on_more_nodes, fits_once_open
from rota.model.decide.plain import check_wake, is_plain
from rota.model.events import DecisionTaken, new
from rota.model.fallback import WITHOUT_MARKS, WITHOUT_MEMORY
from rota.model.notes import MOST_CHARS, MOST_WARNINGS, Notes, fault_in
from rota.model.plan import CpuPlan, FillPlan, Plan
from rota.model.reason import CODES, Reason
from rota.model.state.state import ClusterState
from rota.model.view import View, identity
from rota.model.warning import is_news

Limit = Callable[[], AbstractContextManager[None]]  # what may end a policy's work on a decision


class Decider:
    """Takes one decision after another by one policy on one state, with one view of it.

    The policy is asked first, within a ``limit`` if there is one, then its stages. A policy knows
    nothing of background jobs: where only these call for a decision, it is not asked, and its last
    plan stays in force.
    """

    __slots__ = ("_fill", "_identity", "_limit", "_stage", "_state", "_view", "policy")

    def __init__(self, state: ClusterState, policy: Any, limit: Limit | None = None) -> None:
        self.policy = policy
        self._limit = limit
        self._identity = identity(policy)
        self._stage = policy.cpus
        self._fill = policy.fill
        self._state = state
        self._view = View(state, 0.0, policy)

    def decide(
        self,
        now_s: float,
        lap: Callable[[], None] | None = None,
        most_nodes: int = 0,
        failed: Callable[[Exception], None] | None = None,
    ) -> DecisionTaken:
        """Let the policy decide at ``now_s`` and apply its plan.

        ``lap`` is called once the view is ready, and again once the policy has decided. Jobs that
        need more nodes than there are, up to ``most_nodes``, are told to wait for them.

        If the policy fails on a live cluster, ``failed`` is called with the error, before anything
        has changed, and a :mod:`fallback <rota.model.decide.fallback>` decides. In a simulation the
        error is raised: PlanError if the plan breaks the contract, and PolicyError if the policy
        raises anything.
        """
        state, view = self._state, self._view
        if not view.renew(now_s):
            view = self._view = View(state, now_s, self.policy)
        if lap is not None:
            lap()
        if state.has_background_jobs and self._may_rest(now_s):
            return self._fill_alone(view)
        try:
            plan, told, fill_wake_at_s = self._decided(view, lap, most_nodes)
        except Exception as error:  # whatever the policy raised: see _blame
            if not state.is_live:
                raise
            if failed is not None:
                failed(error)
            return self._without_policy(error, now_s, most_nodes)
        event = self._applied(view, told, fill_wake_at_s)
        state.plan = plan
        return event

    def _without_policy(self, error: Exception, now_s: float, most_nodes: int) -> DecisionTaken:
        """A decision where the policy has failed: the first way that leads to a plan."""
        state = self._state
        rows = [row for row in getattr(error, "rows", ()) if row in state.active]
        ways = [(WITHOUT_MARKS, rows)] if rows else []
        if state.fallback.failures >= MOST_FAILURES:
            ways.append((WITHOUT_MEMORY, list(state.active)))
        for way, forgotten in ways:
            found = self._forgetting(forgotten, now_s, most_nodes, whole=way == WITHOUT_MEMORY)
            if found is not None:
                return self._applied(*found, way)
        other = Decider(state, self.policy.fallback())
        view, told = self._by_another(other, now_s, most_nodes)
        return self._applied(view, told, None, other.policy.name or other._identity)

    def _forgetting(
        self, rows: list[int], now_s: float, most_nodes: int, *, whole: bool
    ) -> tuple[View, Plan, float | None] | None:
        """The policy's plan if it remembers nothing of these jobs; None if it fails again."""
        try:
            with without_memory(self._state, rows, whole=whole):
                view = View(self._state, now_s, self.policy)
                _, told, fill_wake_at_s = self._decided(view, None, most_nodes)
        except Exception:  # the first error is the one that is told
            return None
        if not whole:
            told = told._replace(marks=dict.fromkeys(rows) | told.marks)
        return view, told, fill_wake_at_s

    def _by_another(self, other: "Decider", now_s: float, most_nodes: int) -> tuple[View, Plan]:
        """The plan of another policy, by default with what waits in order of arrival where it fits.

        Background jobs lose GPUs whose memory the others need. The policy's memory stays, and it is
        asked again after a while.
        """
        state = self._state
        with without_memory(state, (), whole=False):
            view = View(state, now_s, other.policy)
            plan, _, _ = other._decided(view, None, most_nodes, stages=False)
        added = leave_room(state, view, plan, FillPlan({}, {}))
        plan = with_fill(state, plan, added)
        plan = plan._replace(reasons=_blame_nodes(state, plan.reasons, most_nodes))
        wake_at_s = now_s + retry_after_s(state.fallback.failures)
        nothing: dict[str, Any] = {"marks": {}, "policy_mark": None, "notes": None}
        return view, plan._replace(wake_at_s=wake_at_s, **nothing)

    def _decided(
        self,
        view: View,
        lap: Callable[[], None] | None,
        most_nodes: int,
        *,
        stages: bool = True,
    ) -> tuple[Plan, Plan, float | None]:
        """The policy's plan, and that plan as it is told, with its stages' parts; both checked.

        Last comes the time at which the stage for background jobs wants to be asked again.
        """
        state, now_s = self._state, view.now_s
        plan = self._plan(view)
        if lap is not None:
            lap()
        try:
            allocations, reasons, marks, policy_mark, wake_at_s, _, cpus, _ = plan
        except (TypeError, ValueError):
            raise PlanError(f"the policy decided {plan!r:.200}, which is no Plan") from None
        if state.is_live or state.has_device_memory:
            ask_again = partial(self._ask_again, now_s)
            plan = leave_memory(state, self._on_live_nodes(plan, now_s), ask_again)
            allocations, reasons, marks, policy_mark, wake_at_s, _, cpus, _ = plan
        state.foreseen = free = view.free_after(plan) if allocations else None
        if allocations or reasons or marks or policy_mark is not None or wake_at_s is not None:
            check(state, plan, now_s, free is not None)
        told = plan if type(plan) is Plan else Plan(*plan)
        if not stages:
            return plan, told, None
        if self._stage is not None or cpus or state.target_cpus:
            told = self._with_cpus(view, told)
        if told.notes is not None:
            check_notes(state, told.notes)
        if (state.closed or state.unreachable or most_nodes) and reasons:
            told = told._replace(reasons=_blame_nodes(state, reasons, most_nodes))
        if not state.background:
            return plan, told, None
        return plan, *self._with_fill(view, told)

    def _may_rest(self, now_s: float) -> bool:
        """True if nothing has changed that concerns the policy."""
        state = self._state
        wake_at_s = state.policy_wake_at_s
        woken = wake_at_s is not None and wake_at_s <= now_s
        called = state.policy_needed or woken or bool(state.fallback.by)
        return not called and state.policy == self._identity

    def _fill_alone(self, view: View) -> DecisionTaken:
        """A decision about background jobs, which neither the policy nor its indexes notice."""
        state = self._state
        before, changed = state.plan, list(state.changed)
        told, fill_wake_at_s = view.unchanged(wake_at_s=state.policy_wake_at_s), None
        if state.background:
            told, fill_wake_at_s = self._with_fill(view, told)
        event = self._applied(view, told, fill_wake_at_s)
        state.plan = before
        state.changed.extend(changed)
        return event

    def _applied(
        self,
        view: View,
        told: Plan,
        fill_wake_at_s: float | None,
        fallback: str = "",
    ) -> DecisionTaken:
        """The decision of a plan, told with those of its notes that are new.

        The state has it afterwards.
        """
        state = self._state
        if told.notes is not None:
            told = told._replace(notes=news(state, told.notes))
        about = (view.now_s, state.decision_seq + 1, self._identity)
        event = new(DecisionTaken, (*about, *told, fill_wake_at_s, fallback))
        state.apply(event)
        return event

    def _with_fill(self, view: View, plan: Plan) -> tuple[Plan, float | None]:
        """The plan with background jobs, and when their stage wants to be asked again."""
        state = self._state
        added = without_stage(state)
        if self._fill is not None:
            try:
                added = self._fill.place(view, plan)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._blame(self._fill, error)
            check_fill(state, added, view.now_s)
            added = leave_room(state, view, plan, added)
        return with_fill(state, plan, added), added.wake_at_s

    def _ask_again(self, now_s: float) -> Plan:
        """The policy's plan on the present state."""
        return self._on_live_nodes(self._plan(View(self._state, now_s, self.policy)), now_s)

    def _plan(self, view: View) -> Plan:
        try:
            if self._limit is None:
                plan: Plan = self.policy.decide(view)
            else:
                with self._limit():
                    plan = self.policy.decide(view)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, too
            self._blame(self.policy, error)
        return plan

    def _with_cpus(self, view: View, plan: Plan) -> Plan:
        """The plan with what the policy's stage of CPU cores adds, checked.

        The policy's plan itself stays. Without a stage, cores given under another policy are
        anybody's again.
        """
        state = self._state
        if self._stage is not None:
            try:
                added: CpuPlan = self._stage.assign(view, plan)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._blame(self._stage, error)
            plan = with_cpus(state, plan, added, view.now_s)
        elif plan.cpus is None and state.policy != self._identity:
            plan = plan._replace(cpus=dict.fromkeys(state.target_cpus))
        check_cpus(state, plan)
        return plan

    def _blame(self, asked: object, error: BaseException) -> NoReturn:
        where = _line_of(type(asked), error)
        told = f"policy {self._identity}: {type(error).__name__}: {error} ({where})"
        if isinstance(error, PlanError):
            raise PlanError(told, error.rows) from error
        raise PolicyError(told) from error

    def _on_live_nodes(self, plan: Any, now_s: float) -> Plan:
        plan = plan if type(plan) is Plan else Plan(*plan)
        return confine_whole(
            self._state, plan, lambda: self._plan(View(self._state, now_s, self.policy))
        )


def _line_of(policy: type, error: BaseException) -> str:
    """``FILE, line N, in FUNCTION`` of an error in a policy.

    It is the innermost line of the policy's own module, or the innermost line of all.
    """
    frames = list(walk_tb(error.__traceback__))
    own = [each for each in frames if each[0].f_globals.get("__name__") == policy.__module__]
    frame, line = (own or frames)[-1]
    return f"{frame.f_code.co_filename}, line {line}, in {frame.f_code.co_name}"


def _blame_nodes(state: ClusterState, reasons: dict[int, int], most_nodes: int) -> dict[int, int]:
    """The reasons, with NODE_CLOSED, NODE_UNHEALTHY or WAIT_RESOURCES where one applies.

    The first two apply to jobs that would fit if no node were cordoned, drained or away; the last
    one to those that would fit on further nodes, ``most_nodes`` in all.
    """
    told = {}
    for row, code in reasons.items():
        why = _lack(state, row, most_nodes) if code == Reason.NEVER_FITS else Reason(code)
        if why == code or state.reason[row] != why:
            told[row] = int(why)
    return told


def _lack(state: ClusterState, row: int, most_nodes: int) -> Reason:
    """The reason of a job for which the open nodes are too few."""
    if (state.closed or state.unreachable) and fits_once_open(state, row):
        return Reason.NODE_CLOSED if state.closed else Reason.NODE_UNHEALTHY
    more = fits_on_more_nodes(state, row, most_nodes)
    return Reason.WAIT_RESOURCES if more else Reason.NEVER_FITS


def take_decision(
    state: ClusterState,
    policy: Any,
    now_s: float,
    lap: Callable[[], None] | None = None,
    most_nodes: int = 0,
    failed: Callable[[Exception], None] | None = None,
    limit: Limit | None = None,
) -> DecisionTaken:
    """Let ``policy`` decide on ``state`` at ``now_s`` once; see :class:`Decider`."""
    return Decider(state, policy, limit).decide(now_s, lap, most_nodes, failed)


def check(state: ClusterState, plan: Plan, now_s: float, tried: bool = False) -> None:
    """Check a plan against the contract. Raises PlanError that names the breach.

    ``tried`` is True if a what-if at this instant has checked the allocations.
    """
    allocations, reasons, marks, policy_mark, wake_at_s = plan[:5]
    check_wake(wake_at_s, now_s)
    active = state.active
    for row in allocations:
        if row not in active:
            _refuse_row(row)
    for row, code in reasons.items():
        if row not in active:
            _refuse_row(row)
        if code not in CODES:
            raise PlanError(
                f"the plan gives job {state.spec[row].job_id} the reason {code!r}", [row]
            )
    for row, mark in marks.items():
        if row not in active:
            _refuse_row(row)
        if not is_plain(mark):
            _refuse_mark(mark, [row])
    if policy_mark is not None and not is_plain(policy_mark):
        _refuse_mark(policy_mark)
    if allocations and not tried:
        _check_allocations(state, allocations)


def check_notes(state: ClusterState, notes: Notes) -> None:
    """Raise PlanError saying what is wrong with the notes of a policy and its stage of cores."""
    if fault := fault_in(notes):
        raise PlanError(f"of the plan, {fault}")
    for rows in (notes.why, notes.warnings, notes.packs):
        for row in rows:
            if row not in state.active:
                _refuse_row(row)
    for row in (*notes.probes, *notes.why_cpus):  # of cores, and so of jobs that stay as well
        if row not in state.active and row not in state.staying:
            _refuse_row(row)
    if notes.reserved is not None and notes.reserved.row not in state.active:
        _refuse_row(notes.reserved.row)


def news(state: ClusterState, notes: Notes) -> Notes | None:
    """The notes without what earlier ones have said; None if nothing is left.

    Warnings that differ only in their figures are not new: figures may differ at every decision.
    """
    told = state.notes
    why, why_cpus = _new_of(notes.why, told.why), _new_of(notes.why_cpus, told.why_cpus)
    warnings = {
        row: tuple(sentence[:MOST_CHARS] for sentence in sentences[:MOST_WARNINGS])
        for row, sentences in notes.warnings.items()
    }
    left = Notes(
        why,
        {
            row: sentences
            for row, sentences in warnings.items()
            if is_news(sentences, told.warnings.get(row, ()))
        },
        {row: probes for row, probes in notes.probes.items() if probes},
        {row: pack for row, pack in notes.packs.items() if told.packs.get(row) != pack},
        notes.nodes,
        notes.reserved,
        why_cpus,
        notes.undone,
    )
    return None if left == Notes(nodes=told.nodes, reserved=told.reserved) else left


def _new_of(sentences: dict[int, str], told: dict[int, str]) -> dict[int, str]:
    shortened = ((row, sentence[:MOST_CHARS]) for row, sentence in sentences.items())
    return {row: sentence for row, sentence in shortened if told.get(row) != sentence}


def _refuse_row(row: int) -> NoReturn:
    raise PlanError(f"the plan speaks of row {row}, which is not an active job")


def _refuse_mark(mark: Any, rows: Iterable[int] = ()) -> NoReturn:
    raise PlanError(f"the plan wants to remember {mark!r}, which JSON can't carry exactly", rows)


def _check_allocations(state: ClusterState, allocations: dict[int, Allocation | None]) -> None:
    free = state.assumed.copy()
    target, home, num_gpus = state.target, state.home, state.num_gpus
    for row in allocations:
        old = target[row]
        if old is not None:
            free.give(old)
    for row, allocation in allocations.items():
        if allocation is None:
            continue
        if not isinstance(allocation, Allocation):
            raise PlanError(
                f"the plan gives job {state.spec[row].job_id} {allocation!r:.100}, no Allocation",
                [row],
            )
        if allocation.background:
            raise PlanError(
                f"the plan gives job {state.spec[row].job_id} GPUs of the layer of background jobs",
                [row],
            )
        if allocation.num_gpus != num_gpus[row] and allocation.num_gpus not in state.sizes(row):
            raise PlanError(
                f"the plan gives job {state.spec[row].job_id} {allocation.num_gpus} GPUs; "
                f"it is a gang of {state.num_gpus[row]}",
                [row],
            )
        before = home[row]
        if before is not None and not state.movable[row] and allocation.parts != before.parts:
            raise PlanError(
                f"the plan moves job {state.spec[row].job_id}, which can go on only on {home[row]}",
                [row],
            )
        for node, _ in allocation.parts:
            if not 0 <= node < len(free.masks):
                raise PlanError(
                    f"the plan gives job {state.spec[row].job_id} GPUs of node {node}, "
                    "which is not there",
                    [row],
                )
        if not free.take(allocation):
            names = ", ".join(state.nodes[node].name for node in allocation.nodes())
            raise PlanError(
                f"the plan gives job {state.spec[row].job_id} GPUs of {names} that are taken",
                [row],
            )
