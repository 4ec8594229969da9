"""The process that speaks with Ray for a controller: requests come and answers go as lines of JSON.

Ray ends a driver that can't reach it for a minute, and a controller has to outlive that: its driver
is a process of its own (:mod:`rota.live.provider.ray` starts it). It ends with its controller; the
groups and actors that it has asked for are detached, and stay.
"""

import contextlib
import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from rota.errors import pip_install

RAY = re.compile(r"2[.]60[.]")  # the versions that Rota is tested with
CONNECT_S = 5.0  # for the head to take a connection
ACTOR_S = 3.0  # for actors to answer
KEEPER_S = 2.0  # for a keeper that is killed to be gone
POLL_S = 0.02
GONE_S = 20.0  # for actors and groups that were given back to be gone
KILL_S = 30.0  # for the processes of a host to be gone
LAST_WORDS_BYTES = 4096
IN_ORDER = (0, 5)  # the exit codes of an agent that was told to end, or is not wanted
NOT_ITS_OWN = ("RAY_", "OMP_NUM_THREADS", "PYTHONBREAKPOINT")  # what Ray sets for its workers
COUNTED = "GPU", "CPU"  # what is claimed of a node: all of the first kind that any node has

# An agent that dies leaves its jobs to the next one. 0: it was told to end; 5: it is not wanted.
# The keeper holds the lock that is its input; so long as it lives, there is no second one.
KEEP_ALIVE = """\
echo $$ >keeper.pid
tries=0 code=1
while [ $tries -lt 10 ]; do
  began=$(date +%s)
  "$@" </dev/null
  code=$?
  case $code in 0|5) break ;; esac
  if [ $(($(date +%s) - began)) -lt 10 ]; then tries=$((tries + 1)); else tries=0; fi
  sleep 1
done
echo $code >keeper.code"""


class Trouble(Exception):
    """Ray can't be spoken with: the reason, in its own words, and what to do.

    ``is_silence``: it did not answer, and may do so later.
    """

    def __init__(self, text: str, *, is_silence: bool = False) -> None:
        super().__init__(text)
        self.is_silence = is_silence


# -- on a node -------------------------------------------------------------------------------------


