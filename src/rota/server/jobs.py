"""The API's documents about jobs: JSON-able dicts made from the controller's state.

Times are seconds since the epoch, durations seconds; what is not known is None.
"""

import math
import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from rota.errors import AgentAwayError, InputError, closest, did_you_mean
from rota.explain.burst import burst_of
from rota.explain.filling import filling_of
from rota.explain.probes import tell
from rota.explain.sharing import sharing_of
from rota.model.decide.live_limits import most_gpus
from rota.model.job import Job, JobState, Program
from rota.model.naming import few
from rota.model.reason import Reason
from rota.model.state.state import ClusterState
from rota.model.sweep import SweepTrial
from rota.report.eta import Past, eta_of, eta_sentence
from rota.report.text import natural
from rota.request.dependencies import dependencies_field
from rota.request.jobfile import JobRequest
from rota.request.launchers import launcher_of
from rota.request.notify import notices_field
from rota.request.retries import retries_fields
from rota.server import profiles

RANKS_PATIENCE_S = 1.0  # with an agent that is away, of those who look at a job as a whole
RECENT_S = 3600.0  # for how long an ended job is still listed
NO_POSITIONS: Mapping[int, int] = {}
MOST_ALIKE = 10  # ids of jobs with the same name
# Of a job in a list.
SUMMARY_FIELDS = (
    "id",
    "name",
    "user",
    "state",
    "reason",
    "queue",
    "priority",
    "tags",
    "sweep",
    "num_gpus",
    "min_gpus",
    "max_gpus",
    "gpus",
    "shared_with",
    "filling",
    "share",
    "submit_s",
    "age_s",
    "run_s",
    "first_start_s",
    "finish_s",
    "attempt",
    "exit_code",
    "message",
    "cleaned",
    "progress",
    "eta_s",
    "position",
)


def parse_states(text: str | None) -> set[JobState] | None:
    """The states that a comma-separated list names; None for none. Raises InputError."""
    if not text:
        return None
    states = set()
    names = [state.name for state in JobState]
    for word in text.upper().split(","):
        if word.strip() not in names:
            close = closest(word, names)
            hint = f"did you mean {close}?" if close else f"known: {', '.join(names)}"
            raise InputError(f"state: there is no {word!r:.80}; {hint}")
        states.add(JobState[word.strip()])
    return states


def summary(
    controller: Any, row: int, positions: Mapping[int, int] = NO_POSITIONS
) -> dict[str, Any]:
    """One line of ``rota ps``; ``positions`` are those of waiting jobs, by row."""
    now_s = controller.now_s()
    job = controller.state.job(row, now_s)
    reported = controller.record.progress(row)
    share = controller.record.device_share(row)
    ended_s = job.finish_s if job.finish_s is not None else now_s
    sizes = _sizes(job)
    return {
        "id": job.spec.job_id,
        "name": job.spec.name,
        "user": job.spec.user,
        "state": job.state.name,
        "reason": Reason(job.reason).name,
        "queue": job.spec.vc,
        "priority": job.spec.priority,
        "tags": list(job.spec.tags),
        "sweep": _sweep(job.spec.trial),
        "num_gpus": controller.state.num_gpus[row],
        "min_gpus": sizes[0],
        "max_gpus": sizes[-1],
        "gpus": [{"node": node, "gpus": list(gpus)} for node, gpus in job.gpus],
        "shared_with": controller.state.ids(controller.state.sharers(row)),
        "filling": finite(filling_of(controller.state, row)),
        "share": share,
        "submit_s": job.spec.submit_s,
        "age_s": max(0.0, ended_s - job.spec.submit_s),
        "run_s": job.service_s,
        "first_start_s": job.first_start_s,
        "finish_s": job.finish_s,
        "attempt": job.attempt,
        "exit_code": job.exit_code,
        "message": job.message,
        "cleaned": _cleaned(controller.state, row),
        "progress": finite(reported),
        "eta_s": _eta_s(controller.record.past, job, reported, share),
        "position": None if job.state.is_final or job.gpus else positions.get(row),
    }


