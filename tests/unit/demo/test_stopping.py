import os
import signal

import pytest

from rota.demo.stopping import stoppable

ENDS = [(signal.SIGINT, KeyboardInterrupt, ()), (signal.SIGTERM, SystemExit, (143,))]


@pytest.fixture(autouse=True)
def _as_before():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Unlucky:
    """The signal comes while this is done away with."""

    def __init__(self, number):
        self.number = number

    def __del__(self):
        os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(("number", "error", "args"), ENDS, ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_what_goes_on(number, error, args):
    with pytest.raises(error) as end, stoppable():
        os.kill(os.getpid(), number)
    assert end.value.args == args


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("number", "error", "args"), ENDS, ids=["SIGINT", "SIGTERM"])
def test_a_signal_that_a_destructor_has_lost_ends_it_at_the_next_look(number, error, args):
    with pytest.raises(error) as end, stoppable() as check:
        check()
        Unlucky(number)
        went_on = True
        check()
    assert went_on
    assert end.value.args == args


def test_afterwards_signals_do_what_they_did_before():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with stoppable():
        os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
