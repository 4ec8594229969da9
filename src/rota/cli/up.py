"""``rota up``: a whole cluster on this machine."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rota.cli.keyvalue import parse_settings, parse_size
from rota.cli.optiongroups import SectionedCommand, SectionOption
from rota.cli.ui import require_toolkit
from rota.errors import InputError, UnreachableError
from rota.folder import Folder, is_locked
from rota.model.naming import few
from rota.report.text import natural, printable
from rota.request.values import seconds_of

if TYPE_CHECKING:
    from rota.live.controller.loop import Controller
    from rota.live.provider.base import Provider
    from rota.live.provider.local import LocalNode, LocalProvider
    from rota.server.kubernetes import KubernetesEngine, Options
    from rota.server.ray import RayEngine
    from rota.server.slurm import AllocationEngine, SlurmEngine

PR_SET_PDEATHSIG = 1
SETTLE_S = 5.0
LEAST_LEASE_S = 5.0  # agents are heard every second
MOST_NODES = 64
OPTION = re.compile(r"--?[A-Za-z].*")  # of sbatch
MOST_NAMED = 5  # processes that live on


slurm_option, ray_option, kubernetes_option = (
    partial(click.option, cls=SectionOption, section=f"With --on {engine}")
    for engine in ("slurm", "ray", "kubernetes")
)


@click.command(cls=SectionedCommand)
@click.option(
    "--on",
    "engine_name",
    type=click.Choice(["slurm", "ray", "kubernetes"]),
    help="Get the nodes from there; by default they are this machine's. Within an allocation of "
    "Slurm its nodes are used as they are.",
)
@slurm_option("--partition", metavar="NAME", help="The partition to ask.")
@slurm_option("--account", metavar="NAME", help="The account to charge.")
@slurm_option(
    "--time",
    "time_text",
    metavar="TIME",
    help="For how long to have each node, such as 8h; by default as the partition has it.",
)
@slurm_option(
    "--sbatch",
    "more",
    multiple=True,
    metavar="OPTION",
    help="Another option of sbatch, such as --sbatch=--qos=high; may be repeated.",
)
@ray_option(
    "--ray-address",
    metavar="HOST:PORT",
    help="The address of Ray's head; by default what RAY_ADDRESS says, which a Ray job has, "
    "or the Ray that this machine is a node of.",
)
@ray_option(
    "--ray-token",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The file with Ray's token, if it has one; by default as RAY_AUTH_TOKEN_PATH says.",
)
@kubernetes_option(
    "--namespace",
    metavar="NAME",
    help="The namespace of the pods; by default this pod's, or the context's.",
)
@kubernetes_option(
    "--context",
    metavar="NAME",
    help="The context of KUBECONFIG; by default the current one, or within a pod its own cluster.",
)
@kubernetes_option(
    "--image",
    metavar="IMAGE",
    help="An image that has Rota and what jobs need; there is no default.",
)
@kubernetes_option(
    "--name",
    metavar="NAME",
    help="The cluster's name in Kubernetes, with which the names of its pods begin.",
)
@kubernetes_option(
    "--pod-cpus",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="The CPU cores of each pod, which are device slots without --gpus.",
)
@kubernetes_option(
    "--pod-memory",
    metavar="SIZE",
    help="The memory of each pod, such as 64GiB.",
)
@kubernetes_option(
    "--volume",
    "volumes",
    multiple=True,
    metavar="CLAIM:PATH",
    help="A persistent volume claim, and where each pod has it; may be repeated.",
)
@kubernetes_option("--queue", metavar="NAME", help="The LocalQueue of Kueue.")
@kubernetes_option(
    "--grace",
    metavar="TIME",
    help="How long a pod that is deleted has to go, 150s by default.",
)
@kubernetes_option(
    "--manifest",
    "is_manifest",
    is_flag=True,
    help="Start nothing, and print what has `kubectl apply -f -` start the controller as a pod.",
)
@click.option(
    "--gpus",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Offer so many GPUs per node, or device slots where there is no GPU; all by default.",
)
@click.option(
    "--nodes",
    metavar="N",
    default="1",
    show_default=True,
    help="Have so many nodes, each with an agent and GPUs or slots of its own. "
    "With 1..4 it begins with one, and has up to four when the policy or the queue asks for them.",
)
@click.option(
    "--gpu-types",
    metavar="T,...",
    default="",
    help="What to call the GPUs: one type for all nodes, or one for each, as a100,t4,t4.",
)
@click.option(
    "--host-memory",
    metavar="SIZE",
    help="What suspended jobs may hold of a node's memory, such as 8GiB; half of it by default. "
    "What is more goes to the disk.",
)
@click.option(
    "--log-limit",
    metavar="SIZE",
    help="What the logs of a job may hold, 8MiB or more; 1GiB by default. Of longer ones the "
    "middle is left out, but at least 2 MiB of each file are kept.",
)
@click.option(
    "--policy",
    "policy_name",
    metavar="NAME",
    default="gandiva",
    show_default=True,
    help="The scheduling policy.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the policy; may be repeated.",
)
@click.option(
    "--cpus",
    metavar="HOW",
    help="How the CPU cores of a node are shared out among its jobs: off, equal, proportional or "
    "sad; the same as --set cpus=HOW.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How the controller and the agents that it starts write their logs: lines of text, or a "
    "JSON object a line.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="P",
    help="The API's port on 127.0.0.1; a free one by default.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Also serve other machines there, over TLS; they join with rota agent. HOST is what they "
    "call this one.",
)
@click.option(
    "--tls-cert",
    metavar="FILE",
    help="A certificate for HOST, with those that it was issued by after it; by default one of the "
    "cluster's own CA.",
)
@click.option("--tls-key", metavar="FILE", help="The key of --tls-cert.")
@click.option(
    "--lease",
    metavar="TIME",
    help="When jobs of a machine that has joined may start elsewhere, if it is not heard; by then "
    "its own processes have stopped. none: never. 60s by default; it stays as it is while machines "
    "are members.",
)
@click.option(
    "--home",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="The state folder; $ROTA_HOME, or one under the XDG data folder, by default.",
)
@click.option("--ui", "shows", is_flag=True, help="Also start the dashboard, as rota ui does.")
def up(
    engine_name: str | None,
    partition: str | None,
    account: str | None,
    time_text: str | None,
    more: tuple[str, ...],
    ray_address: str | None,
    ray_token: str | None,
    namespace: str | None,
    context: str | None,
    image: str | None,
    name: str | None,
    pod_cpus: int | None,
    pod_memory: str | None,
    volumes: tuple[str, ...],
    queue: str | None,
    grace: str | None,
    is_manifest: bool,
    gpus: int | None,
    nodes: str,
    gpu_types: str,
    host_memory: str | None,
    log_limit: str | None,
    policy_name: str,
    settings: tuple[str, ...],
    cpus: str | None,
    log_format: str,
    port: int,
    listen: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    lease: str | None,
    home: str | None,
    shows: bool,
) -> int | None:
    """Start a cluster on this machine: controller, API and an agent for each node.

    It runs until Ctrl-C. Where there is no NVIDIA GPU, each CPU core is a device slot. The API
    listens on 127.0.0.1, and with --listen for other machines as well; every other command finds
    it, and its token, in the state folder.
    Jobs that run when it ends go on, and the next `rota up` takes them over, with their nodes as
    these were; `rota down` ends them.
    """
    # Nothing of what is loaded becomes garbage: to look for some while it is loaded, and again when
    # the program ends, takes a third of the start's time.
    gc.disable()
    try:
        from rota.live.wire.title import title_role
        from rota.policy.registry import create, remark
        from rota.server.up import Listen, run_cluster
    finally:
        gc.freeze()
        gc.enable()

    folder, (least, most) = Folder(home), node_bounds(nodes)
    engine = _engine(
        *(engine_name, folder, (least, most), gpus),
        {"--partition": partition, "--account": account, "--time": time_text, "--sbatch": more},
        {"--ray-address": ray_address, "--ray-token": ray_token},
        {
            "--namespace": namespace,
            "--context": context,
            "--image": image,
            "--name": name,
            "--pod-cpus": pod_cpus,
            "--pod-memory": pod_memory,
            "--volume": volumes,
            "--queue": queue,
            "--grace": grace,
            "--manifest": is_manifest,
        },
        lambda: _agent_options(gpus, gpu_types, host_memory, log_limit, log_format),
    )
    if cpus is not None:
        settings = (*settings, f"cpus={cpus}")
    policy = create(policy_name, parse_settings(policy_name, settings))
    if said := remark(policy):
        click.echo(said, err=True)
    if is_manifest:
        click.echo(_manifest(image, name, namespace, queue), nl=False)
        return 0
    if shows:
        require_toolkit()
    if listen is None and engine_name == "kubernetes":
        from rota.server.kubernetes import own_place

        listen = own_place()
    if listen is None and (tls_cert or tls_key):
        raise InputError("--tls-cert: it is for other machines; give --listen HOST:PORT as well")
    with ExitStack() as beside:

        def greet(url: str, controller: Controller, provider: Provider) -> None:
            _greet(folder, url, controller, provider, engine.engine if engine else "")
            if listen is not None:
                click.echo(f"other machines join at https://{listen}: rota node invite", err=True)
            elif engine is None and (joined := controller.members.names):
                click.echo(f"warning: {without_listen(joined)}", err=True)
            if shows:
                beside.enter_context(_dashboard(folder))

        title_role("controller")
        controller = run_cluster(
            folder,
            policy=policy,
            policy_name=policy_name,
            gpus=gpus,
            nodes=most,
            least_nodes=least,
            gpu_types=_gpu_types(gpu_types),
            host_memory_bytes=None
            if host_memory is None
            else parse_size("--host-memory", host_memory),
            log_limit_bytes=_log_limit_bytes(log_limit),
            log_format=log_format,
            port=port,
            on_listen=greet,
            listen=None if listen is None else Listen(listen, tls_cert, tls_key),
            lease_s=None if lease is None else _lease_s(lease),
            engine=engine,
        )
    if controller.journal.failed:
        why = f": {controller.journal.failure}" if controller.journal.failure else ""
        log = f"see {folder.controller_log}; jobs go on"
        click.echo(f"error: the controller had to stop{why} ({log})", err=True)
        return 1
    living = controller.record.living()
    if living and controller.agents.ends_jobs:
        click.echo(
            f"jobs that have yet to end: {living}; `rota down --now` kills them, "
            "and `rota up` takes over what is left",
            err=True,
        )
    elif living:
        click.echo(
            f"jobs that go on running: {living}; `rota up` takes them over, "
            "and `rota down` after that ends them",
            err=True,
        )
    return 0


def _engine(
    name: str | None,
    folder: Folder,
    nodes: tuple[int | None, int],
    gpus: int | None,
    of_slurm: Mapping[str, Any],
    of_ray: Mapping[str, Any],
    of_kubernetes: Mapping[str, Any],
    agent: Callable[[], list[str]],
) -> SlurmEngine | AllocationEngine | RayEngine | KubernetesEngine | None:
    """The engine of this name for so many nodes, if any; ``agent`` gives the options of its agents.

    Raises InputError for options of another engine.
    """
    engines = {"slurm": of_slurm, "ray": of_ray, "kubernetes": of_kubernetes}
    for engine, options in engines.items():
        unused = next((each for each, value in options.items() if value), None)
        if unused and engine != name:
            raise InputError(
                f"{unused}: it is for nodes of {engine.title()}; give --on {engine} as well"
            )
    if name != "ray":
        from rota.server.ray import check_no_nodes

        check_no_nodes(folder)
    if name != "kubernetes":
        from rota.server.kubernetes import check_no_pods

        check_no_pods(folder)
    least, most = nodes
    bounds = most if least is None else least, most
    if name == "slurm" and os.environ.get("SLURM_JOB_ID"):
        return _allocation(folder, nodes, of_slurm, agent())
    if name == "slurm":
        return _slurm(folder, bounds, of_slurm, *agent())
    if name == "ray":
        from rota.server.ray import RayEngine

        token = of_ray["--ray-token"] and os.path.abspath(of_ray["--ray-token"])
        return RayEngine(folder, bounds, of_ray["--ray-address"], token, gpus, agent())
    if name == "kubernetes":
        from rota.server.kubernetes import KubernetesEngine

        given = _kubernetes(of_kubernetes, gpus)
        own = agent()
        if not gpus and given.cpus:
            own.append(f"--gpus={given.cpus}")
        if given.memory and not any(word.startswith("--host-memory=") for word in own):
            own.append(f"--host-memory={int(given.memory) // 2}")
        tell = partial(click.echo, err=True)
        return KubernetesEngine(folder, bounds, given, own, tell)
    return None


def _kubernetes(asked: Mapping[str, Any], gpus: int | None) -> Options:
    """The options of Kubernetes, checked. Raises InputError."""
    from rota.server.kubernetes import GRACE_S, NAME, NAMESPACE, QUEUE, Options

    image, name, grace = asked["--image"], asked["--name"], asked["--grace"]
    if not image:
        raise InputError(
            "--image: it is missing; give an image that has Rota, such as --image "
            "registry.lab/rota:1 (docs/reference/on-kubernetes.md tells how to build one)"
        )
    if name is not None and not NAME.fullmatch(name):
        raise InputError(
            f"--name: {name!r} is no name for pods; write at most 50 small letters, digits and "
            "hyphens, such as rota-vision"
        )
    for option, form, such in (("--namespace", NAMESPACE, "ml"), ("--queue", QUEUE, "vision")):
        if asked[option] is not None and not form.fullmatch(asked[option]):
            raise InputError(
                f"{option}: {asked[option]!r} is no name in Kubernetes; write at most 63 small "
                f"letters, digits and hyphens, such as {such}"
            )
    memory = asked["--pod-memory"]
    bytes_each = None if memory is None else parse_size("--pod-memory", memory)
    if bytes_each == 0:
        raise InputError(
            f"--pod-memory: {memory!r} is no memory; write for example 64GiB, or leave it out"
        )
    return Options(
        image=image,
        context=asked["--context"],
        namespace=asked["--namespace"],
        name=name,
        gpus=gpus,
        cpus=asked["--pod-cpus"],
        memory=None if bytes_each is None else str(bytes_each),
        queue=asked["--queue"],
        grace_s=GRACE_S if grace is None else math.ceil(seconds_of("--grace", grace)),
        volumes=_volumes(asked["--volume"]),
    )


def _volumes(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Persistent volume claims, and where each pod has them. Raises InputError."""
    from rota.live.provider.kubernetes_pods import SHM

    claims: dict[str, str] = {}
    for text in texts:
        claim, _, path = text.partition(":")
        if not claim or not path.startswith("/") or ":" in path:
            raise InputError(f"--volume: {text!r} is not of the form CLAIM:PATH; write data:/data")
        place = os.path.normpath(path)
        if place in ("/", "//", SHM):
            raise InputError(
                f"--volume: {text!r} takes the place of {path}, which a pod needs itself; give "
                "another path, such as /data"
            )
        if place in claims:
            raise InputError(
                f"--volume: {text!r} is at the path of {claims[place]}; give each claim its own"
            )
        claims[place] = claim
    return [(claim, place) for place, claim in claims.items()]


