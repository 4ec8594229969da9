"""Starts attempts: the record, and the environment, devices and interpreter of processes."""

import math
import os
import random
import socket
import stat
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rota.errors import AgentError
from rota.folder import Folder
from rota.live.agent.curve import FILE as CURVE
from rota.live.agent.devices import Devices
from rota.live.agent.inherited import inherited
from rota.live.agent.line_times import begin as begin_times
from rota.live.agent.method import RESTART, STOP, Method, choose, grace_of
from rota.live.agent.network import interface_of
from rota.live.agent.processes import tag_of
from rota.live.agent.program_start import start_of
from rota.live.agent.rank import life_name, life_of
from rota.live.agent.record import VERSION, Record
from rota.live.agent.setup import SETUP, after_setup, after_setup_of_snapshot
from rota.live.agent.workdir import workdir_of
from rota.live.wire import GANG_SECRET, Message, clock, island, tags
from rota.live.wire.lease import lease_file
from rota.live.wire.places import here, node_and_gpu
from rota.model.job import MAX_SLOWDOWN
from rota.share.mps import mps_environment

MAX_SCRIPT_BYTES = 1 << 20
FIRST_PORT, PORT_TRIES = 20_000, 100
LAUNCHER_LIMIT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"  # seconds that torchrun gives its ranks to end
FILLS = "fills"  # a background rank's link to the page of the process that it is beside
FLOW_KEEPS = "the buffers of a flow job are in its workers"  # why it can't be without processes
OF_A_GANG = (  # what a process on another node than its agent's is told of its gang by that agent
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "ROTA_MASTER_ADDR",
    "ROTA_MASTER_PORT",
    "ROTA_NUM_NODES",
    "ROTA_HOSTS",
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "ROTA_GPUS_PER_NODE",
    "ROTA_NODE_RANK",
)


class Place(NamedTuple):
    """Groups to join, by file, or cores to bind to, before the program of a process runs."""

    groups: list[str]
    cores: list[int]


class Starter(NamedTuple):
    """Starts further ranks of an attempt, by one fork request for each."""

    fork: Callable[[dict[str, Any]], Awaitable[int]]
    # (record, folder, slots, GPUs of these, step=, adopt=) -> requests; see rank_requests
    requests: Callable[..., list[dict[str, Any]]]


def record_of(message: Message, devices: Devices, refusal: str | None, node: Path) -> Record:
    """The record of an attempt that the message launches, on the node with this folder.

    ``refusal`` is the reason for which CUDA checkpoints are impossible here, if they are. A job
    whose script is in a snapshot counts as one without ``rota.train`` until :func:`look_at_script`.
    """
    program, gpus, most_gpus = message["program"], message["gpus"], message.get("max_gpus", 1)
    in_gang, flow = program["processes"] == "gpu", message.get("flow")
    if flow is not None:
        workers = max(len(gpus), most_gpus)
        flow = flow | {"devices": [*gpus, *[island.NO_DEVICE] * (workers - len(gpus))]}
    world = len(gpus) if in_gang else 1
    record = Record(
        version=VERSION,
        job_id=message["job_id"],
        attempt=message["attempt"],
        launch=message.get("launch"),
        name=message["name"],
        program=program,
        gpus=gpus,
        slots=world,
        members=list(range(world)),
        max_world=most_gpus if in_gang else 1,
        adapt=message.get("adapt"),
        background=message.get("background", False),
        max_slowdown=message.get("max_slowdown", MAX_SLOWDOWN),
        millicores=message.get("millicores"),
        visible=None,
        movable=False,
        suspension="process" if flow is None else "boundary",
        flow=flow,
        keeps=None if flow is None else FLOW_KEEPS,
        method=choose(program, devices.kind, max(len(gpus), most_gpus), refusal),
        launched_s=message["at_s"],  # until it is known
        command_id=message.get("command_id"),
        boot_id=clock.boot_id(),
        secret=tags.new_secret(node),
        origin=message.get("origin"),
    )
    if nodes := message.get("nodes"):
        record.nodes = nodes
        record.far = {str(slot): at for slot, (at, _) in enumerate(map(node_and_gpu, gpus)) if at}
        record.method = Method(STOP, "its processes are on several nodes")
    look_at_script(record, None if program.get("snapshot") else Path(program["workdir"]), devices)
    return record


