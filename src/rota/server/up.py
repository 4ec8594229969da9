"""One machine as a whole cluster: controller, HTTP API and agents in one process tree."""

import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import psutil

from rota.errors import InputError, RotaError, pip_install
from rota.folder import Folder, hold_lock
from rota.live.agent.devices import offered_ids
from rota.live.agent.memory import DEFAULT_SHARE
from rota.live.controller.admission import Admission
from rota.live.controller.leases import Leases, settled
from rota.live.controller.loop import Controller
from rota.live.controller.room import Room
from rota.live.logline import TEXT
from rota.live.provider.base import Provider
from rota.live.provider.joined import JoinedProvider
from rota.live.provider.local import (
    LocalProvider,
    keep_machine_name,
    lay_out,
    machine_name,
)
from rota.live.provider.together import Together
from rota.report.eta import Past
from rota.server.door import raise_open_files
from rota.server.logfile import LogFile
from rota.server.place import lasting_place
from rota.server.serve import run
from rota.server.tls import certifier, listener
from rota.store.events import EventStore
from rota.store.members import Members

if TYPE_CHECKING:
    from rota.server.traces import Traces

# Each of these variables of OpenTelemetry asks for traces.
TRACED_BY = (
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_TRACES_EXPORTER",
)


class Listen(NamedTuple):
    """HOST:PORT for other machines, and a lab's own certificate and key if there are such."""

    place: str
    certificate: str | None = None
    key: str | None = None


class Engine(Protocol):
    """Gives the nodes instead of this machine; their agents call from theirs."""

    def check(self) -> None:
        """Raise InputError if it would give none, before anything is asked for."""

    def is_own(self, node: str) -> bool:
        """True of the names that its nodes may have."""

    def provider(self, admission: Admission) -> Provider:
        """The provider of its nodes."""


