"""An agent's identity: an id that lies in its folder, and the start and boot that it is of."""

import contextlib
import json
import secrets
from pathlib import Path
from typing import NamedTuple

from rota.live.wire.clock import boot_id

FILE = "agent.json"  # in a node's folder


class Identity(NamedTuple):
    """One process of an agent: random ``agent`` id, number of its ``start``, the machine's boot."""

    agent: str
    start: int
    boot_id: str


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
    return Identity(agent, starts + 1, boot_id())