def look_at_script(record: Record, folder: Path | None, devices: Devices) -> None:
    """Find out from the job's script, in ``folder``, which GPUs its processes can be on."""
    # A launcher takes all the GPUs that it sees, whatever its script uses.
    one_each = record.program["processes"] == "gpu" or len(record.gpus) == 1
    cooperative = one_each and folder is not None and uses_library(record.program["run"], folder)
    record.visible = visible_gpus(here(record.gpus), devices, everything=cooperative)
    record.movable = devices.kind == "cpu" or cooperative


def rank_requests(
    record: Record,
    folder: Path,
    devices: Devices,
    agent_socket: str,
    slots: Sequence[int],
    gpus: Sequence[int],
    *,
    place: Place | None = None,
    step: int | None = None,
    adopt: dict[int, dict[str, str]] | None = None,
    memory_bytes: int | None = None,
    no_warm: str | None = None,
) -> list[dict[str, Any]]:
    """Requests to the zygote, one per slot; ``gpus`` are those of the slots.

    ``step`` is the gang's step, given for newcomers to it. ``adopt`` is given for ranks that
    continue from an arena: environment variables by slot. ``place`` is where all of them go before
    their program runs; without one, slots on cores are bound to these. ``memory_bytes`` is what a
    background rank may have of its device; ``no_warm`` is told in :func:`start_of`.
    """
    program = record.program
    shared = _environment(record, folder, devices, agent_socket)
    before = 0 if step is None else len(record.members)
    shared["WORLD_SIZE"] = shared["LOCAL_WORLD_SIZE"] = str(before + len(slots))
    if step is not None:
        shared |= {"ROTA_NEWCOMER": "1", "ROTA_STEP": str(step)}
    # A job that is held to its part of the cores has its slots in place of GPUs, not of cores.
    slot_cores = devices.cores_of(list(gpus)) if place is None else []
    groups, cores = place or Place([], slot_cores)
    run, setup = program["run"], program.get("setup")
    workdir = workdir_of(program, folder)
    if setup:
        shared[SETUP] = setup
        if snapshot := program.get("snapshot"):
            unpacked = home_of(folder).unpacked(node_name(folder), snapshot)
            run = after_setup_of_snapshot(run, unpacked, Path(workdir))
        else:
            run = after_setup(run, folder.parents[2] / "setup")
    lease = lease_file(folder.parents[2])
    requests = []
    of_job, printed = f"{record.job_id}.{record.attempt}", " ".join(program["run"].split())
    for position, slot in enumerate(slots):
        rank = str(before + position)
        name = life_name(slot, life_of(record.lives, slot))
        log = folder / f"rank{slot}.log"
        with suppress(OSError):  # without room for times, it is run all the same
            begin_times(log)
        environment = shared | {"RANK": rank, "LOCAL_RANK": rank, "ROTA_SLOT": str(slot)}
        environment["ROTA_PULSE"] = str(folder / f"rank{slot}.pulse")
        if record.background:
            environment["ROTA_FILLS"] = str(fills_of(folder, slot))
            if memory_bytes is not None:
                environment["ROTA_MEMORY_BYTES"] = str(memory_bytes)
        elif has_pages(record):
            environment["ROTA_MARKS"] = str(page_of(folder, slot))
            environment["ROTA_MAX_SLOWDOWN"] = repr(record.max_slowdown)
        if record.flow is not None:
            environment[island.FOLDER] = str(home_of(folder).island(node_name(folder)))
            environment[island.KEY] = seat_key(record)
            if devices.kind == "cuda":
                environment["CUDA_VISIBLE_DEVICES"] = ""  # the program computes on no GPU itself
        if adopt is not None:
            environment |= adopt[slot]
        if record.visible is not None:
            environment["ROTA_DEVICE"] = str(record.visible.index(gpus[position]))
        start = start_of(program, environment, workdir, no_warm)
        record.started = start.told
        requests.append(
            {
                "name": name,
                "title": f"rota job {of_job} rank {environment['RANK']}: {printed}",
                "tag": tag_of(record.secret, name),
                "folder": str(folder),
                "log": str(log),
                "env": environment,
                "workdir": workdir,
                "run": run,
                "argv": start.argv,
                "fork": start.fork,
                "cpus": slot_cores[position : position + 1]
                if len(slots) == len(slot_cores)
                else cores,
                "groups": groups,
                "lease": str(lease) if lease.exists() else None,
            }
        )
    return requests