# Of the machine where the manifest is made, and not for the pod.
NOT_IN_PODS = ("tls_cert", "tls_key", "shows", "listen", "port")


def _manifest(image: str | None, name: str | None, namespace: str | None, queue: str | None) -> str:
    """The manifest of a controller with the options of this call. Raises InputError."""
    from rota.server.kubernetes_manifest import MOST_NAME, manifest

    context = click.get_current_context()
    if namespace is None:
        raise InputError("--namespace: it is missing; name the one that the manifest is for")
    words = [] if name else ["--name=rota"]
    for option in context.command.params:
        assert option.name is not None
        if context.get_parameter_source(option.name) is not ParameterSource.COMMANDLINE:
            continue
        if option.name in NOT_IN_PODS:
            raise InputError(
                f"{option.opts[0]}: a controller that is a pod can't have it; leave it out"
            )
        if option.name in ("is_manifest", "context", "home"):
            continue
        value = context.params[option.name]
        values = value if option.multiple else [value]
        words += [f"{option.opts[0]}={each}" for each in values]
    if name is not None and len(name) > MOST_NAME:
        raise InputError(
            f"--name: {name!r} has {len(name)} characters, and the StatefulSet of a controller "
            f"allows {MOST_NAME}; give a shorter one"
        )
    assert image is not None
    return manifest(name or "rota", namespace, image, words, queue)


