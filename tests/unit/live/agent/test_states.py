"""The table of an attempt's states."""

import logging

from tests.support.attempts import attempt_in

from rota.live.agent.states import TRANSITIONS, State

RECORD = {"job_id": "5", "attempt": 2, "suspension": "process", "slots": 1, "members": [0]}
RECORD |= {"max_world": 1, "movable": True, "visible": None, "gpus": [0]}


def test_every_state_can_be_reached_and_left_except_the_first_and_the_last():
    reached = {after for _, after in TRANSITIONS}
    left = {before for before, _ in TRANSITIONS}
    assert reached == set(State) - {State.STARTING}
    assert set(State) - left == {State.REFUSED, State.MOVED}


def test_what_has_ended_does_not_begin_again():
    over = {State.ENDED, State.LOST}
    assert {after for before, after in TRANSITIONS if before in over} == {State.MOVED}


def test_a_step_that_may_not_be_is_logged_with_the_story(tmp_path, caplog):
    attempt = attempt_in(tmp_path, RECORD, [].append)
    with caplog.at_level(logging.ERROR, "rota.agent"):
        for state in (State.RUNNING, State.ENDED):
            attempt.become(state)
        assert not caplog.records
        attempt.become(State.RUNNING)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("job 5.2: ")
    assert "running -> ended: its processes have ended; " in line
    assert line.endswith("ended -> running: which may not be")
