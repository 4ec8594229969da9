"""What becomes of attempts without processes whose state goes."""

import pytest

from rota.live.agent.states import State
from support.attempts import attempt_in

ABOUT = {"job_id": "5", "attempt": 2, "suspension": "boundary", "slots": 1, "members": [0]}
ABOUT |= {"generation": 0, "max_world": 1, "movable": True, "visible": None, "gpus": [0]}


@pytest.mark.parametrize(
    ("state", "source", "is_lost"),
    [
        (State.SUSPENDED, None, True),
        (State.SUSPENDED, "elsewhere", False),  # that node has it as well
        (State.RESUMING, None, False),  # its processes may have read it
    ],
)
def test_a_suspended_attempt_whose_state_somebody_removes_is_lost_with_that_reason(
    tmp_path, state, source, is_lost
):
    arena = tmp_path / "5-2-0.arena"
    arena.write_bytes(b"state")
    vacated = {"arenas": {"0": str(arena)}, "bytes": 5, "at_s": 1.0}
    more = {"vacated": vacated, "suspended_s": 1.0, "source": source}
    attempt = attempt_in(tmp_path, ABOUT | more, (heard := []).append)
    attempt.become(state)
    attempt.vacating.look()
    assert heard == []
    arena.unlink()
    attempt.vacating.look()
    assert [each["error"] for each in heard] == (
        [f"somebody has removed its state, {arena}"] if is_lost else []
    )
