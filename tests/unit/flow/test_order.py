"""Which operation goes first."""

import math
from itertools import groupby

import pytest

from rota.errors import InputError
from rota.flow.order import EarliestDeadline, Fifo, Operation, Stride

GANG = (0, 1)


def pick(order, waiting):
    """Issue the first of the waiting tags; returns its client."""
    client = min(waiting, key=lambda each: waiting[each][1])
    operation, tag = waiting.pop(client)
    order.charge(client, operation, tag)
    return client


def picks(order, clients, count, devices=GANG, cost_s=0.001):
    """Who is issued, one after the other, where these clients wait all the time."""
    waiting, picked = {}, []
    for number in range(1, count + 1):
        for client in clients:
            if client not in waiting:
                operation = Operation(number, devices, cost_s)
                waiting[client] = operation, order.tag(client, operation, number)
        picked.append(pick(order, waiting))
    return picked


def stride(*weights, quantum_s=0.0):
    order = Stride(quantum_s)
    for client, weight in enumerate(weights):
        order.join(client, weight)
    return order


def test_fifo_goes_by_submission_whatever_the_weights():
    order = Fifo()
    order.join(1, 1.0)
    order.join(2, 100.0)
    first = order.tag(1, Operation(9, GANG, 1.0, deadline_s=9.0), 1)
    second = order.tag(2, Operation(1, GANG, 0.1, deadline_s=1.0), 2)
    assert first < second


def test_the_earliest_deadline_goes_first_then_the_earlier_submission_and_none_last():
    order = EarliestDeadline()
    deadlines = [None, 5.0, 3.0, 3.0, None]
    tags = [
        order.tag(1, Operation(number, GANG, 1.0, deadline_s), number)
        for number, deadline_s in enumerate(deadlines)
    ]
    assert sorted(range(5), key=tags.__getitem__) == [2, 3, 1, 0, 4]


def test_equal_weights_take_turns():
    assert picks(stride(1, 1, 1, 1), range(4), 8) == [0, 1, 2, 3, 0, 1, 2, 3]


def test_weights_of_powers_of_two_are_spread_evenly():
    ruler = [3, 2, 3, 1, 3, 2, 3, 0, 3, 2, 3, 1, 3, 2, 3]
    assert picks(stride(1, 2, 4, 8), range(4), 30) == ruler + ruler


def test_with_a_quantum_each_has_it_times_its_weight_before_another_is_next():
    picked = picks(stride(1, 3, quantum_s=0.004), range(2), 64)
    runs = [(client, len(list(run))) for client, run in groupby(picked)]
    assert runs == [(0, 4), (1, 12)] * 4


def test_who_comes_late_or_idles_saves_no_quantum():
    order = stride(1, 1, quantum_s=0.004)
    assert picks(order, [0], 40) == [0] * 40
    assert picks(order, range(2), 24) == ([1] * 4 + [0] * 4) * 3


def test_dear_operations_count_for_what_they_take():
    order, waiting, picked = stride(1, 1), {}, []
    for number in range(1, 23):
        for client, cost_s in ((0, 0.010), (1, 0.001)):
            if client not in waiting:
                operation = Operation(number, GANG, cost_s)
                waiting[client] = operation, order.tag(client, operation, number)
        picked.append(pick(order, waiting))
    assert picked.count(0) == 2


def test_a_client_that_idled_saved_no_credit():
    order = stride(1, 1)
    assert picks(order, [0, 1], 2) == [0, 1]
    picks(order, [0], 100)
    assert picks(order, [0, 1], 10).count(1) == 5


def test_a_client_that_idled_still_owes_what_it_had():
    """Client 1 joins when client 0 has had 10 ms, of which it owes the half after the middle."""
    order = stride(1, 1)
    dear = Operation(1, GANG, 0.010)
    waiting = {0: (dear, order.tag(0, dear, 1))}
    assert pick(order, waiting) == 0
    assert picks(order, [1], 2) == [1, 1]
    assert picks(order, [0, 1], 5) == [1, 1, 1, 0, 1]


def test_of_equal_claims_that_which_has_waited_longer_goes_first():
    order = stride(1, 1, 1, 1)
    assert picks(order, [1, 2, 3], 3) == [1, 2, 3]
    assert picks(order, [3, 2, 1, 0], 4) == [0, 3, 2, 1]


def test_clients_of_other_devices_give_a_newcomer_neither_credit_nor_debt():
    """Client 0 has had device 0 for long, client 1 device 1 for a short time."""
    order = stride(1, 1, 1, 1)
    picks(order, [0], 1000, devices=(0,))
    picks(order, [1], 10, devices=(1,))
    assert picks(order, [1, 2], 10, devices=(1,)).count(2) == 5
    assert picks(order, [0, 3], 10, devices=(0,)).count(3) == 5


def test_an_operation_without_a_cost_is_not_free():
    order = stride(1, 1)
    assert picks(order, [0, 1], 10, cost_s=0.0).count(1) == 5


@pytest.mark.parametrize("order", [Fifo(), Stride(), EarliestDeadline()])
@pytest.mark.parametrize("weight", [0.0, -1.0, math.inf, math.nan])
def test_a_weight_that_is_not_positive_and_finite_is_refused(order, weight):
    with pytest.raises(InputError, match=f"weight is {weight!r}: give a positive"):
        order.join(1, weight)