class Keeper(NamedTuple):
    """A process that keeps an agent of the node ``name`` alive on this machine: nobody's child."""

    home: str
    name: str

    @property
    def place(self) -> Path:
        """The folder of the node."""
        return Path(self.home, "nodes", self.name)

    def is_alive(self) -> bool:
        """True if it keeps an agent alive here."""
        try:
            with open(self.place / "keeper.lock", "r+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def start(self, admitted: str, agent: Sequence[str]) -> None:
        """Start it, unless it is alive or has ended in good order."""
        Path(self.home).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self.place / "keeper.lock", "ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            if (self.place / "keeper.code").exists():
                return
            (self.place / "keeper.pid").unlink(missing_ok=True)  # another process may have it now
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            with os.fdopen(os.open(self.place / "joined.json", flags, 0o600), "w") as joined:
                joined.write(admitted)
            own = {key: each for key, each in os.environ.items() if not key.startswith(NOT_ITS_OWN)}
            command = [sys.executable, *agent, "--node", self.name]
            with open(self.place / "agent.log", "ab") as log:
                # Ray ends the children of its workers; `setsid --fork` leaves it none.
                subprocess.run(
                    ["setsid", "--fork", "sh", "-c", KEEP_ALIVE, "agent", *command],
                    cwd=self.place,
                    env=own,
                    stdin=lock,
                    stdout=log,
                    stderr=log,
                    check=True,
                )

    def state(self) -> dict[str, Any]:
        """Its life, and once it is over the agent's last exit code and the last line it wrote."""
        if self.is_alive():
            return {"is_alive": True, "code": None, "words": ""}
        try:
            code = int((self.place / "keeper.code").read_text())
        except (OSError, ValueError):
            code = None
        return {"is_alive": False, "code": code, "words": self._last_words()}

    def kill(self) -> bool:
        """Kill it and its agent, if it is alive. Returns True when it is not."""
        deadline = time.monotonic() + KEEPER_S
        while is_alive := self.is_alive():
            # A keeper that has just begun has yet to write its pid.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
                os.killpg(int((self.place / "keeper.pid").read_text()), 9)
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        return not is_alive

    def _last_words(self) -> str:
        try:
            with open(self.place / "agent.log", "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


class Agent:
    """The actor of a node. It starts what keeps the agent alive, or finds it, and tells of it."""

    def __init__(self, host: str, home: str, name: str, admitted: str, agent: list[str]) -> None:
        import ray

        own = ray.get_runtime_context().get_node_id()
        if own != host:
            raise RuntimeError(
                f"the agent of {name} belongs to Ray's node {host}, and not to {own}"
            )
        self._keeper, self._start = Keeper(home, name), (admitted, agent)
        self._keeper.start(*self._start)

    def state(self) -> dict[str, Any]:
        """The keeper's state; one that was killed is replaced."""
        told = self._keeper.state()
        if not told["is_alive"] and told["code"] is None:
            self._keeper.start(*self._start)
            told = self._keeper.state()
        return told

    def kill(self) -> bool:
        """Kill the agent, if it is alive. Returns True when it is not."""
        return self._keeper.kill()


def is_over(home: str, name: str) -> bool:
    """True if the node's agent has ended here in good order, with all jobs, or was never here."""
    keeper = Keeper(home, name)
    told = keeper.state()
    was_here = (keeper.place / "keeper.lock").exists()
    return not told["is_alive"] and (told["code"] in IN_ORDER or not was_here)


def kill_all(command: list[str], home: str, name: str) -> str:
    """Kill all of the cluster on this machine by a ``command``; its words if that can't be."""
    is_killed = Keeper(home, name).kill()
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=KILL_S
    )
    if done.returncode:
        return done.stderr.strip()
    return "" if is_killed else "what keeps its agent alive can't be killed"


# -- of the driver ---------------------------------------------------------------------------------


class Driver:
    """The groups and actors of the cluster of this name, which is also a namespace of Ray.

    ``head`` is the address of Ray's head, "" if it is not known.
    """

    def __init__(self, cluster: str, ray: Any, head: str) -> None:
        from ray.util.scheduling_strategies import (
            NodeAffinitySchedulingStrategy,
            PlacementGroupSchedulingStrategy,
        )

        self.head = head
        # A function of the same name hides the module.
        self._ray, self._groups = ray, import_module("ray.util.placement_group")
        self._on, self._in = NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
        self._own = re.compile(rf"{re.escape(cluster)}-[0-9]+\Z")

    def look(self, doubted: Mapping[str, str] | None = None, home: str = "") -> dict[str, Any]:
        """The groups, the actors and their agents by name, and Ray's nodes by id.

        Of the nodes ``doubted``, by the ids of their hosts, ``over`` has those of which the host
        itself says that it has no agent.
        """
        hosts = {node["NodeID"]: node for node in self._ray.nodes()}
        there = {
            name: host for name, host in (doubted or {}).items() if hosts.get(host, {}).get("Alive")
        }
        tasks = {
            name: self._ray.remote(is_over)
            .options(num_cpus=0, max_retries=0, scheduling_strategy=self._on(host, soft=False))
            .remote(home, name)
            for name, host in there.items()
        }
        return {
            "groups": {
                group["name"]: {
                    "id": group["placement_group_id"],
                    "state": group["state"],
                    "words": group["stats"]["scheduling_state"],
                    "host": group["bundles_to_node_id"].get(0, ""),
                }
                for group in self._own_groups()
            },
            "agents": self._agents(),
            "hosts": {
                host: {
                    "is_alive": node["Alive"],
                    "address": node["NodeManagerAddress"],
                    "words": node["DeathReasonMessage"],
                }
                for host, node in hosts.items()
            },
            "over": [name for name, told in self._answers(tasks).items() if told is True],
        }

    def ask(self, names: list[str], gpus: int | None) -> bool:
        """Ask for a group for each name: a whole node, which ``gpus`` may narrow down.

        A name that Ray has already is not asked for again. Returns True.
        """
        known = {group["name"]: group for group in self._own_groups()}
        taken = {group["bundles_to_node_id"].get(0, "") for group in known.values()}
        sizes = claims(self._ray.nodes(), taken, gpus)
        for name in names:
            if name not in known:
                claim = sizes.pop(0) if len(sizes) > 1 else sizes[0]
                self._groups.placement_group(
                    [claim], strategy="STRICT_SPREAD", name=name, lifetime="detached"
                )
        return True

    def start(self, name: str, host: str, home: str, admitted: str, agent: list[str]) -> str:
        """Have an actor in the group of this name start the agent on a host, or find it there.

        Returns why the actor can't begin; "" if it does, or has yet to.
        """
        group = self._groups.get_placement_group(name)
        claim = group.bundle_specs[0]
        # The actor claims what the group has, so that Ray names its GPUs to it.
        options = {"num_cpus": claim.get("CPU", 0), "num_gpus": claim.get("GPU", 0)}
        made = self._ray.remote(Agent).options(
            name=name,
            lifetime="detached",
            max_restarts=0,
            scheduling_strategy=self._in(group, 0),
            **options,
        )
        state = made.remote(host, home, name, admitted, agent).state.remote()
        try:
            self._ray.get(state, timeout=ACTOR_S)
        except self._ray.exceptions.ActorDiedError as error:
            if error.actor_init_failed:
                return str(error).strip().splitlines()[-1]
        except self._ray.exceptions.RayError:  # the next look tells of it
            pass
        return ""

    def give_back(self, names: list[str]) -> None:
        """Kill agents of nodes that are given back, if they live yet, then actors and groups.

        A node stays whose actor does not answer, or can't kill its agent.
        """
        actors = self._actors()
        ends = {name: actors[name].kill.remote() for name in names if name in actors}
        killed = {name for name, is_killed in self._answers(ends).items() if is_killed}
        for name in killed:
            self._ray.kill(actors[name])
        for group in self._own_groups():
            if group["name"] in names and (group["name"] in killed or group["name"] not in ends):
                with contextlib.suppress(ValueError):  # it has gone meanwhile
                    named = self._groups.get_placement_group(group["name"])
                    self._groups.remove_placement_group(named)

    def end_by_force(self, hosts: Mapping[str, str], home: str, command: list[str]) -> list[str]:
        """Kill all of the cluster on these hosts, by name of a node, then what Ray has of it.

        Returns what could not be done, a sentence each.
        """
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        tasks = {
            name: self._ray.remote(kill_all)
            .options(num_cpus=0, max_retries=0, scheduling_strategy=self._on(host, soft=False))
            .remote(command, home, name)
            for name, host in hosts.items()
            if host in alive
        }
        told = self._answers(tasks, KILL_S + ACTOR_S)
        deadline = time.monotonic() + GONE_S
        while (left := self._own_groups()) and time.monotonic() < deadline:
            self.give_back([group["name"] for group in left])
            time.sleep(0.1)
        return [
            *(f"node {name}: {words}" for name, words in told.items() if words),
            *(f"node {name}: its host does not answer" for name in tasks.keys() - told.keys()),
            *(
                f"node {name}: Ray does not hear its host, where jobs may run until their lease "
                "is over; `rota up` waits for that"
                for name in hosts.keys() - tasks.keys()
            ),
            *(f"placement group {group['name']}: {group['state']}" for group in left),
        ]

    def _own_groups(self) -> list[dict[str, Any]]:
        table = self._groups.placement_group_table().values()
        return [
            group
            for group in table
            if self._own.match(group["name"]) and group["state"] != "REMOVED"
        ]

    def _actors(self) -> dict[str, Any]:
        found = {}
        for name in filter(self._own.match, self._ray.util.list_named_actors()):
            try:
                found[name] = self._ray.get_actor(name)
            except ValueError:  # it has ended meanwhile
                continue
        return found

    def _agents(self) -> dict[str, Any]:
        """The actors, each with the state of its agent if it answers."""
        actors = self._actors()
        states = self._answers({name: actor.state.remote() for name, actor in actors.items()})
        return {
            name: {"id": actor._actor_id.hex(), "state": states.get(name)}
            for name, actor in actors.items()
        }

    def _answers(self, asked: Mapping[str, Any], timeout_s: float = ACTOR_S) -> dict[str, Any]:
        """The answers that come in time, by name; an exception is none."""
        if not asked:
            return {}
        ready, _ = self._ray.wait([*asked.values()], num_returns=len(asked), timeout=timeout_s)
        found = {}
        for name, each in asked.items():
            if each in ready:
                try:
                    found[name] = self._ray.get(each)
                except self._ray.exceptions.RayError as error:
                    print(f"{name}: {error}", file=sys.stderr)
        return found


def claims(
    nodes: Sequence[Mapping[str, Any]], taken: Collection[str], gpus: int | None
) -> list[dict[str, float]]:
    """The claims on ``nodes``, as ``ray.nodes()`` tells them, one after another.

    These are all GPUs of a node, or so many; where no node has any, all its CPUs. The largest come
    first; the last one is for all further nodes, which are to be as large as any. Nodes whose ids
    are ``taken`` have been claimed.
    """
    alive = [node for node in nodes if node["Alive"]]
    for kind in COUNTED:
        sizes = {node["NodeID"]: node["Resources"].get(kind, 0.0) for node in alive}
        if any(sizes.values()):
            if gpus is not None and kind == "GPU":
                return [{kind: float(gpus)}]
            free = sorted((size for host, size in sizes.items() if host not in taken), reverse=True)
            return [*({kind: size} for size in free if size), {kind: max(sizes.values())}]
    return [{"CPU": 1.0}]


def connect(address: str | None, cluster: str) -> Driver:
    """Connect to the Ray at an address, or the one that this machine is a node of.

    No Ray is ever started. Raises Trouble.
    """
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    if address == "local":
        raise Trouble(
            "the address local (--ray-address, else RAY_ADDRESS) would start a Ray of its own; "
            "give --ray-address HOST:PORT, that of Ray's head"
        )
    try:
        import ray
    except ImportError as error:
        raise Trouble(f"{error}; install it with: {pip_install('ray')}") from None
    if not RAY.match(ray.__version__):
        raise Trouble(
            f"ray {ray.__version__} is installed here, and Rota needs ray>=2.60,<2.61; install "
            f"it on all nodes: {pip_install('ray')}"
        )
    if "://" not in address and address != "auto":
        _check_place(address)
    try:
        ray.init(address=address, namespace=cluster, log_to_driver=False, logging_level="ERROR")
    except (Exception, SystemExit) as error:
        raise _told(error) from None
    # A client of Ray (ray://) knows its own server alone.
    head = "" if "://" in address else str(ray.get_runtime_context().gcs_address)
    return Driver(cluster, ray, head)


def _check_place(address: str) -> None:
    """Raise Trouble if nobody listens there: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except ValueError:
        raise Trouble(
            f"{address!r} is no address; write --ray-address HOST:PORT, that of Ray's head"
        ) from None
    except OSError as error:
        raise Trouble(
            f"no Ray answers at {address}: {error.strerror or error}; give the address of its "
            "head with --ray-address, such as 10.0.0.1:6379 (`ray start` prints it there)",
            is_silence=True,
        ) from None


def _told(error: BaseException) -> Trouble:
    """Ray's own words about why it can't be connected to, and the fix."""
    text = " ".join(str(error).split()).rstrip(".")
    if "Version mismatch" in text:
        return Trouble(f"{text}; run rota with the cluster's Ray and Python")
    if type(error).__name__ == "AuthenticationError":
        return Trouble(f"{text}; give the path of the cluster's own token with --ray-token")
    return Trouble(
        f"{text}; is it the cluster's address (--ray-address), does this machine belong to it "
        "(`ray status`), and is the token the cluster's (--ray-token)?",
        is_silence=True,
    )


def main() -> None:
    """Answer requests until there are no more: ``python -m ... ADDRESS CLUSTER FD``."""
    address, cluster, number = sys.argv[1:]
    with socket.socket(fileno=int(number)) as channel, channel.makefile("rw") as lines:

        def answer(**told: Any) -> None:
            lines.write(json.dumps(told) + "\n")
            lines.flush()

        try:
            driver = connect(address or None, cluster)
        except Trouble as trouble:
            answer(error=str(trouble), is_silence=trouble.is_silence)
            return
        answer(value=driver.head)
        calls: dict[str, Callable[..., Any]] = {
            "look": driver.look,
            "ask": driver.ask,
            "start": driver.start,
            "give_back": driver.give_back,
            "end_by_force": driver.end_by_force,
        }
        for line in lines:
            asked = json.loads(line)
            try:
                answer(value=calls[asked.pop("do")](**asked))
            except Exception as error:  # Ray's, of many kinds: its words are told
                answer(error=" ".join(str(error).split()), is_silence=False)
        os._exit(0)  # without a word of farewell, which Ray's would wait for


if __name__ == "__main__":
    main()