def _slurm(
    folder: Folder, bounds: tuple[int, int], asked: Mapping[str, Any], *agent: str
) -> SlurmEngine:
    """The pilots that are asked for; ``agent`` are options of their agents."""
    from rota.live.provider.slurm import options
    from rota.server.slurm import SlurmEngine

    for word in asked["--sbatch"]:
        if not OPTION.fullmatch(word):  # sbatch would take it as the script of the pilots
            raise InputError(
                f"--sbatch: {word!r} is no option of sbatch; write it whole in one word, such as "
                "--sbatch=--qos=high"
            )
    minutes = None
    if asked["--time"] is not None:
        minutes = math.ceil(seconds_of("--time", asked["--time"]) / 60)
    words = options(asked["--partition"], asked["--account"], minutes, asked["--sbatch"])
    return SlurmEngine(folder, bounds, words, agent)


def _allocation(
    folder: Folder, nodes: tuple[int | None, int], asked: Mapping[str, Any], agent: Sequence[str]
) -> AllocationEngine:
    """The nodes of the allocation in which this runs. Raises InputError for options of pilots."""
    from rota.server.slurm import AllocationEngine

    job = os.environ["SLURM_JOB_ID"]
    if unused := next((name for name, value in asked.items() if value), None):
        raise InputError(
            f"{unused}: it is for pilots, and this runs in Slurm's job {job}, whose nodes are used "
            "as they are; leave it out, or unset SLURM_JOB_ID for pilots"
        )
    engine = AllocationEngine(folder, agent)
    source = click.get_current_context().get_parameter_source("nodes")
    if source is not ParameterSource.DEFAULT and nodes != (None, engine.bounds[1]):
        raise InputError(
            f"--nodes: Slurm's job {job} has {engine.bounds[1]}, which are all used; leave it out"
        )
    return engine


