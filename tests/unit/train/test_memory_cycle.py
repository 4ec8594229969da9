"""The point of a step with the least device memory, on a device that the test plays."""

import pytest

from rota.train.memory_cycle import (
    BACKWARD,
    BOUNDARY,
    MEASURED_STEPS,
    OPTIMIZER,
    WARM_UP_STEPS,
    Cycle,
    MemoryCycle,
)


def measured(bytes_at, steps=WARM_UP_STEPS + MEASURED_STEPS + 3):
    """What comes out of steps that hold so many bytes at each point, and after how many."""
    held = [0]
    cycle = MemoryCycle(lambda: held[0], lambda: 2300)
    found = []
    for step in range(steps):
        for point, size in bytes_at.items():
            held[0] = size if step else 10**6  # the first steps are none to judge by
            if (result := cycle.at(point)) is not None:
                found.append((step + 1, result))
    return found


def test_the_boundary_is_the_least_when_gradients_are_dropped_there():
    found = measured({BACKWARD: 900, OPTIMIZER: 900, BOUNDARY: 30})
    assert found == [(WARM_UP_STEPS + MEASURED_STEPS, Cycle(30, 2300, BOUNDARY))]


@pytest.mark.parametrize(
    ("bytes_at", "point"),
    [
        ({BACKWARD: 900, OPTIMIZER: 40, BOUNDARY: 50}, OPTIMIZER),
        ({BACKWARD: 90, OPTIMIZER: 90, BOUNDARY: 90}, BOUNDARY),
        ({BOUNDARY: 70}, BOUNDARY),
    ],
)
def test_the_point_with_the_least_is_named_and_ties_go_to_the_boundary(bytes_at, point):
    ((_, cycle),) = measured(bytes_at)
    assert cycle.least_after == point
    assert cycle.least_bytes == min(bytes_at.values())


def test_a_training_that_is_too_short_tells_nothing():
    assert measured({BOUNDARY: 30}, steps=WARM_UP_STEPS + MEASURED_STEPS - 1) == []
