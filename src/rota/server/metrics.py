"""The cluster in numbers, as ``GET /metrics`` tells them; ``exposition`` writes them down.

Counters of what is in the event log go on where they were when a controller starts again. No label
names a job: what labels name is finite, or cut off where it says so.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rota import __version__
from rota.live.controller.counts import Counts, Labels, ProcessCounts
from rota.model.cluster import Node
from rota.model.job import JobState
from rota.model.reason import Reason
from rota.model.state.state import ClusterState
from rota.report.gauges import NOBODY, Standing, gauges, queue_rows, standing
from rota.store.deliveries import TRIED

MOST_NODES = 1000  # that have series of their own: those that joined first

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
_WAITING = frozenset(map(int, (JobState.PENDING, JobState.HELD, JobState.SUSPENDED)))
_RUNNING = int(JobState.RUNNING)


class Described(NamedTuple):
    """A metric: its type, its labels, and its meaning. ``restarts``: a controller begins at 0."""

    kind: str
    labels: Labels
    meaning: str
    restarts: bool = False


METRICS: dict[str, Described] = {
    "rota_build_info": Described(GAUGE, ("version",), "1, with the version of the controller."),
    "rota_jobs_submitted_total": Described(COUNTER, ("queue",), "Jobs that were accepted."),
    "rota_jobs_ended_total": Described(
        COUNTER, ("queue", "state"), "Jobs that have ended, by the state they are in."
    ),
    "rota_pending_jobs": Described(
        GAUGE, ("queue", "reason"), "Jobs that hold no GPUs and have not ended, by reason."
    ),
    "rota_running_jobs": Described(GAUGE, ("queue",), "Jobs that run."),
    "rota_queue_wait_seconds": Described(
        HISTOGRAM, ("queue",), "From a job's submission to its first start."
    ),
    "rota_job_completion_seconds": Described(
        HISTOGRAM, ("queue",), "From submission to end of jobs that succeeded or failed."
    ),
    "rota_decision_cycle_seconds": Described(
        HISTOGRAM, ("policy",), "A decision, until what follows is written down.", True
    ),
    "rota_decisions_total": Described(
        COUNTER, ("kind",), "Decisions: changed if any job was given or lost GPUs."
    ),
    "rota_policy_failing": Described(GAUGE, (), "1 if the policy failed when it was last asked."),
    "rota_policy_fallback_decisions_total": Described(
        COUNTER, ("fallback",), "Decisions where the policy failed, by the fallback that took them."
    ),
    "rota_preemptions_total": Described(
        COUNTER, ("queue", "reason"), "GPUs taken from a job that held them, by the policy."
    ),
    "rota_lost_work_gpu_seconds_total": Described(
        COUNTER, (), "Work since checkpoints that lost attempts had done, times their GPUs."
    ),
    "rota_attempts_lost_total": Described(
        COUNTER, (), "Attempts that were lost, or failed and are tried again."
    ),
    "rota_launches_total": Described(
        COUNTER, ("result",), "Launches: started, failed, or cut_off by something else."
    ),
    "rota_launch_seconds": Described(HISTOGRAM, (), "From a launch to running processes."),
    "rota_suspend_seconds": Described(HISTOGRAM, (), "From a suspension's command to free GPUs."),
    "rota_resume_seconds": Described(
        HISTOGRAM, (), "From a resume's or move's command to running."
    ),
    "rota_migrations_total": Described(
        COUNTER, ("result",), "Moves to another node: moved, failed, or cut_off."
    ),
    "rota_resizes_total": Described(
        COUNTER, ("direction",), "Changes of a running job's GPUs: grown, shrunk, same_size."
    ),
    "rota_packed_gpus": Described(GAUGE, (), "GPUs that more than one foreground job holds."),
    "rota_pack_slowdown_ratio": Described(
        HISTOGRAM, (), "Time of a foreground job's steps beside a background job, over alone."
    ),
    "rota_gpus": Described(GAUGE, (), "GPUs of the nodes that are there."),
    "rota_gpu_allocated_ratio": Described(GAUGE, (), "Part of these that foreground jobs hold."),
    "rota_fragmentation_ratio": Described(
        GAUGE, (), "Part of the free GPUs that no waiting job can use; untold if none waits."
    ),
    "rota_queue_share": Described(GAUGE, ("queue",), "Part of the GPUs that a queue's jobs hold."),
    "rota_queue_fair_share": Described(
        GAUGE,
        ("queue",),
        "Part of the GPUs that is a queue's: its quota, else the queue's part of all queues' "
        "shares, equal by default.",
    ),
    "rota_goodput_ratio": Described(
        GAUGE,
        ("queue",),
        "Part of the GPU time of a queue's jobs that trained: neither lost nor spent on starts, "
        "suspensions and moves; of jobs that have not ended.",
    ),
    "rota_nodes": Described(GAUGE, ("state",), "Nodes: connected, silent, or lost."),
    "rota_nodes_lost_total": Described(
        COUNTER, (), "Nodes that were lost, other than those given back."
    ),
    "rota_agent_heartbeat_age_seconds": Described(
        GAUGE, ("node",), "Since the agent of a node that is there was last heard."
    ),
    "rota_node_gpus": Described(GAUGE, ("node", "gpu_type"), "GPUs or slots of a node."),
    "rota_node_cores": Described(GAUGE, ("node",), "CPU cores that jobs may use of a node."),
    "rota_node_cores_given": Described(GAUGE, ("node",), "CPU cores that jobs were given there."),
    "rota_node_cores_busy": Described(GAUGE, ("node",), "CPU cores busy on the node's machine."),
    "rota_node_memory_bytes": Described(GAUGE, ("node",), "Memory of the node's machine."),
    "rota_node_memory_used_bytes": Described(GAUGE, ("node",), "Memory of it that is in use."),
    "rota_gpu_busy_ratio": Described(
        GAUGE, ("node", "gpu"), "Part of the last second in which the GPU computed."
    ),
    "rota_gpu_memory_used_bytes": Described(
        GAUGE, ("node", "gpu"), "Memory of the GPU that processes hold."
    ),
    "rota_reconcile_conflicts_total": Described(
        COUNTER, (), "Attempts that an agent had and should not have: they were ended.", True
    ),
    "rota_db_transaction_seconds": Described(
        HISTOGRAM, (), "A write to the event log, until it is on disk.", True
    ),
    "rota_deliveries_total": Described(
        COUNTER,
        ("result",),
        "Tries to tell hooks of events: delivered, failed and to be repeated, or given_up.",
        True,
    ),
    "rota_disk_full": Described(GAUGE, (), "1 if the state folder's disk has too little room."),
    "process_virtual_memory_bytes": Described(GAUGE, (), "Virtual memory size in bytes."),
    "process_resident_memory_bytes": Described(GAUGE, (), "Resident memory size in bytes."),
    "process_start_time_seconds": Described(
        GAUGE, (), "Start time of the process since unix epoch in seconds."
    ),
    "process_cpu_seconds_total": Described(
        COUNTER, (), "Total user and system CPU time spent in seconds.", True
    ),
    "process_open_fds": Described(GAUGE, (), "Number of open file descriptors."),
    "process_max_fds": Described(GAUGE, (), "Maximum number of open file descriptors."),
}


class Snapshot(NamedTuple):
    """All that a scrape tells, copied from the controller, so that it is told beside the loop."""

    counts: Counts
    process: ProcessCounts
    policy: str
    is_failing: bool
    is_full: bool
    gpus: tuple[int, int, int]  # in all, free, packed
    stands: Standing
    quotas: dict[str, int | None]  # GPUs, by queue
    weights: dict[str, float]  # shares, by queue
    worked: dict[str, tuple[float, float]]  # GPU seconds that trained, and all, by queue
    deliveries: dict[str, int]  # tries by result
    jobs: tuple[list[int], Any, Any, list[Any]]  # rows that have not ended; states, reasons, specs
    nodes: list[tuple[Node, int]]  # with the thousandths of cores that jobs were given there
    connected: frozenset[str]
    ages_s: dict[str, float]
    vitals: dict[str, dict[str, Any]]


class Metrics:
    """The metrics of a controller: :meth:`snapshot` on its loop, :func:`values` anywhere."""

    def __init__(self, controller: Any) -> None:
        self._controller = controller
        self._written: Counts | None = None  # counts of what was last known to be on disk

    def snapshot(self) -> Snapshot:
        """Everything that a scrape tells; takes some two milliseconds for 100,000 jobs.

        Only events on disk are counted, so that no counter goes back when the controller is
        killed: on a full disk the counts stay as they were.
        """
        controller, record, state = (
            self._controller,
            self._controller.record,
            self._controller.state,
        )
        if controller.journal.write_down() or self._written is None:
            self._written = record.counts.copy()
        now_s, given = controller.now_s(), [0] * len(state.nodes)
        for row, millicores in state.held_cpus.items():
            place = state.held[row]
            for index, share in place.shares(millicores) if place is not None else ():
                given[index] += share
        gpus = sum(node.num_gpus for node in state.nodes if node.alive)
        packed = sum(count > 1 for count in state.idle.sharers.values())
        now = standing(state)
        queues = queue_rows(now)
        return Snapshot(
            self._written,
            record.process_counts,
            controller.policy_name,
            controller.policy_error is not None,
            controller.room.is_tight,
            (gpus, state.idle.count, packed),
            now,
            {name: controller.quota(row) for name, row in queues.items()},
            {name: controller.queue_weight(now.spec[row].vc) for name, row in queues.items()},
            _worked(state, now, now_s),
            dict(record.deliveries.tries),
            (list(record.counts.open), state.state[:], state.reason[:], state.spec),
            list(zip(state.nodes, given, strict=True)),
            frozenset(record.outboxes.queues),
            {name: max(0.0, now_s - at_s) for name, at_s in record.heard_s.items()},
            dict(record.vitals),
        )


def values(snapshot: Snapshot) -> dict[str, Mapping[Labels, Any]]:
    """The values of each metric of Rota's own, by its labels' values."""
    counts, process = snapshot.counts, snapshot.process
    in_all, free, packed = snapshot.gpus
    return {
        "rota_build_info": {(__version__,): 1},
        "rota_jobs_submitted_total": counts.submitted,
        "rota_jobs_ended_total": counts.ended,
        "rota_queue_wait_seconds": counts.queue_wait_s,
        "rota_job_completion_seconds": counts.completion_s,
        "rota_decision_cycle_seconds": {(snapshot.policy,): process.cycle_s},
        "rota_decisions_total": counts.decisions,
        "rota_policy_failing": {(): snapshot.is_failing},
        "rota_policy_fallback_decisions_total": counts.fallbacks,
        "rota_preemptions_total": counts.preemptions,
        "rota_lost_work_gpu_seconds_total": {(): counts.lost_work_gpu_s},
        "rota_attempts_lost_total": {(): counts.attempts_lost},
        "rota_launches_total": counts.launches,
        "rota_launch_seconds": {(): counts.launch_s},
        "rota_suspend_seconds": {(): counts.suspend_s},
        "rota_resume_seconds": {(): counts.resume_s},
        "rota_migrations_total": counts.migrations,
        "rota_resizes_total": counts.resizes,
        "rota_packed_gpus": {(): packed},
        "rota_pack_slowdown_ratio": {(): counts.slowdown},
        "rota_gpus": {(): in_all},
        "rota_gpu_allocated_ratio": {(): (in_all - free) / in_all if in_all else 0.0},
        "rota_nodes_lost_total": {(): counts.nodes_lost},
        "rota_reconcile_conflicts_total": {(): process.conflicts},
        "rota_db_transaction_seconds": {(): process.transaction_s},
        "rota_deliveries_total": {
            (result,): snapshot.deliveries.get(result, 0) for result in TRIED
        },
        "rota_disk_full": {(): snapshot.is_full},
        **_of_jobs(snapshot),
        **_of_shares(snapshot),
        **_of_nodes(snapshot),
    }


def _of_jobs(snapshot: Snapshot) -> dict[str, dict[Labels, int]]:
    rows, states, reasons, specs = snapshot.jobs
    pending: dict[tuple[str, int], int] = {}
    running: dict[Labels, int] = {}
    for row in rows:
        queue = snapshot.counts.queue_of(specs[row].vc)
        if states[row] in _WAITING:
            pending[queue, reasons[row]] = pending.get((queue, reasons[row]), 0) + 1
        elif states[row] == _RUNNING:
            running[queue,] = running.get((queue,), 0) + 1
    named: dict[Labels, int] = {
        (queue, Reason(code).name): number for (queue, code), number in pending.items()
    }
    return {"rota_pending_jobs": named, "rota_running_jobs": running}


def _of_shares(snapshot: Snapshot) -> dict[str, dict[Labels, float]]:
    told = gauges(snapshot.stands, snapshot.quotas)
    shares: dict[Labels, float] = {}
    for name, group in told["queues"].items():
        queue = (snapshot.counts.queue_of("" if name == NOBODY else name),)
        shares[queue] = shares.get(queue, 0.0) + (group["share"] or 0.0)
    queues = told["queues"]
    fair: dict[Labels, float] = {}
    in_all = sum(snapshot.weights.get(name, 1.0) for name in queues)
    for name, group in queues.items():
        queue = (snapshot.counts.queue_of("" if name == NOBODY else name),)
        part = group["quota"]
        if part is None:
            part = snapshot.weights.get(name, 1.0) / in_all
        fair[queue] = fair.get(queue, 0.0) + part
    stranded = told["fragmentation"]
    return {
        "rota_queue_fair_share": fair,
        "rota_goodput_ratio": {
            queue: good / spent for queue, (good, spent) in _by_queue(snapshot).items() if spent
        },
        "rota_fragmentation_ratio": {} if stranded is None else {(): stranded},
        "rota_queue_share": shares,
    }


def _worked(state: ClusterState, now: Standing, now_s: float) -> dict[str, tuple[float, float]]:
    """GPU seconds of open foreground jobs that trained, and all that they took, by queue."""
    worked: dict[str, tuple[float, float]] = {}
    for row in now.rows:
        if not state.attempt[row] or row not in now.active or now.spec[row].is_background:
            continue
        spec = now.spec[row]
        gpus, ran_s = state.num_gpus[row], state.service(row, now_s)
        good, spent = worked.get(spec.vc, (0.0, 0.0))
        good += max(0.0, ran_s - state.lost_s[row]) * gpus
        worked[spec.vc] = (good, spent + (ran_s + state.overhead_s[row]) * gpus)
    return worked


def _by_queue(snapshot: Snapshot) -> dict[Labels, tuple[float, float]]:
    """``worked`` by the labels of queues, of which those beyond the most are one."""
    told: dict[Labels, tuple[float, float]] = {}
    for name, (good, spent) in snapshot.worked.items():
        queue = (snapshot.counts.queue_of(name),)
        before = told.get(queue, (0.0, 0.0))
        told[queue] = (before[0] + good, before[1] + spent)
    return told


def _of_nodes(snapshot: Snapshot) -> dict[str, dict[Labels, float]]:
    states = {"connected": 0, "silent": 0, "lost": 0}
    told: dict[str, dict[Labels, float]] = {}

    def tell(name: str, labels: Iterable[str], value: float | None) -> None:
        if value is not None:
            told.setdefault(name, {})[tuple(labels)] = value

    for node, _ in snapshot.nodes:
        present = "connected" if node.name in snapshot.connected else "silent"
        states[present if node.alive else "lost"] += 1
    there = [each for each in snapshot.nodes if each[0].alive]
    for node, given in there[:MOST_NODES]:
        name = node.name
        tell("rota_agent_heartbeat_age_seconds", [name], snapshot.ages_s.get(name))
        tell("rota_node_gpus", [name, node.gpu_type], node.num_gpus)
        tell("rota_node_cores", [name], node.millicores / 1000 or None)
        tell("rota_node_cores_given", [name], given / 1000)
        vitals = snapshot.vitals.get(name, {}) if name in snapshot.connected else {}
        tell("rota_node_cores_busy", [name], vitals.get("cores_busy"))
        tell("rota_node_memory_bytes", [name], vitals.get("memory_bytes"))
        tell("rota_node_memory_used_bytes", [name], vitals.get("memory_used_bytes"))
        for number, gpu in enumerate(vitals.get("gpus", ())):
            tell("rota_gpu_busy_ratio", [name, str(number)], gpu.get("busy"))
            tell("rota_gpu_memory_used_bytes", [name, str(number)], gpu.get("memory_used_bytes"))
    for state, number in states.items():
        tell("rota_nodes", [state], number)
    return told
