"""Dispatch of one program's operations to many devices, in virtual time."""

import pytest

from rota.errors import SimulationError
from rota.flow.island import Island
from rota.flow.order import Stride
from rota.sim.dispatch import Chain, Costs, Dispatch, Stages, pipeline_s, rate, shared_island

US = 1e-6
COSTS = Costs(call_s=10 * US, message_s=5 * US, operation_s=20 * US, turn_s=7 * US, latency_s=0.0)
ALL = ((0, 1, 2, 3),)


def run(compute_s, island=None, costs=COSTS, gangs=ALL, calls=40, **more):
    return Dispatch([Chain(1, gangs, calls, compute_s, **more)], costs, island).run()


def period_us(done):
    return 1e6 / rate(done, 1)


def test_long_computations_hide_the_client():
    assert period_us(run(100 * US)) == pytest.approx(120)


def test_short_computations_wait_for_the_client_which_tells_each_device():
    assert period_us(run(1 * US)) == pytest.approx(10 + 4 * 5)


def test_one_message_serves_the_devices_of_a_host():
    assert period_us(run(1 * US, devices_of_message=2)) == pytest.approx(21)  # the operations
    costs = COSTS._replace(operation_s=1 * US)
    assert period_us(run(1 * US, costs=costs, devices_of_message=2)) == pytest.approx(10 + 2 * 5)


def test_programs_share_what_a_call_costs_among_their_operations():
    done = run(1 * US, costs=COSTS._replace(operation_s=1 * US), length=10, calls=40)
    assert period_us(done) == pytest.approx(3, rel=0.02)
    assert len(done.ended_s[1]) == 400


def test_the_island_gives_one_turn_after_another():
    costs = COSTS._replace(turn_s=50 * US)
    assert period_us(run(1 * US, shared_island(range(4), [2]), costs)) == pytest.approx(200)


def test_a_message_takes_its_way_once_to_each_operation():
    ended_s = run(1 * US, costs=COSTS._replace(latency_s=500 * US), calls=1).ended_s[1]
    assert ended_s == pytest.approx([(10 + 4 * 5 + 500 + 20 + 1) * US])
    costs = COSTS._replace(latency_s=500 * US)
    ordered = run(1 * US, shared_island(range(4), [2]), costs, calls=1).ended_s[1]
    # The call, its readiness, its turns: each a message.
    assert ordered == pytest.approx([(10 + 4 * 5 + 3 * 500 + 4 * 7 + 20 + 1) * US])


def test_operations_of_other_devices_do_not_wait_for_each_other():
    done = run(1000 * US, gangs=((0,), (1,)), calls=40)
    assert done.ended_s[1][-1] == pytest.approx(20 * 1020 * US, rel=0.01)


def test_a_gang_waits_for_the_last_of_its_devices():
    done = run(0.0, gangs=((0, 1), (1,)), calls=3, costs=COSTS._replace(call_s=0.0, message_s=0.0))
    assert done.ran == {0: [(1, 1), (1, 3)], 1: [(1, 1), (1, 2), (1, 3)]}


def test_clients_of_the_same_devices_need_an_island():
    chains = [Chain(1, ((0, 1),), 1, 0.0), Chain(2, ((1, 2),), 1, 0.0)]
    with pytest.raises(SimulationError, match="give an island"):
        Dispatch(chains, COSTS)
    done = Dispatch(chains, COSTS, Island(range(3), Stride())).run()
    assert [len(ended_s) for ended_s in done.ended_s.values()] == [1, 1]


def stages(number, compute_us, transfer_us=0.0, message_us=0.0):
    return Stages(number, compute_us * US, 20 * US, message_us * US, 100 * US, transfer_us * US)


@pytest.mark.parametrize("number", [1, 2, 16])
def test_sequential_dispatch_takes_the_longer_of_computing_and_telling_at_each_stage(number):
    # About n * max(c, h + x) + h: the first stage has to be told, and the last one to compute.
    long, short = pipeline_s(stages(number, 500), parallel=False), stages(number, 30)
    assert long == pytest.approx((120 + number * 500) * US)
    assert pipeline_s(short, parallel=False) == pytest.approx((number * 120 + 30) * US)


@pytest.mark.parametrize("number", [1, 2, 16])
def test_parallel_dispatch_tells_all_at_once(number):
    found = pipeline_s(stages(number, 30, transfer_us=10), parallel=True)
    assert found == pytest.approx((120 + number * 30 + (number - 1) * 10) * US)


def test_a_client_with_slow_messages_is_what_parallel_dispatch_waits_for():
    found = pipeline_s(stages(16, 30, message_us=200), parallel=True)
    assert found == pytest.approx((16 * 200 + 120 + 30) * US)
