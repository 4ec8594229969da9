"""An attempt of an agent that is not there, for what needs no further ranks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rota.errors import AgentError
from rota.live.agent.attempt import Attempt
from rota.live.agent.launching import Starter
from rota.live.agent.record import record_from
from rota.live.agent.world import World
from rota.live.wire import Message


async def no_fork(request: dict[str, Any]) -> int:
    """Refuse to start a rank."""
    raise AgentError("there is no agent")


def attempt_in(
    folder: Path,
    record: dict[str, Any],
    notify: Callable[[Message], None],
    requests: Callable[..., list[dict[str, Any]]] = lambda *_, **__: [],
    world: World | None = None,
) -> Attempt:
    """An attempt with this record in a folder, which holds its arenas as well."""
    return Attempt(record_from(record), folder, notify, Starter(no_fork, requests), folder, world)
