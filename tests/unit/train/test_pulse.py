"""A rank writes its pulse where its agent can feel it at any time."""

from types import SimpleNamespace

import pytest

from rota.live.wire import COMPUTING, EVALUATING, PULSE, WAITING
from rota.train import pulse as pulse_module
from rota.train.pulse import Pulse


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(pulse_module, "time", SimpleNamespace(monotonic=lambda: now.s))
    return now


def test_it_tells_the_phase_and_adds_up_what_was_computed(clock, tmp_path):
    pulse = Pulse(str(tmp_path / "pulse"))

    def read():
        return PULSE.unpack((tmp_path / "pulse").read_bytes())

    clock.s = 103.0
    pulse.enter(WAITING, samples=8)
    assert read() == (WAITING, 103.0, 3.0, 8.0)
    clock.s = 105.0
    pulse.enter(COMPUTING)
    clock.s = 106.0
    pulse.enter(EVALUATING)
    clock.s = 200.0
    pulse.enter(COMPUTING)
    clock.s = 200.5
    pulse.enter(WAITING, samples=4)
    assert read() == (WAITING, 200.5, 4.5, 12.0)


def test_without_a_file_it_is_felt_by_nobody(clock):
    Pulse(None).enter(WAITING)
