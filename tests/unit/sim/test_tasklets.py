"""One device in tasklets: what is known by hand, and how the controllers compare."""

import pytest

from rota.share.controllers import Aimd, SlowdownFeedback, StrictIdle
from rota.share.marks import BACKWARD, FORWARD, LOAD, OPTIMISE, REDUCE, WAIT
from rota.sim.tasklets import Foreground, Part, share

MS = 1e-3
BUSY = Foreground((Part(FORWARD, 10, 0.3 * MS), Part(BACKWARD, 20, 0.35 * MS)))
BURST = Foreground(
    (
        Part(LOAD, 1, 0.5 * MS),
        Part(FORWARD, 10, 0.3 * MS),
        Part(WAIT, 1, 0.0, 4 * MS),
        Part(BACKWARD, 10, 0.3 * MS),
        Part(REDUCE, 2, 0.2 * MS, 0.2 * MS),
        Part(OPTIMISE, 1, 0.5 * MS),
    ),
    noise=0.03,
)


def test_alone_a_step_takes_what_its_parts_take():
    outcome = share(BURST, [], None, steps=50)
    assert outcome.mean == pytest.approx(1.0)
    assert outcome.p95 == pytest.approx(1.0)
    assert outcome.harvest == 0.0
    assert outcome.idle == pytest.approx(4.4 / 11.8, rel=0.02)


def test_unasked_pieces_follow_each_tasklet():
    outcome = share(BUSY, [0.5 * MS], None, steps=50, skip=1)
    assert outcome.mean == pytest.approx((10 + 30 * 0.5) / 10)
    assert outcome.harvest == pytest.approx(15 / 25)


def test_beside_one_another_both_have_their_speed():
    outcome = share(BUSY, [0.5 * MS], None, steps=50, beside=0.8)
    assert outcome.mean == pytest.approx(1.25)
    assert outcome.harvest == pytest.approx(0.2)


def test_the_same_seed_is_the_same_story():
    one, other = (share(BURST, [MS], SlowdownFeedback(), steps=60, seed=4) for _ in range(2))
    assert one == other


def test_the_worst_window_is_found():
    outcome = share(BUSY, [0.5 * MS], None, steps=10)
    assert outcome.worst(5) == pytest.approx(2.5, rel=0.02)
    assert outcome.worst(20) == 1.0  # there are not so many steps


# slowdown of the mean step at least and at most, of the 95th percentile at most, harvest at least
# and at most; docs/research/benchmarks.md tells the figures themselves.
COMPARED = [
    (lambda: None, 0.5, (1.9, 2.1), 2.1, (0.6, 0.75)),
    (StrictIdle, 0.5, (1.0, 1.05), 1.1, (0.3, 0.37)),
    (StrictIdle, 5.0, (1.05, 1.15), 1.2, (0.3, 0.45)),
    (Aimd, 0.5, (1.0, 1.1), 1.1, (0.0, 0.1)),
    (SlowdownFeedback, 0.5, (1.0, 1.1), 1.1, (0.25, 0.4)),
    (SlowdownFeedback, 2.0, (1.0, 1.1), 1.1, (0.1, 0.4)),
    (SlowdownFeedback, 5.0, (1.0, 1.1), 1.1, (0.01, 0.1)),
]


@pytest.mark.parametrize(("kind", "piece_ms", "mean", "p95", "harvest"), COMPARED)
def test_controllers_beside_a_training_that_waits_a_third_of_its_time(
    kind, piece_ms, mean, p95, harvest
):
    outcome = share(BURST, [piece_ms * MS], kind(), steps=600, seed=1, skip=20)
    assert mean[0] <= outcome.mean <= mean[1]
    assert outcome.p95 <= p95
    assert harvest[0] <= outcome.harvest <= harvest[1]
