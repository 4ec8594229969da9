"""Leases of machines that have joined, as the controller counts them."""

import math

import pytest

from rota.errors import InputError
from rota.live.controller.leases import LEASE_S, MARGIN_S, SILENT_S, Leases, settled


def looked_at(leases, since_s, until_s):
    """The nodes whose leases are over by then, of a controller that is there all the time."""
    return [node for now_s in range(since_s, until_s + 1) for node in leases.take_over(now_s)]


def test_a_lease_is_over_once_and_some_time_after_the_machine_counts_it_so():
    leases = Leases(60.0)
    leases.renew("a", 100.0)
    assert looked_at(leases, 100, 130) == []
    leases.renew("b", 130.0)
    assert looked_at(leases, 130, 160) == []
    over_s = 160 + int(MARGIN_S)
    assert looked_at(leases, 161, over_s - 1) == []
    assert leases.left_s("a", over_s - 1.0) == 1.0
    assert not leases.is_over("a", over_s - 1.0)
    assert looked_at(leases, over_s, over_s) == ["a"]
    assert looked_at(leases, over_s, 180) == []
    leases.renew("b", 180.0)
    assert looked_at(leases, 180, 239 + int(MARGIN_S)) == []
    assert looked_at(leases, 240 + int(MARGIN_S), 300) == ["b"]


@pytest.mark.parametrize("look", ["take_over", "silent", "left_s", "is_over"])
def test_time_for_which_the_controller_stood_still_is_no_silence_of_machines(look):
    leases = Leases(60.0)
    leases.renew("a", 100.0)
    assert looked_at(leases, 100, 101) == []
    now_s = 101.0 + 60.0 + MARGIN_S  # nobody was there to hear
    about_one = {"left_s": ("a",), "is_over": ("a",)}.get(look, ())
    told = getattr(leases, look)(*about_one, now_s)
    assert told in ([], {}, False, 60.0 + MARGIN_S - 2.0)
    leases.renew("a", now_s + 1.0)  # it says what has waited
    assert looked_at(leases, int(now_s) + 1, int(now_s) + 60 + int(MARGIN_S)) == []
    assert looked_at(leases, int(now_s) + 61 + int(MARGIN_S), int(now_s) + 70) == ["a"]


def test_a_machine_that_was_silent_before_the_controller_stood_still_stays_so():
    leases = Leases(60.0)
    leases.renew("a", 100.0)
    assert looked_at(leases, 100, 160) == []
    assert leases.take_over(1000.0) == []
    assert leases.left_s("a", 1000.0) == 4.0
    assert looked_at(leases, 1001, 1010) == ["a"]


def test_no_lease_for_ever_is_over():
    leases = Leases(math.inf)
    leases.renew("a", 0.0)
    assert looked_at(leases, 0, 10_000) == []


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
    for now_s in (101.0, 102.0, 103.0):
        assert leases.silent(now_s) == {}
    leases.renew("b", 103.0)
    assert leases.silent(100.0 + SILENT_S - 1.0) == {}
    assert leases.silent(100.0 + SILENT_S) == {"a": 60.0 + MARGIN_S - SILENT_S}
    for now_s in (106.0, 107.0, 108.0):
        leases.silent(now_s)
    leases.renew("a", 109.0)
    assert leases.silent(110.0) == {"b": 60.0 + MARGIN_S - 7.0}
