"""A batch that an attempt was told to have, until its rank 0 has passed it on."""

from types import SimpleNamespace

import pytest

from rota.errors import AgentError
from rota.live.agent.tuning import Tuning


class Attempt:
    """As much of an attempt as a batch needs, on disk and in memory."""

    job_id = "3"

    def __init__(self, record=None, state="running"):
        self.record = SimpleNamespace(**{"batch": None} | (record or {}))
        self.state, self.cooperates = state, True
        self.sent, self.saved, self.told = [], [], []
        self.members = [SimpleNamespace(send=self.sent.append)]
        self.tuning = Tuning(self, resizes=lambda: False)

    def save(self, *, durable):
        self.saved.append(dict(vars(self.record)))

    def done(self, command_id, **fields):
        self.told.append((command_id, fields))

    def failed(self, command_id, error):
        self.told.append((command_id, error))


def tuned(batch, refusal=None):
    return {"type": "tuned", "batch": batch, "refusal": refusal}


def test_a_batch_is_told_and_answered_once_and_then_forgotten():
    attempt = Attempt()
    attempt.tuning.tune(7, [8, 1])
    assert attempt.sent == [{"type": "tune", "batch": [8, 1]}]
    assert attempt.saved[-1] == {"batch": [8, 1]}
    for _ in range(2):  # each rank tells of it
        attempt.tuning.heard(tuned([8, 1]))
    assert attempt.told == [(7, {"batch": [8, 1]})]
    assert attempt.saved[-1] == {"batch": None}


def test_the_next_agent_tells_it_again_once_the_ranks_are_back():
    before = Attempt()
    before.tuning.keep([8, 1])  # it came with a resize
    after = Attempt(before.saved[-1], "adopted")
    after.tuning.again()
    assert after.sent == [], "the ranks are not back yet"
    after.state = "running"
    after.tuning.again()
    assert after.sent == [{"type": "tune", "batch": [8, 1]}]
    after.tuning.heard(tuned([8, 1]))
    assert after.told == []


def test_a_command_that_is_repeated_to_the_next_agent_is_answered_by_it():
    after = Attempt({"batch": [8, 1]}, "adopted")
    after.cooperates = False
    after.tuning.tune(7, [8, 1])
    after.state, after.cooperates = "running", True
    after.tuning.again()
    after.tuning.heard(tuned([8, 1]))
    assert after.told == [(7, {"batch": [8, 1]})]


def test_an_answer_to_what_was_wanted_before_is_passed_over():
    attempt = Attempt()
    attempt.tuning.tune(7, [8, 1])
    attempt.tuning.tune(8, None)
    attempt.tuning.heard(tuned([8, 1]))
    assert attempt.told == []
    attempt.tuning.heard(tuned([0, 0], "it has fixed batches"))
    assert attempt.told == [(8, "it has fixed batches")]


def test_a_disk_that_is_full_keeps_no_batch_from_being_told():
    attempt = Attempt()

    def save(*, durable):
        raise OSError

    attempt.save = save
    attempt.tuning.tune(7, [8, 1])
    assert attempt.sent == [{"type": "tune", "batch": [8, 1]}]


@pytest.mark.parametrize("state", ["suspended", "suspending", "resuming"])
def test_an_attempt_that_does_not_run_is_not_tuned(state):
    attempt = Attempt(state=state)
    with pytest.raises(AgentError, match="can't change its batch now"):
        attempt.tuning.tune(7, [8, 1])
