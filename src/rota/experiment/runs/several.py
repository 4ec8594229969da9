"""A real cluster of several machines of one's own, made of namespaces: each joins by its token."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from rota.client.client import Client
from rota.client.trust import fingerprint_of
from rota.errors import InputError
from rota.experiment.runs import hosts
from rota.experiment.runs.live import are_connected, raising_at_sigterm, wait_until
from rota.folder import Folder

PORT = 7800


def check_hosts() -> None:
    """Raise InputError if there can be no hosts here."""
    if reason := hosts.why_none():
        raise InputError(f"--hosts: {reason}; leave it out for this machine alone")


@contextlib.contextmanager
def cluster_of_hosts(
    base: Path, number: int, *, gpus: int, policy: str, settings: Mapping[str, str]
) -> Iterator[Client]:
    """``rota up --listen`` on one host, and the agents of others, which join it over TLS.

    Each has so many slots, and a state folder in ``base`` that no other host sees. No process is
    left behind, also after SIGTERM, unless a handler of the caller's own is there. Raises
    SimulationError if it does not start.
    """
    homes = [base / f"host{index}" for index in range(number)]
    for home in homes:
        home.mkdir(parents=True)
    with raising_at_sigterm(), hosts.lan() as lan, contextlib.ExitStack() as stack:
        machines = [lan.host(home.name, [each for each in homes if each != home]) for home in homes]

        def start(index: int, *words: str) -> tuple["subprocess.Popen[str]", Path]:
            log = homes[index].with_suffix(".log")
            command = [sys.executable, "-m", "rota.cli.main", *words]
            command += ["--home", str(homes[index]), "--gpus", str(gpus)]
            environment = {k: v for k, v in os.environ.items() if not k.startswith("ROTA_")}
            environment["XDG_RUNTIME_DIR"] = str(homes[index])
            output = stack.enter_context(log.open("w"))
            return machines[index].start(command, environment, output), log

        place, folder = f"{machines[0].address}:{PORT}", Folder(homes[0])
        given = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        process, log = start(0, "up", "--listen", place, "--policy", policy, *given)
        wait_until(folder.server.exists, process, log)
        token, ca = folder.token.read_text().strip(), str(folder.tls / "ca.pem")
        client = stack.enter_context(Client(f"https://{place}", token, ca=ca))
        for index in range(1, number):
            invitation = client.invite()
            words = ["--join", invitation["url"], "--token", invitation["token"]]
            words += ["--ca", fingerprint_of(invitation["certificate"])]
            process, log = start(index, "agent", *words)
            wait_until(partial(are_connected, client, 1 + index), process, log)
        yield client  # what runs on the hosts ends with them