async def detail(
    controller: Any, row: int, positions: Mapping[int, int] = NO_POSITIONS
) -> dict[str, Any]:
    """Everything about one job. Of its environment only the names: values may be secrets."""
    job = controller.state.job(row, controller.now_s())
    program = job.spec.program
    model_bytes, largest_tensor_bytes = controller.record.models.get(row) or (None, None)
    skew = controller.state.skew[row]
    return summary(controller, row, positions) | {
        "eta": eta(controller, row),
        "sizes": _sizes(job),
        "resizable": bool(controller.state.resizable[row]),
        "suspension": job.suspension.name,
        "suspension_why": controller.record.why_suspended.get(row) or None,
        "suspend": program.suspend if program else None,
        "started": controller.record.started.get(row) or None,
        "resume_from": (program.resume_from or None) if program else None,
        "gpu_types": list(job.spec.gpu_types),
        "cpus": (program.cpus or None) if program else None,
        "cores": _cores(controller, row),
        "memory_gb": program.host_memory_gb if program else None,
        "gpu_memory_gb": job.spec.memory_gb,
        "setup": (program.setup or None) if program else None,
        "snapshot": (program.snapshot or None) if program else None,
        "depends_on": dependencies_field(job.spec.depends_on),
        "notify": notices_field(job.spec.notices),
        "retries": _retries(controller.state, row),
        "preemptions": job.preemptions,
        "migrations": job.migrations,
        "state_on": controller.record.state_on(row),
        "overhead_s": job.overhead_s,
        "lost_s": controller.state.lost_s[row],
        "lost_ranks": controller.record.lost_ranks[row],
        "model_bytes": model_bytes,
        "largest_tensor_bytes": largest_tensor_bytes,
        "skew": skew if skew >= 0 else None,
        "memory": None if job.state.is_final else controller.telemetry.memory.get(row),
        "profile": finite(profiles.of_job(controller.state, row)),
        "time_limit_s": job.spec.time_limit_s,
        "run": program.run if program else None,
        "workdir": program.workdir if program else None,
        "env": [name for name, _ in program.env] if program else [],
        "processes": program.processes if program else None,
        "python": python_of(program),
        "ranks": await ranks(controller, row),
        "sharing": finite(sharing_of(controller.state, row)),
        "burst": burst_of(controller.state, row),
        "trials": finite(tell(controller.state, controller.state.notes.probes.get(row, []))),
        "same_name": _same_name(controller, row),
        "story": story(controller, row),
    }


def _cores(controller: Any, row: int) -> dict[str, Any] | None:
    """The CPU cores that a job may use, and by what it is held to them; None for any number."""
    millicores, held = controller.state.held_cpus.get(row), controller.state.held[row]
    if millicores is None or held is None:
        return None
    node = controller.state.nodes[held.nodes()[0]].name
    return {"given": millicores / 1000, "held_by": controller.record.held_by.get(node)}


async def warnings(controller: Any, job: JobRequest) -> list[str]:
    """What whoever submits a job should know of it: of its queue, its folder, its environment."""
    told = []
    if (known := controller.queues()) and job.queue not in known:
        queue = f"queue {job.queue!r} has no quota{did_you_mean(job.queue, known)}"
        what = queue if job.queue else "the job names no queue"
        told = [f"{what}; queues with a quota: {few(known)}"]
    return [*told, *await controller.files.warnings(job)]


def _same_name(controller: Any, row: int) -> list[str]:
    """The ids of other jobs with the job's name, the latest ones."""
    state = controller.state
    alike = controller.record.index.named(state.spec[row].name)[-MOST_ALIKE - 1 :]
    ids: list[str] = state.ids([other for other in alike if other != row][-MOST_ALIKE:])
    return ids


def disconnections(controller: Any, row: int) -> list[str]:
    """Sentences on the nodes of a job whose agents have gone away, or were away a moment ago."""
    state, now_s = controller.state, controller.now_s()
    place = state.held[row] or state.home[row]
    names = {state.nodes[index].name for index in place.nodes()} if place is not None else set()
    return [
        f"the connection of node {node['name']} ended {max(0.0, now_s - ended_s):.0f} s ago: "
        f"{node['disconnected_why']}"
        for node in (controller.record.nodes() if names else ())
        if node["name"] in names and (ended_s := node.get("disconnected_s")) is not None
    ]


def eta(controller: Any, row: int) -> dict[str, Any] | None:
    """The next change of a job, and when: see :func:`rota.report.eta.eta_of`."""
    past, state, progress = (
        controller.record.past,
        controller.state,
        controller.record.progress(row),
    )
    told = eta_of(past, state, row, controller.now_s(), progress, controller.turns(row))
    return None if told is None else told | {"sentence": eta_sentence(told)}


