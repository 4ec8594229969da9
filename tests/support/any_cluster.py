"""Random stories of a live cluster: users, machines and programs do what a seed draws.

Commands are answered late, out of order, with failures, or by the loss of the attempt. Nothing
runs: the ledger, a policy and the commands that follow from its plans are all there is.
"""

import random
from collections.abc import Callable
from typing import Any, NoReturn

from rota.model.commands import (
    Launch,
    Migrate,
    Park,
    Resize,
    Resume,
    Retune,
    SetCpus,
    Stop,
    Suspend,
)
from rota.model.decide.decision import Decider
from rota.model.decide.diff import diff
from rota.model.events import (
    AttemptLost,
    BatchRefused,
    BurstPlanned,
    CommandFailed,
    CommandSent,
    CpusSet,
    DecisionTaken,
    JobFinished,
    JobLaunched,
    JobParked,
    JobResized,
    JobResumed,
    JobRetuned,
    JobSubmitted,
    JobSuspended,
    MetricReported,
    NodeAddressChanged,
    NodeClosed,
    NodeCpusChanged,
    NodeDeadlineChanged,
    NodeJoined,
    NodeLost,
    NodeOpened,
    NodeReachable,
    NodeUnreachable,
    ResumeRequested,
    RetryDue,
    StopRequested,
    SuspendRequested,
    WorkerRegistered,
    WorkerReported,
)
from rota.model.job import (
    BACKGROUND,
    FLOW,
    Adapt,
    Dependency,
    Elastic,
    JobSpec,
    JobState,
    Program,
    Retries,
    Share,
    Suspension,
)
from rota.model.state.state import ClusterState
from rota.model.sweep import Report, Sweep, SweepTrial
from rota.policy.base import Policy
from rota.policy.fill.settings import fill_stage
from rota.policy.placement.nodesets import first_gpus
from rota.policy.registry import again, create, settings

CLUSTERS = [(4,), (2, 2), (4, 4), (1, 2, 4), (8,), (2, 2, 2), (8, 4)]
RANGES = [(1, 2), (1, 2, 4), (2, 4), (1, 2, 3, 4), (3, 4, 6), (5, 6), (2, 8), (1, 8)]
KINDS = ("gang", "gang", "elastic", "elastic", "adapts", "trial", "behind")
WAYS = list(Suspension)[1:]
ENDED = int(JobState.SUCCEEDED)
TRAINS = ("python lm.py", "python gan.py", "./other")
ADAPTATION = {
    "initial": 12,
    "most": 96,
    "least_per_gpu": 1,
    "most_per_gpu": 48,
    "size": 12,
    "accumulation": 0,
    "scaled_steps": 9.0,
    "epoch_samples": 1200.0,
}
# Settings beside which policies are tried as well, each where the policy takes it.
VARIANTS: list[dict[str, str]] = [
    {},
    {},
    {"cpus": "sad", "cpu_period_s": "20"},
    {"cpus": "equal"},
    {"fair_share": "user", "half_life_s": "200", "fair_period_s": "50"},
    {"fair_share": "vc", "shares": "x=3"},
    {"quotas": "equal"},
    {"quotas": "x=2;*=1", "borrow": "no"},
    {"placement": "spread"},
    {"placement": "skew-strict", "min_run_time_s": "30"},
    {"pack_gangs": "on", "quantum_s": "20", "idle_s": "10", "stay_s": "30", "trial_s": "10"},
    {"quantum_s": "15", "idle_s": "5", "limit": "2", "affinity": "strict"},
    {"scaler": "probe", "look_s": "1"},
    {"objective": "pollux", "interval_s": "10"},
    {"objective": "length", "fits": "job", "interference": "ignore"},
    {"nodes": "1,4", "interval_s": "20", "shrink_after_s": "10"},
    {"thresholds": "50,400", "promote_knob": "2"},
]


def policy_of(name: str, chance: random.Random) -> Policy:
    """The policy with settings from a seed, among which are those that a test would want."""
    known = settings(name)
    return create(name, chance.choice([each for each in VARIANTS if known.keys() >= each.keys()]))


