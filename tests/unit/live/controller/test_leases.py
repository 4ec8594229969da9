"""Leases of machines that have joined, as the controller counts them."""

import math

import pytest

from rota.errors import InputError
from rota.live.controller.leases import LEASE_S, MARGIN_S, SILENT_S, Leases, settled


def test_a_lease_is_over_once_and_some_time_after_the_machine_counts_it_so():
    leases = Leases(60.0)
    leases.renew("a", 100.0)
    leases.renew("b", 130.0)
    assert leases.take_over(160.0) == []
    assert leases.take_over(160.0 + MARGIN_S) == ["a"]
    assert leases.take_over(160.0 + MARGIN_S) == []
    leases.renew("b", 180.0)
    assert leases.take_over(239.0 + MARGIN_S) == []
    assert leases.take_over(240.0 + MARGIN_S) == ["b"]


def test_no_lease_for_ever_is_over():
    leases = Leases(math.inf)
    leases.renew("a", 0.0)
    assert leases.take_over(1e9) == []


def test_the_length_stays_while_machines_may_hold_leases_of_before(tmp_path):
    file = tmp_path / "lease.json"
    assert settled(file, None, []) == LEASE_S
    assert settled(file, math.inf, []) == math.inf  # nobody has joined
    assert settled(file, None, ["a"]) == math.inf
    with pytest.raises(InputError, match=r"--lease: machines hold leases of any length.*: a, b"):
        settled(file, 60.0, ["b", "a"])
    assert settled(file, 90.0, []) == 90.0
    assert settled(file, 90.0, ["a"]) == 90.0


def test_a_machine_is_silent_some_time_after_it_was_heard():
    leases = Leases(60.0)
    leases.renew("a", 100.0)
    leases.renew("b", 103.0)
    assert leases.silent(100.0 + SILENT_S - 1.0) == {}
    assert leases.silent(100.0 + SILENT_S) == {"a": 60.0 + MARGIN_S - SILENT_S}
    leases.renew("a", 110.0)
    assert leases.silent(111.0) == {"b": 60.0 + MARGIN_S - 8.0}
