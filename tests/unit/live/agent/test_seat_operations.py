from types import SimpleNamespace
from typing import Any, cast

from rota.live.agent.attempt_report import Account
from rota.live.agent.devices import Devices
from rota.live.agent.island_link import IslandLink
from rota.live.agent.seat import FlowSeat
from rota.live.agent.states import State
from rota.live.wire.island import Seen


def seen(operations: int | None) -> Seen:
    """What the host tells of a client that has done so many operations; None: there is none."""
    return Seen(
        key="1.1.secret",
        present=operations is not None,
        away=False,
        devices=[0],
        operations=operations or 0,
        outstanding=0,
        spent_s=[],
        held_bytes=[],
        memory_bytes=1,
        pids=[],
        slices=[],
        waits="nobody",
    )


def test_the_progress_of_a_flow_job_counts_the_operations_of_its_clients_one_after_another():
    told: list[Any] = []
    attempt = SimpleNamespace(
        record=SimpleNamespace(
            job_id="1", attempt=1, secret="secret", flow={"idle_s": None, "weight": 1.0}
        ),
        state=State.RUNNING,
        progress={},
        note_progress=lambda progress: told.append(progress["step"]),
        world=SimpleNamespace(monotonic_s=lambda: 0.0, now_s=lambda: 0.0),
    )
    seat = FlowSeat(cast(Account, attempt), cast(IslandLink, None), cast(Devices, None))
    for operations in (5, 9, None, None, 2, 1, 4, None):
        seat.seen(seen(operations), {})
    assert told == [5, 9, 9, 9, 11, 11, 13, 13]