class AnyCluster:
    """One story. :meth:`go_on` takes it to its next decision.

    ``decisions`` counts them; the state is validated after each. A policy that fails ends the story
    with its error, unless ``failed`` takes that.
    """

    def __init__(
        self, policy: Policy, seed: int, failed: Callable[[Exception], None] | None = None
    ) -> None:
        self.chance = random.Random(seed)
        self.policy = policy
        self.state = ClusterState()
        self.state.log = []
        self.now_s = 0.0
        self.decisions = 0
        self._failed = failed or _raise
        self._decider = Decider(self.state, policy)
        # Some stories are of few jobs and calm, so that jobs grow; others are crowded.
        self._most_open = self.chance.choice((2, 3, 5, 14))
        self._happenings = self.chance.choice(((0, 0, 0, 1), (0, 1, 1, 2), (1, 1, 2, 4)))
        self._what = self.chance.choice((QUIET, TROUBLES, QUIET + TROUBLES))
        self._kinds = self.chance.choice((KINDS, KINDS, ("elastic",), ("elastic", "behind")))
        policy.fill = fill_stage({"fill_trial_s": 5.0, "fill_pause_s": 20.0})
        typed = self.chance.random() < 0.3
        memory = self.chance.random() < 0.3
        reach = self.chance.random() < 0.7
        self._nodes = [
            NodeJoined(
                0.0,
                f"n{number}",
                gpus,
                "cuda" if memory else "cpu",
                "ab"[number % 2] if typed else "",
                memory_gb=16.0 if memory else 0.0,
                millicores=1000 * gpus,
                host_memory_gb=64.0,
                reach=f"10.0.0.{number}" if reach else "",
            )
            for number, gpus in enumerate(self.chance.choice(CLUSTERS))
        ]
        for node in self._nodes:
            self._apply(node)

    # -- the story -----------------------------------------------------------------------------

    def go_on(self) -> DecisionTaken:
        """Let something happen until a decision is due, and take it."""
        state = self.state
        while True:
            self._pass_time()
            happenings = self.chance.choice(self._happenings)
            for _ in range(happenings):
                self.chance.choice(self._what)(self)
            self._answer()
            self._send()
            due = state.wake_at_s is not None and state.wake_at_s <= self.now_s
            if state.decision_needed or due:
                break
        event = self._decider.decide(self.now_s, failed=self._failed)
        self.decisions += 1
        state.validate()
        self._send()
        return event

    def _pass_time(self) -> None:
        step_s = self.chance.choice((0.0, 0.5, 1.0, 3.0, 10.0, 40.0))
        wake_at_s = self.state.wake_at_s
        if wake_at_s is not None and self.chance.random() < 0.5:
            step_s = max(0.0, min(step_s, wake_at_s - self.now_s))
        self.now_s += step_s
        state = self.state
        for row in [row for row, at_s in state.backoff.items() if at_s <= self.now_s]:
            self._apply(RetryDue(self.now_s, row))
        while state.unmeetable:
            row, why = next(iter(state.unmeetable.items()))
            self._apply(JobFinished(self.now_s, row, JobState.CANCELLED, None, why))

    def _apply(self, event: Any) -> None:
        self.state.apply(event)

    def _send(self) -> None:
        for command in diff(self.state):
            self._check(command)
            self._apply(CommandSent(self.now_s, command))

    def _check(self, command: Any) -> None:
        """A suspended job goes on only where its state can be."""
        state, row = self.state, command.row
        home = state.home[row]
        if home is None or not isinstance(command, Resume | Migrate | Park):
            return
        place, what = command.allocation, f"{command} from {home}"
        if max(len(home.parts), len(place.parts)) > 1:
            assert home.parts == place.parts, f"a gang leaves its nodes: {what}"
        assert state.portable[row] or home.nodes() == place.nodes(), f"it can't move: {what}"
        assert state.movable[row] or home.parts == place.parts, f"it can't leave its GPUs: {what}"

    def _answer(self) -> None:
        for row, command in enumerate(self.state.outstanding):
            if command is None or self.chance.random() < 0.4:
                continue
            if self.chance.random() < 0.1 and type(command) is not Stop:
                retry_at_s = self.now_s + self.chance.choice((0.0, 2.0, 20.0))
                failed = CommandFailed(self.now_s, row, command.command_id, "no luck", retry_at_s)
                self._apply(failed)
            else:
                ANSWERS[type(command)](self, row, command)

    # -- answers -------------------------------------------------------------------------------

    def _launched(self, row: int, command: Launch) -> None:
        self._apply(JobLaunched(self.now_s, row, command.attempt))
        if self.chance.random() < 0.8:
            self._registers(row)

    def _resumed(self, row: int, command: Any) -> None:
        self._apply(JobResumed(self.now_s, row))

    def _suspended(self, row: int, command: Suspend) -> None:
        self._apply(JobSuspended(self.now_s, row, self.now_s))

    def _parked(self, row: int, command: Park) -> None:
        self._apply(JobParked(self.now_s, row))

    def _resized(self, row: int, command: Resize) -> None:
        if self.state.state[row] == JobState.RUNNING:
            self._apply(JobResized(self.now_s, row, command.allocation, 1.0, 0.1))

    def _retuned(self, row: int, command: Retune) -> None:
        if self.state.state[row] != JobState.RUNNING:
            return
        if command.batch is not None and self.chance.random() < 0.3:
            of_a_gpu = self.chance.random() < 0.5
            self._apply(BatchRefused(self.now_s, row, command.batch, "too large", of_a_gpu))
        else:
            self._apply(JobRetuned(self.now_s, row, command.batch))

    def _cpus_set(self, row: int, command: SetCpus) -> None:
        if self.state.state[row] == JobState.RUNNING:
            self._apply(CpusSet(self.now_s, row, command.millicores))

    def _stopped(self, row: int, command: Stop) -> None:
        self._apply(JobFinished(self.now_s, row, JobState.CANCELLED, None, ""))

    # -- what may happen -----------------------------------------------------------------------

    def _submit(self) -> None:
        state = self.state
        open_jobs = sum(1 for each in state.state if each < ENDED)
        if open_jobs < self._most_open:
            for _ in range(self.chance.choice((1, 1, 2, 3))):
                self._apply(JobSubmitted(self.now_s, self._job()))

    def _job(self) -> JobSpec:
        chance = self.chance
        number = len(self.state.spec) + 1
        spec = JobSpec(
            str(number),
            chance.choice((1, 1, 1, 2, 2, 3, 4, 8)),
            self.now_s,
            priority=chance.choice((10, 50, 50, 50, 100)),
            user=chance.choice("ab"),
            vc=chance.choice("xyz"),
            gpu_util=chance.choice((None, 0.2, 0.5, 0.95)),
            memory_gb=chance.choice((None, 2.0, 9.0)),
            program=Program(chance.choice(TRAINS), "/w", processes=self._processes()),
        )
        if chance.random() < 0.1:
            spec = spec._replace(retries=Retries(2))
        if chance.random() < 0.1:
            spec = spec._replace(gpu_types=(chance.choice("ab"),))
        if chance.random() < 0.1:
            spec = spec._replace(cpus_per_gpu=(1, chance.choice((1, 2))))
        if chance.random() < 0.1 and number > 1:
            awaited = Dependency(
                str(chance.randrange(1, number)), chance.choice(("ended", "succeeded"))
            )
            spec = spec._replace(depends_on=(awaited,))
        kind = chance.choice(self._kinds)
        if kind in ("elastic", "adapts") and not spec.is_flow:
            sizes = chance.choice(RANGES)
            elastic = Elastic(sizes, by_restart=chance.random() < 0.2)
            spec = spec._replace(num_gpus=sizes[0], elastic=elastic)
        if kind == "adapts":
            spec = spec._replace(adapt=Adapt(96, 48), batch=12, epochs=chance.choice((None, 5.0)))
        if kind == "trial":
            name = f"sweep{chance.randrange(2)}"
            sweep = Sweep(name, "loss", maximize=False, reports=chance.choice((None, 20)))
            spec = spec._replace(trial=SweepTrial(sweep, number, (("lr", number / 10),)))
        if kind == "behind" and not spec.is_flow:
            spec = spec._replace(share=Share(BACKGROUND), num_gpus=chance.choice((1, 1, 2)))
        return spec

    def _processes(self) -> str:
        return self.chance.choice(("gpu", "gpu", "gpu", "node", FLOW))

    def _registers(self, row: int) -> None:
        chance, spec = self.chance, self.state.spec[row]
        way = chance.choice(WAYS)
        movable = way != Suspension.PROCESS or chance.random() < 0.3
        resizes = spec.elastic is not None and not spec.elastic.by_restart and chance.random() < 0.8
        held = self.state.held[row]
        least = 0 if held is None else held.num_gpus
        most_ranks = chance.choice((0, 0, least, least + 1, least + 2)) if resizes else 0
        portable = movable and chance.random() < 0.7
        self._apply(WorkerRegistered(self.now_s, row, way, movable, resizes, most_ranks, portable))

    def _one(self, wanted: Callable[[int], bool]) -> int | None:
        rows = [row for row in range(len(self.state.spec)) if wanted(row)]
        return self.chance.choice(rows) if rows else None

    def _is_running(self, row: int) -> bool:
        return self.state.state[row] == JobState.RUNNING

    def _report(self) -> None:
        for row in filter(self._is_running, range(len(self.state.spec))):
            self._report_of(row)

    def _report_of(self, row: int) -> None:
        state, chance, spec = self.state, self.chance, self.state.spec[row]
        step = (state.progress[row] or {"step": 0})["step"] + chance.choice((1, 10, 50))
        told: dict[str, Any] = {"at_s": self.now_s, "step": step, "samples": 12 * step, "batch": 12}
        told["metrics"] = {}
        if chance.random() < 0.5:
            told["device_util"] = chance.choice((0.1, 0.4, 1.0))
        if chance.random() < 0.3:
            told["total"] = step + chance.choice((0, 100, 10000))
        if spec.adapt is not None and (held := state.held[row]) is not None:
            gradient_s = chance.choice((0.05, 0.1, 0.19))
            more = {
                "steps": 10,
                "step_s": 0.2 * chance.random() + gradient_s,
                "gradient_s": gradient_s,
                "per_gpu": chance.choice((1, 4, 12, 24)),
                "gpus": held.num_gpus,
                "sqr": chance.random(),
                "var": 10 * chance.random(),
            }
            told["adaptation"] = ADAPTATION | more
        self._apply(WorkerReported(self.now_s, row, told))
        if spec.trial is not None and chance.random() < 0.7:
            value = chance.choice((chance.random(), chance.random(), None))
            self._apply(MetricReported(self.now_s, row, (Report(step, self.now_s, value),)))

    def _plans_by_layer(self) -> None:
        row = self._one(
            lambda row: self._is_running(row) and self.state.spec[row].elastic is not None
        )
        if row is not None and (held := self.state.held[row]) is not None:
            step_s = tuple(1.0 / ranks for ranks in range(1, 9))
            self._apply(BurstPlanned(self.now_s, row, 32, step_s, (0.1,) * held.num_gpus))

    def _register(self) -> None:
        if (row := self._one(self._is_running)) is not None:
            self._registers(row)

    def _finish(self) -> None:
        if (row := self._one(self._is_running)) is not None:
            outcome = self.chance.choice((JobState.SUCCEEDED, JobState.SUCCEEDED, JobState.FAILED))
            self._apply(JobFinished(self.now_s, row, outcome, 0, ""))

    def _lose(self) -> None:
        row = self._one(self.state.has_processes)
        if row is None or self.state.state[row] >= ENDED:
            return
        retry_at_s = self.now_s + 5.0 if self.state.spec[row].retries is not None else None
        attempt = self.state.attempt[row]
        lost = AttemptLost(self.now_s, row, attempt, "gone", 0.0, retry_at_s=retry_at_s)
        if attempt:
            self._apply(lost)

    def _lose_a_rank(self) -> None:
        """An elastic job goes on without one of its ranks, whatever is on its way."""
        state = self.state
        row = self._one(
            lambda row: (
                self._is_running(row) and state.resizable[row] and state.outstanding[row] is None
            )
        )
        if row is None or (held := state.held[row]) is None or held.shared:
            return
        smaller = [size for size in state.sizes(row) if size < held.num_gpus]
        if smaller:
            less = first_gpus(held, smaller[-1])
            self._apply(JobResized(self.now_s, row, less, 1.0, 0.1, "a rank was lost", 1))

    def _suspend(self) -> None:
        row = self._one(lambda row: self.state.state[row] < ENDED and self._is_open(row))
        if row is not None:
            self._apply(SuspendRequested(self.now_s, row, by_itself=self.state.spec[row].is_flow))

    def _resume(self) -> None:
        row = self._one(lambda row: row in self.state.held_back and self._is_open(row))
        if row is not None:
            self._apply(ResumeRequested(self.now_s, row))

    def _cancel(self) -> None:
        row = self._one(lambda row: self.state.state[row] < ENDED)
        if row is not None and self.chance.random() < 0.5:
            self._apply(StopRequested(self.now_s, row))

    def _is_open(self, row: int) -> bool:
        return self.state.state[row] != JobState.STOPPING

    def _meddle_with_nodes(self) -> None:
        state, chance = self.state, self.chance
        number = chance.randrange(len(self._nodes))
        name, node, now_s = self._nodes[number].name, state.nodes[number], self.now_s
        if not node.alive:
            self._apply(self._nodes[number]._replace(at_s=now_s))
        elif number in state.unreachable:
            self._apply(
                NodeReachable(now_s, name) if chance.random() < 0.6 else NodeLost(now_s, name)
            )
        elif number in state.closed:
            self._apply(NodeOpened(now_s, name))
        else:
            more: list[Any] = [
                NodeClosed(now_s, name, drains=chance.random() < 0.6, by_s=now_s + 50.0),
                NodeUnreachable(now_s, name, now_s + 30.0),
                NodeLost(now_s, name),
                NodeAddressChanged(now_s, name, "", chance.choice(("", "10.0.0.1"))),
                NodeCpusChanged(now_s, name, 1000 * chance.randrange(1, 9)),
                NodeDeadlineChanged(
                    now_s, name, chance.choice((None, now_s + 30.0, now_s + 500.0))
                ),
            ]
            self._apply(chance.choice(more))

    def _forget(self) -> None:
        """A controller starts anew: the policy has lost its indexes."""
        self.state.plan = None
        if self.chance.random() < 0.5:
            fill, self.policy = self.policy.fill, again(self.policy)
            self.policy.fill = fill
            self._decider = Decider(self.state, self.policy)


