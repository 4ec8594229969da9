"""The smallest computation that hides one client, as its costs say."""

import pytest

from rota.experiment.pathways_scale import (
    CALLS,
    CLOSE,
    LEAST,
    LOOP_S,
    WAYS,
    of_multi_controllers,
    shortened,
    smallest_s,
)


def test_few_devices_are_hidden_once_their_workers_own_time_is():
    expected = (LEAST * CALLS.operation_s - LOOP_S) / (1 - LEAST)
    assert expected / CLOSE < smallest_s(8, WAYS["calls"]) < expected * CLOSE


def test_many_devices_are_hidden_once_the_client_has_told_them_all():
    expected = LEAST * (CALLS.call_s + 256 * CALLS.message_s) - LOOP_S
    assert expected / CLOSE < smallest_s(256, WAYS["calls"]) < expected * CLOSE


@pytest.mark.parametrize("way", WAYS)
def test_the_published_size_is_enough_at_128_devices(way):
    assert of_multi_controllers(128, 2.3e-3, WAYS[way]) >= LEAST


def test_parallel_dispatch_gains_by_length_and_only_where_computations_are_short():
    gains = [shortened(stages, 0.04e-3) for stages in (2, 8, 32)]
    assert 1 < gains[0] < gains[1] < gains[2]
    assert shortened(32, 1.04e-3) == pytest.approx(1)
