"""An agent's identity: the id in its folder, the number of its start, the boot and the machine."""

import contextlib
import hashlib
import json
import secrets
from pathlib import Path
from typing import NamedTuple

from rota.live.wire.clock import boot_id

FILE = "agent.json"  # in a node's folder
MACHINE_ID = Path("/etc/machine-id")


class Identity(NamedTuple):
    """One process of an agent: random ``agent`` id, number of its ``start``, the machine's boot.

    Whoever has a copy of the folder has the agent's id, and another ``machine`` or another boot.
    """

    agent: str
    start: int
    boot_id: str
    machine: str


def begin(folder: Path) -> Identity:
    """The identity of an agent that starts on a node's folder; the start is counted there.

    A folder that can't be written keeps no agent from starting.
    """
    agent, starts = secrets.token_hex(8), 0
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        told = json.loads((folder / FILE).read_text())
        agent, starts = str(told["agent"]), int(told["starts"])
    with contextlib.suppress(OSError):
        draft = folder / f"{FILE}.new"
        draft.write_text(json.dumps({"agent": agent, "starts": starts + 1}))
        draft.replace(folder / FILE)
    return Identity(agent, starts + 1, boot_id(), machine_of(folder))


def machine_of(folder: Path) -> str:
    """Identifies the machine together with this very folder; "" if there is no such folder.

    A copy of the folder is another one, also beside it or in a container on the same machine.
    """
    try:
        found, machine_id = folder.stat(), ""
    except OSError:
        return ""
    with contextlib.suppress(OSError):  # in containers
        machine_id = MACHINE_ID.read_text().strip()
    about = f"{machine_id} {found.st_ino}"  # a file system's number may be another after a boot
    return hashlib.sha256(about.encode()).hexdigest()[:16]
