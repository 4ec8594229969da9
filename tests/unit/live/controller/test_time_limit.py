"""A policy that never returns is interrupted, and alarms of others come nevertheless."""

import signal
import threading

import pytest

from rota.errors import PolicyError
from rota.live.controller.time_limit import time_limit
from rota.model.decide.decision import take_decision
from rota.model.events import JobSubmitted, NodeJoined
from rota.model.fallback import IN_ORDER
from rota.model.state.state import ClusterState
from rota.policy.base import Policy
from rota.testing.builders import job


class Endless(Policy):
    """Never returns, and catches what interrupts it once."""

    caught = 0

    def decide(self, view):
        while True:
            try:
                while True:
                    pass
            except TimeoutError:
                if self.caught:
                    raise
                self.caught += 1


def test_a_fallback_decides_once_a_policy_has_not_returned_in_time():
    state = ClusterState()
    state.apply(NodeJoined(0.0, "n0", 1, "cpu"))
    state.apply(JobSubmitted(0.0, job("j0", 1)))
    policy, errors = Endless(), []
    event = take_decision(state, policy, 1.0, failed=errors.append, limit=lambda: time_limit(0.01))
    assert (event.fallback, policy.caught) == (IN_ORDER, 1)
    assert isinstance(errors[0], PolicyError)
    assert "it has not decided within 0.01 s" in str(errors[0])
    assert "test_time_limit.py, line" in str(errors[0])
    assert state.target[0] is not None


def test_an_alarm_that_was_set_before_comes_after_the_limit():
    came = threading.Event()
    handler = signal.signal(signal.SIGALRM, lambda *_: came.set())
    before = signal.setitimer(signal.ITIMER_REAL, 30.0)
    try:
        with time_limit(60.0):
            pass
        delay_s, _ = signal.getitimer(signal.ITIMER_REAL)
        assert 0 < delay_s <= 30.0
        signal.raise_signal(signal.SIGALRM)
        assert came.is_set()
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *before)


def test_in_another_thread_there_is_no_limit():
    done = []

    def work():
        with time_limit(1e-6):
            done.append(sum(range(100_000)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done


def test_a_block_that_ends_in_time_is_not_interrupted():
    with time_limit(60.0):
        result = sum(range(1000))
    assert result == 499_500
    with pytest.raises(TimeoutError), time_limit(0.001):
        while True:
            pass