QUIET: list[Callable[[AnyCluster], None]] = [
    *[AnyCluster._submit] * 5,
    *[AnyCluster._report] * 3,
    *[AnyCluster._finish] * 2,
    AnyCluster._plans_by_layer,
    AnyCluster._cancel,
]
TROUBLES: list[Callable[[AnyCluster], None]] = [
    *[AnyCluster._submit] * 5,
    *[AnyCluster._report] * 3,
    AnyCluster._register,
    AnyCluster._lose,
    AnyCluster._lose_a_rank,
    AnyCluster._suspend,
    *[AnyCluster._resume] * 2,
    AnyCluster._cancel,
    *[AnyCluster._meddle_with_nodes] * 2,
    AnyCluster._forget,
]
ANSWERS: dict[type, Callable[[AnyCluster, int, Any], None]] = {
    Launch: AnyCluster._launched,
    Resume: AnyCluster._resumed,
    Migrate: AnyCluster._resumed,
    Suspend: AnyCluster._suspended,
    Park: AnyCluster._parked,
    Resize: AnyCluster._resized,
    Retune: AnyCluster._retuned,
    SetCpus: AnyCluster._cpus_set,
    Stop: AnyCluster._stopped,
}


def _raise(error: Exception) -> NoReturn:
    raise error