def _eta_s(past: Past, job: Job, progress: dict[str, Any], share: float) -> list[float] | None:
    """Seconds until the end of a job that tells its progress, the least and the most."""
    found = None if job.state.is_final else past.end_by_progress(progress, share)
    return None if found is None or found.high_s is None else [found.low_s, found.high_s]


def nodes(controller: Any, *, everything: bool) -> list[dict[str, Any]]:
    """The nodes that are there, were lost within the hour, or that a job waits for; or all.

    Those of the controller's machine come first, then the others, by their names; lost ones last.
    """
    state, since_s = controller.state, controller.now_s() - RECENT_S
    told = controller.record.nodes()
    wanted = everything
    if not (wanted or all(node["alive"] for node in told)):
        most = {spans: most_gpus(state, spans=spans) for spans in (False, True)}
        wanted = any(state.num_gpus[r] > most[state.spec[r].spans_nodes] for r in state.active)
    fillers = _fillers(state)
    found = [
        node | {"fillers": [fillers.get((index, gpu)) for gpu in range(node["num_gpus"])]}
        for index, node in enumerate(told)
        if wanted or node["alive"] or (node["lost_s"] or 0.0) > since_s
    ]
    return sorted(
        found,
        key=lambda node: (not node["alive"], bool(node.get("address")), natural(node["name"])),
    )


def _fillers(state: ClusterState) -> dict[tuple[int, int], dict[str, Any]]:
    """The background job on each GPU, by the node's index and the GPU's."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for row in {*state.background, *state.unsettled}:
        held = state.held[row]
        filling = filling_of(state, row) if held is not None and held.background else None
        if held is not None and filling is not None:
            told = {"id": state.spec[row].job_id} | finite(filling)
            found |= {(node, gpu): told for node, gpus in held.gpus() for gpu in gpus}
    return found


def python_of(program: Program | None) -> str | None:
    """The interpreter that a command finds as ``python``; None for one that is plainly no Python's.

    It is looked for as an agent of this machine does: in the job's own PATH if it has one, else
    beside the Python that Rota runs in.
    """
    words = program.run.split(maxsplit=1) if program else []
    if not words or program is None:
        return None
    name = os.path.basename(words[0])
    if not name.startswith("python") and launcher_of(program.run) is None:
        return None
    beside_rota = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", os.defpath)
    path = dict(program.env).get("PATH", beside_rota)
    return shutil.which(words[0] if name.startswith("python") else "python", path=path)


async def ranks(controller: Any, row: int) -> list[dict[str, Any]]:
    """The processes of a job that has any, by rank; none as long as its agent does not tell."""
    state = controller.state
    if not state.has_processes(row):
        return []
    try:
        found = await controller.files.ranks(row, state.attempt[row], RANKS_PATIENCE_S)
    except AgentAwayError:
        return []
    node = controller.record.node_of(row, state.attempt[row])
    return [
        {
            "rank": rank,
            "process": each.process,
            "pid": each.pid,
            "gpu": each.gpu,
            "node": each.node or node,
        }
        for rank, each in enumerate(found)
    ]


def story(controller: Any, row: int) -> list[dict[str, Any]]:
    """History of the job, oldest first."""
    return [{"at_s": at_s, "line": line} for at_s, line in controller.state.story(row)]


def finite(value: Any) -> Any:
    """``value`` with None for what JSON has no number for: a loss may well be NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _sweep(trial: SweepTrial | None) -> dict[str, Any] | None:
    """Search and number of a job that is a trial."""
    if trial is None:
        return None
    search = trial.sweep
    told = {"name": search.name, "number": trial.number, "params": dict(trial.params)}
    return told | {"array": search.is_array}


def _cleaned(state: ClusterState, row: int) -> str | None:
    """The part of an ended job that was removed: ``output``, ``all``, or None."""
    cleaned = state.cleaned.get(row)
    if cleaned is None:
        return None
    return "output" if cleaned.keeps_checkpoints else "all"


def _retries(state: ClusterState, row: int) -> dict[str, Any] | None:
    """How often it may start anew after it has failed, and how often it has."""
    retries = state.spec[row].retries
    if retries is None:
        return None
    return retries_fields(retries) | {"used": state.retried.get(row, 0)}


def _sizes(job: Job) -> list[int]:
    """Numbers of GPUs that its owner allows, rising."""
    return list(job.spec.elastic.sizes) if job.spec.elastic is not None else [job.spec.num_gpus]