def run_cluster(
    folder: Folder,
    *,
    policy: Any,
    policy_name: str,
    gpus: int | None,
    host_memory_bytes: int | None,
    port: int,
    on_listen: Callable[[str, Controller, Provider], None],
    nodes: int = 1,
    least_nodes: int | None = None,
    gpu_types: Sequence[str] = (),
    log_limit_bytes: int | None = None,
    log_format: str = TEXT,
    listen: Listen | None = None,
    lease_s: float | None = None,
    engine: Engine | None = None,
) -> Controller:
    """Run a controller on ``folder`` until SIGTERM or SIGINT; the controller, as it ended.

    It has ``nodes`` nodes of ``gpus`` GPUs each, and those of former times that may have jobs.
    With ``least_nodes`` it begins with so many, and has as many as the policy asks for, or else the
    queue. With ``listen`` other machines can call and join; those that have joined are nodes in any
    case, each with a lease of ``lease_s``, by default as before, or a minute. The nodes of an
    ``engine`` take the place of this machine's.
    Raises InputError for a policy that is an oracle, for more GPUs than there are, when another
    controller runs on the same folder, and for a folder that can't be written to.
    """
    if policy.needs_duration:
        raise InputError(
            f"policy: {policy_name} needs to know how long jobs run, which only a trace tells; "
            "use it in `rota sim`, and here for example tiresias or gandiva"
        )
    cores = len(os.sched_getaffinity(0))
    layout, host = [], machine_name(folder)
    if engine is None:
        layout = lay_out(host, nodes, gpus, gpu_types, len(offered_ids()), cores)
    else:
        engine.check()
    if host_memory_bytes is None:  # the nodes share this machine's
        host_memory_bytes = int(DEFAULT_SHARE * psutil.virtual_memory().total / nodes)
    folder.create()
    try:
        lock = hold_lock(folder.controller_lock)
        if lock is None:
            raise InputError(
                f"a controller runs on {folder.path} already; `rota nodes` shows what it has, "
                "and --home starts another cluster elsewhere"
            )
        opened = folder.close_to_others()
        log = LogFile(folder.controller_log, log_format=log_format)
    except OSError as error:
        raise folder.unusable(error) from None
    logging.basicConfig(level=logging.INFO, handlers=[log], force=True)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # else a line per WebSocket
    terminal = logging.StreamHandler()
    notice = logging.getLogger("rota.notice")
    notice.addHandler(terminal)
    try:
        if opened:
            text = "others could read %s in %s; now only you can"
            notice.warning(text, ", ".join(opened), folder.path)
        open_files = raise_open_files()
        room = Room(folder)
        room.look()  # on a full disk there is room to start with from here on
        traces = _traces(notice)
        store = EventStore(folder.database)
        limits = host_memory_bytes, open_files, log_limit_bytes
        try:
            if listen is None and engine is not None:
                listen = Listen(lasting_place(folder))
            outer = None if listen is None else listener(folder, *listen)
            members = Members(store)
            leases = Leases(_lasts_s(folder, lease_s, members))
            provider: Provider
            if engine is None or outer is None:
                keep_machine_name(folder, host)
                provider = LocalProvider(folder, layout, *limits, log_format, least=least_nodes)
                joined = JoinedProvider(lambda: members.names)
            else:
                admission = Admission(members, leases, outer.url, outer.authority, engine.is_own)
                provider = engine.provider(admission)
                joined = JoinedProvider(lambda: admission.others)
            watchers = [] if traces is None else [traces.watch]
            both = Together(provider, joined)
            controller = Controller(
                *(store, folder, policy, policy_name, both, room, watchers, Past(), members),
                leases,
                certifier() if outer is not None else None,
            )
            if engine is not None:
                admission.outboxes = controller.record.outboxes
                admission.has_jobs = controller.node_api.has_jobs
            joined.is_connected = controller.record.outboxes.queues.__contains__
            joined.has_jobs = controller.node_api.has_jobs
        except RotaError:
            store.close()
            raise
        if traces is not None:
            traces.begin(controller)
        _tell_of_others(notice, store, controller)
        run(
            controller,
            folder,
            port=port,
            on_listen=lambda url: on_listen(url, controller, provider),
            listener=outer,
        )
        if traces is not None:
            traces.close()
        return controller
    except RotaError:
        logging.getLogger("rota.controller").exception("the controller could not go on")
        raise
    except OSError as error:
        logging.getLogger("rota.controller").exception("the controller could not go on")
        raise folder.unusable(error) from None
    finally:
        notice.removeHandler(terminal)
        lock.close()


def _traces(notice: logging.Logger) -> "Traces | None":
    """The maker of traces; None unless OpenTelemetry's variables ask for them and it is there."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    asked = next((name for name in TRACED_BY if os.environ.get(name)), None)
    if asked is None or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    try:
        from rota.server.traces import Traces
    except ModuleNotFoundError as error:
        text = "%s is set, and there are no traces: %s; install it with: %s"
        notice.warning(text, asked, error, pip_install("otel"))
        return None
    return Traces()


def _tell_of_others(notice: logging.Logger, store: EventStore, controller: Controller) -> None:
    """Tell of what another event log, or a later state of this one, has left in the folder."""
    if store.set_aside is not None:
        notice.warning(
            "%s was there without its %s: it is %s now, and belongs beside that file",
            *(f"{store.path.name}-wal", store.path.name, store.set_aside),
        )
    if ids := controller.record.foreign_ids:
        notice.warning(
            "%s knows no jobs with ids from %s to %s, and such were given in this state folder: "
            "another event log was here, or a later state of this one. What these jobs have left "
            "stays, and ids of new jobs begin at %s",
            *(store.path, ids[0], ids[-1], ids[-1] + 1),
        )


def _lasts_s(folder: Folder, lease_s: float | None, members: Members) -> float:
    try:
        return settled(folder.lease, lease_s, members.names)
    except OSError as error:
        raise folder.unusable(error) from None