def _agent_options(
    gpus: int | None,
    gpu_types: str,
    host_memory: str | None,
    log_limit: str | None,
    log_format: str,
) -> list[str]:
    """Options of the agents on other machines. Raises InputError."""
    types = _gpu_types(gpu_types)
    if len(types) > 1:
        raise InputError(f"--gpu-types: {gpu_types} names {len(types)} types; give one for all")
    if host_memory is not None:
        parse_size("--host-memory", host_memory)
    _log_limit_bytes(log_limit)
    given = {
        "--gpus": gpus,
        "--gpu-type": types[0] if types else None,
        "--host-memory": host_memory,
        "--log-limit": log_limit,
        "--log-format": log_format,
    }
    return [f"{name}={value}" for name, value in given.items() if value is not None]


@contextmanager
def _dashboard(folder: Folder) -> Iterator[None]:
    """The dashboard of this cluster beside it: a process of its own, ended with the controller.

    If this process is killed, the kernel kills the dashboard: one that is started anew finds
    neither its lock nor its port taken.
    """
    environment = {key: value for key, value in os.environ.items() if key != "ROTA_SERVER"}
    process = subprocess.Popen(
        [sys.executable, "-m", "rota.cli.main", "ui"],
        stdin=subprocess.DEVNULL,
        env=environment | {"ROTA_HOME": str(folder.path)},
        preexec_fn=partial(ctypes.CDLL(None).prctl, PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _lease_s(text: str) -> float:
    """How long a lease lasts; infinity for ever."""
    if text == "none":
        return math.inf
    lasts_s = seconds_of("--lease", text)
    if lasts_s < LEAST_LEASE_S:
        least = f"{LEAST_LEASE_S:g}s"
        raise InputError(f"--lease: {text!r} is less than {least}; write {least} or more, or none")
    return lasts_s


def _log_limit_bytes(text: str | None) -> int | None:
    from rota.live.agent.logs import LEAST_LIMIT_BYTES

    size = None if text is None else parse_size("--log-limit", text)
    if size is not None and size < LEAST_LIMIT_BYTES:
        least = f"{LEAST_LIMIT_BYTES >> 20}MiB"
        raise InputError(f"--log-limit: {text!r} is less than {least}; write {least} or more")
    return size


def node_bounds(text: str) -> tuple[int | None, int]:
    """The least and the most nodes; None for the least of a number that stays as it is."""
    first, dots, last = text.partition("..")
    numbers = [int(word) if word.isdecimal() else 0 for word in (first, last or first)]
    if not 1 <= numbers[0] <= numbers[1] <= MOST_NODES or (dots and not last):
        raise InputError(
            f"--nodes: {text!r} is no number of nodes; write one from 1 to {MOST_NODES}, or the "
            "least and the most as 1..4"
        )
    return numbers[0] if dots else None, numbers[1]


def _gpu_types(text: str) -> list[str]:
    types = [word.strip() for word in text.split(",")] if text else []
    for word in types:
        if not word or not word.replace("-", "").replace("_", "").isalnum() or not word.isascii():
            raise InputError(
                f"--gpu-types: {word!r} is no name of a GPU type; use letters, digits, - and _, "
                "and a comma between types"
            )
    return types


def without_listen(joined: Set[str]) -> str:
    """Warning about machines that have joined, and can't call this controller."""
    return (
        f"no other machine can call this controller, and {few(sorted(joined, key=natural))} joined "
        "the cluster: start it with --listen HOST:PORT, or their jobs start anew once their leases "
        "are over"
    )


def share_of_one(given: Mapping[str, Any], users: Set[str]) -> str:
    """Warning about shares between users while all jobs are of one; "" if there is nothing."""
    if given.get("fair_share") != "user" or len(users) > 1:
        return ""
    whose = f": all so far are of {printable(*users)}" if users else ""
    return (
        f"fair_share=user has no effect before there are jobs of a second user{whose}; "
        "fair_share=vc shares between queues (rota run --queue)"
    )


def _greet(
    folder: Folder, url: str, controller: Controller, provider: Provider, engine: str
) -> None:
    from rota.live.provider.local import LocalProvider

    given = controller.policy_settings
    local = provider if isinstance(provider, LocalProvider) else None
    nodes = _own_nodes(local) if local else _asked_nodes(provider, engine)
    lines = greeting(folder, url, controller.policy_name, given, nodes)
    living = controller.record.living()
    if local and local.taken_over and living:
        names = ", ".join(node.name for node in local.taken_over)
        lines.append(f"taken over: {living} job{'s'[: living != 1]} that had started, on {names}")
    if controller.room.is_tight:
        lines.append(f"warning: {controller.room.complaint()}")
    if warning := share_of_one(given, {spec.user for spec in controller.state.spec}):
        lines.append(f"warning: {warning}")
    for difference in local.differences() if local else ():
        lines.append(f"{difference}, because jobs may be there; `rota down` frees it")
    click.echo("\n".join(lines), err=True)


def greeting(
    folder: Folder, url: str, policy_name: str, given: Mapping[str, Any], nodes: str
) -> list[str]:
    """The six lines that greet whoever has started a cluster; only chosen settings are named."""
    from rota.model.setting import setting_text
    from rota.policy.registry import settings

    known = settings(policy_name)
    chosen = [
        f"{key}={setting_text(value)}"
        for key, value in given.items()
        if key not in known or value != known[key].default
    ]
    return [
        f"rota is up at {url}",
        f"policy: {policy_name}, {' '.join(chosen) or 'with its defaults'}",
        f"nodes:  {nodes}",
        f"state:  {folder.path} (the token is in its file {folder.token.name})",
        "In another terminal: rota run -- python train.py; then rota ps, rota why, rota ui",
        "Ctrl-C here stops the controller, and jobs go on; rota down ends all",
    ]


def _own_nodes(provider: LocalProvider) -> str:
    nodes: list[LocalNode] = [
        node for name, node in provider.layout.items() if name in provider.names
    ]
    more = f", and up to {provider.bounds[1]} in all" if provider.bounds else ""
    return ", ".join(f"{node.name} ({_offer(node)})" for node in nodes) + more


def _offer(node: LocalNode) -> str:
    """The slots that a node offers, with the machine's number if the node has all of them."""
    if node.gpus is not None:
        return node.offers
    from rota.live.agent.devices import offered_ids

    if gpus := len(offered_ids()):
        return node._replace(gpus=gpus).offers
    cores = len(os.sched_getaffinity(0))
    return f"{cores} slot{'s'[: cores != 1]}, one for each CPU core"


def _asked_nodes(provider: Provider, engine: str) -> str:
    least, most = provider.bounds or (0, 0)
    count = str(least) if least == most else f"{least}..{most}"
    return f"{count} of {engine}, {len(provider.nodes())} asked for by now (rota nodes)"


@click.command()
@click.option("--home", type=click.Path(file_okay=False), metavar="DIR", help="The state folder.")
@click.option("--now", is_flag=True, help="Kill everything at once, whether or not it answers.")
def down(home: str | None, now: bool) -> int:
    """End the cluster on this machine: jobs, agents and controller.

    Programs get SIGTERM, and SIGKILL after their jobs' grace. It waits until nothing is left, and
    tells for whom; Ctrl-C leaves the cluster to end by itself. With --now all get SIGKILL, also
    agents that are stopped and jobs without a controller. Exit code 1 if something lives on.

    Jobs that had not ended start anew with the next `rota up`.
    """
    folder, remote = Folder(home), os.environ.get("ROTA_SERVER")
    if now and remote:
        raise InputError(
            f"--now: it kills processes of this machine, and ROTA_SERVER is {remote}; "
            "run it where the cluster runs, without ROTA_SERVER"
        )
    try:
        left = _kill(folder) if now else _end(folder)
    except KeyboardInterrupt:
        click.echo(
            "\nthe cluster goes on ending; `rota down` waits for it again, and "
            "`rota down --now` kills what is left",
            err=True,
        )
        return 130
    if left:
        names = "; ".join(left[:MOST_NAMED])
        more = f"; and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
        hint = "they can't be killed by you" if now else "`rota down --now` kills them"
        click.echo(f"error: processes of the cluster live on: {names}{more}; {hint}", err=True)
        return 1
    click.echo(
        "the cluster has ended; unfinished jobs start anew with the next `rota up`", err=True
    )
    return 0


def _kill(folder: Folder) -> list[str]:
    from rota.server.down import end_by_force

    return [str(each) for each in end_by_force(folder)]


def _end(folder: Folder) -> list[str]:
    """End the cluster in order; who lives on although its controller answers no more."""
    from rota.client.client import Client, who_is_left

    told = ""

    def tell(ending: dict[str, Any]) -> None:
        nonlocal told
        names = who_is_left(ending)
        if names != told and (ending["jobs"] or ending["agents"]):
            hint = "" if told else "; Ctrl-C leaves them to end, `rota down --now` kills them"
            told = names
            click.echo(f"waiting for {printable(names)}{hint}", err=True)

    try:
        with Client(folder=folder) as client:
            client.shut_down(timeout_s=None, told=tell)
    except UnreachableError:
        if folder.controller_lock.exists() and is_locked(folder.controller_lock):
            raise UnreachableError(
                f"the controller of {folder.path} does not answer; `rota down --now` kills it, "
                "its agents and its jobs"
            ) from None
        if any(is_locked(path) for path in folder.path.glob("nodes/*/agent.lock")):
            raise UnreachableError(
                f"no controller runs on {folder.path}, but an agent and its jobs do; "
                "`rota down --now` kills them; or `rota up` takes them over, and `rota down` then "
                "ends them"
            ) from None
        raise
    return [] if os.environ.get("ROTA_SERVER") else _left_after(folder)


def _left_after(folder: Folder) -> list[str]:
    """Processes that outlive the controller's last answer, and the controller if that does.

    A controller and an agent that have let go of all may take a moment to end.
    """
    from rota.server.down import living

    deadline = time.monotonic() + SETTLE_S
    while True:
        left = [str(each) for each in living(folder).values()]
        left += ["the controller"] * is_locked(folder.controller_lock)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)
