from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rota.live.agent.attempt_report import Account
from rota.live.agent.devices import Devices
from rota.live.agent.island_link import IslandLink
from rota.live.agent.seat import FlowSeat
from rota.live.agent.states import State
from rota.live.wire.island import Runs, Seen
from rota.live.wire.messages import is_flow_use


def seen(operations: int | None, runs: Sequence[Runs] = ()) -> Seen:
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
        runs=list(runs),
    )


def a_seat(told: list[Any], idle_s: float | None = None, **more: Any) -> FlowSeat:
    """The seat of a job that runs; ``told`` gets its progress."""
    attempt = SimpleNamespace(
        record=SimpleNamespace(
            job_id="1", attempt=1, secret="secret", flow={"idle_s": idle_s, "weight": 1.0}
        ),
        state=State.RUNNING,
        progress={},
        note_progress=told.append,
        **{"world": SimpleNamespace(monotonic_s=lambda: 0.0, now_s=lambda: 0.0)} | more,
    )
    return FlowSeat(cast(Account, attempt), cast(IslandLink, None), cast(Devices, None))


def test_what_a_flow_job_waits_for_to_leave_its_gpus_is_told_once_it_is_to_leave():
    told: list[Any] = []
    seat = a_seat(told)
    runs = [Runs("late\n", 1, 8.0), Runs("x" * 300, 0, 7.0)]
    for state, moves in ((State.RUNNING, False), (State.SUSPENDING, False), (State.RUNNING, True)):
        seat._attempt.state, seat.is_moving = state, moves
        seat.seen(seen(1, runs), {})
        runs = runs[:1]
    assert [each["flow"]["awaited"] for each in told] == [
        None,
        {"operation": "late", "device": 1, "since_s": 8.0},
        {"operation": "late", "device": 1, "since_s": 8.0},
    ]
    seat.seen(seen(1, [Runs("x" * 300, 0, 7.0), *runs]), {})
    assert told[-1]["flow"]["awaited"] == {"operation": "x" * 200, "device": 0, "since_s": 7.0}
    assert is_flow_use(told[-1]["flow"])


@pytest.mark.parametrize("connects_s", [None, 3])
def test_a_job_is_idle_after_its_time_without_an_operation_whether_it_has_connected_or_not(
    connects_s: int | None,
) -> None:
    said: list[tuple[int, str]] = []
    now_s = 0
    world = SimpleNamespace(monotonic_s=lambda: float(now_s), now_s=lambda: float(now_s))
    seat = a_seat([], 10.0, world=world, about=str, notify=lambda kind: said.append((now_s, kind)))
    for now_s in range(20):
        seat.seen(seen(None if connects_s is None or now_s < connects_s else 0), {})
    assert said == [(10, "idle")]