def _environment(
    record: Record, folder: Path, devices: Devices, agent_socket: str
) -> dict[str, str]:
    program = record.program
    own = inherited(os.environ)
    port = str(free_port())
    checkpoint_folder = checkpoints(folder)
    _make_checkpoint_folder(checkpoint_folder)
    own_programs = os.path.dirname(sys.executable)
    environment = own | {
        # `python` in a job is the Python that Rota runs in, unless the job brings its own PATH.
        "PATH": own_programs + os.pathsep + own.get("PATH", os.defpath),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1" if devices.kind == "cpu" else os.environ.get("OMP_NUM_THREADS", "4"),
    }
    if cores := program.get("cpus"):
        threads = max(1, cores // (len(record.gpus) if program["processes"] == "gpu" else 1))
        environment |= {"ROTA_CPUS": str(cores), "OMP_NUM_THREADS": str(threads)}
    if record.millicores is not None:
        environment["ROTA_CPUS"] = str(whole_cores(record.millicores))
    if program["processes"] == "node" and program.get("suspend") == RESTART:
        environment[LAUNCHER_LIMIT] = str(math.ceil(grace_of(program)))
    environment |= program["env"]
    environment |= {
        "ROTA_JOB_ID": record.job_id,
        "ROTA_ATTEMPT": str(record.attempt),
        "ROTA_NODE": node_name(folder),
        "ROTA_NODE_RANK": "0",
        "ROTA_NUM_NODES": "1",
        "ROTA_GPUS_PER_NODE": str(len(here(record.gpus))),
        "ROTA_MASTER_ADDR": "127.0.0.1",
        "ROTA_MASTER_PORT": port,
        "ROTA_CHECKPOINT_DIR": str(checkpoint_folder),
        "ROTA_AGENT_SOCKET": agent_socket,
        clock.VARIABLE: repr(clock.ahead_s()),
        "ROTA_GENERATION": str(record.generation),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    if program["processes"] == "node":  # torchrun's defaults for missing arguments
        environment |= {
            "PET_NPROC_PER_NODE": str(len(record.gpus)),
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": port,
        }
    if "ROTA_SWEEP_METRIC" in program["env"]:
        environment["ROTA_CURVE"] = str(folder / CURVE)
    if record.max_world > 1 or len(record.gpus) > 1:
        environment[GANG_SECRET] = record.secret or ""
    if record.max_world > 1:
        environment["ROTA_MAX_WORLD"] = str(record.max_world)
    if (adapt := record.adapt) is not None:
        environment["ROTA_MAX_BATCH"] = str(adapt["most"])
        environment["ROTA_MIN_WORLD"] = str(adapt["min_gpus"])
        environment["ROTA_MIN_BATCH_PER_GPU"] = str(adapt.get("least_per_gpu", 1))
        if adapt["most_per_gpu"] is not None:
            environment["ROTA_MAX_BATCH_PER_GPU"] = str(adapt["most_per_gpu"])
    if record.visible is not None:
        ids = [devices.ids[index] for index in record.visible]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(ids)
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # NVML's order, not the fastest first
        environment |= mps_environment(environment, background=record.background)
    return environment


def gang_environments(
    record: Record, slots: Sequence[int], gpus: Sequence[int], step: int | None
) -> dict[int, dict[str, str]]:
    """What processes of a gang on several nodes are told of it, by slot; see `rank_requests`."""
    before = 0 if step is None else len(record.members)
    nodes = [node_and_gpu(gpu)[0] for gpu in gpus]
    address, port = record.nodes[0]["address"], str(free_port())
    positions = sorted({*nodes, *(node_and_gpu(gpu)[0] for gpu in record.gpus)})
    shared = {
        "WORLD_SIZE": str(before + len(slots)),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "ROTA_MASTER_ADDR": address,
        "ROTA_MASTER_PORT": port,
        "ROTA_NUM_NODES": str(len(positions)),
        "ROTA_HOSTS": ",".join(record.nodes[at]["address"] for at in positions),
    }
    found = {}
    for rank, (slot, node) in enumerate(zip(slots, nodes, strict=True)):
        found[slot] = shared | {
            "RANK": str(before + rank),
            "LOCAL_RANK": str(nodes[:rank].count(node)),
            "LOCAL_WORLD_SIZE": str(nodes.count(node)),
            "ROTA_GPUS_PER_NODE": str(nodes.count(node)),
            "ROTA_NODE_RANK": str(positions.index(node)),
        }
    return found


def gang_requests(
    record: Record,
    folder: Path,
    devices: Devices,
    agent_socket: str,
    slots: Sequence[int],
    gpus: Sequence[int],
    *,
    step: int | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Requests for slots of a gang on several nodes: to the zygote for those on this one.

    For the others to their agents: see :meth:`rota.live.agent.guest.Guest.do`. Raises AgentError if
    no interface has this node's address.
    """
    told = gang_environments(record, slots, gpus, step)
    for environment in told.values():
        environment[GANG_SECRET] = record.secret or ""
    interface = interface_of(record.nodes[0]["address"])
    found: dict[int, dict[str, Any]] = {}
    for slot, (node, gpu) in zip(slots, map(node_and_gpu, gpus), strict=True):
        if node:
            about = {"gpu": gpu, "env": told[slot], "step": step, "cpus": []}
            found[slot] = about | {"generation": record.generation}
        else:
            told[slot] |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    own = {slot: gpu for slot, gpu in zip(slots, gpus, strict=True) if slot not in found}
    where = (folder, devices, agent_socket, list(own), list(own.values()))
    requests = rank_requests(record, *where, **options | {"step": step, "adopt": told})
    found |= zip(own, requests, strict=True)
    return [found[slot] for slot in slots]


def seat_key(record: Record) -> str:
    """The key of a flow job's seat on its node's island."""
    return f"{record.job_id}.{record.attempt}.{record.secret}"


def has_pages(record: Record) -> bool:
    """True if each process that the agent starts for the attempt has one GPU, and so one page."""
    if record.flow is not None:
        return False
    return record.program["processes"] == "gpu" or len(record.gpus) == 1


def page_of(folder: Path, slot: int) -> Path:
    """The page that a process of the attempt with this folder tells its segments in."""
    return folder / f"rank{slot}.marks"


def fills_of(folder: Path, slot: int) -> Path:
    """The link by which a process of a background attempt finds the page that it is to follow."""
    return folder / (f"{FILLS}{slot}" if slot else FILLS)


def whole_cores(millicores: int) -> int:
    """The cores that a program is told that it has: whole ones, rounded up."""
    return max(1, math.ceil(millicores / 1000))


def checkpoints(attempt_folder: Path) -> Path:
    """Folder of a job's checkpoints, the same for all of its attempts on any node."""
    return home_of(attempt_folder).checkpoints(attempt_folder.parent.name)


def home_of(attempt_folder: Path) -> Folder:
    """The state folder that has an attempt's folder, as ``HOME/nodes/NODE/jobs/ID/ATTEMPT``."""
    return Folder(attempt_folder.parents[4])


def _make_checkpoint_folder(folder: Path) -> None:
    """Make the folder unless it exists or is a link to one. Raises AgentError for anything else.

    The job's processes own its parent too, and may have put anything there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = error.strerror
        if folder.is_symlink():
            what = f"it is a link to {os.readlink(folder)}, which is no folder"
        elif folder.exists():
            what = "it is no folder"
        raise AgentError(
            f"ROTA_CHECKPOINT_DIR {folder} can't be used: {what}; put the folder with the "
            "checkpoints back there, or move what is there away to begin without checkpoints"
        ) from None


def node_name(attempt_folder: Path) -> str:
    """The node that an attempt's folder belongs to."""
    return attempt_folder.parents[2].name


def visible_gpus(gpus: list[int], devices: Devices, *, everything: bool) -> list[int] | None:
    """GPUs that the processes see, their own first; None where there are no GPUs.

    CUDA fixes the list when a process first uses it. A job that can move sees all of the node's
    GPUs and is told which to use; any other sees only its own.
    """
    if devices.kind != "cuda":
        return None
    others = [index for index in range(devices.num_gpus) if index not in gpus]
    return gpus + others if everything else list(gpus)


def uses_library(run: str, folder: Path) -> bool:
    """True if the script of a command in a folder imports ``rota.train``, judged by its text."""
    for word in run.split():
        if word.endswith(".py"):
            text = _text(Path(folder, word))
            return "rota.train" in text or "from rota import train" in text
    return False


def _text(script: Path) -> str:
    """The beginning of a script; "" for anything but a plain file, which might never end."""
    try:
        descriptor = os.open(script, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ""
            return file.read(MAX_SCRIPT_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def free_port() -> int:
    """A TCP port that is free now, if possible one that the kernel assigns to nobody.

    Ranks listen there later. Until then, the kernel may give any port of its own range away: to
    whoever connects to something, or listens on port 0.
    """
    range_of_kernel = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    others = range(FIRST_PORT, int(range_of_kernel[0]))
    for port in *random.sample(others, min(len(others), PORT_TRIES)), 0:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return int(probe.getsockname()[1])
    raise AgentError("there is no free TCP port on this machine")
