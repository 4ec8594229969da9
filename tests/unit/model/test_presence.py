"""The time for which a process was there."""

from rota.model.presence import Presence


def test_a_process_that_looks_in_time_was_there_all_the_time():
    presence = Presence(1.0)
    looks = [100.0, 101.0, 102.1, 104.0, 104.0, 104.5]
    assert [presence.at(each) for each in looks] == looks
    assert presence.absent_s == 0.0


def test_a_look_that_is_late_tells_of_an_absence():
    presence = Presence(1.0)
    presence.at(100.0)
    assert presence.at(170.0) == 101.0
    assert presence.at(171.0) == 102.0
    assert presence.at(241.0) == 103.0
    assert presence.absent_s == 138.0


def test_time_goes_on_also_where_every_look_is_late():
    presence = Presence(1.0)
    there = [presence.at(3.0 * look) for look in range(100)]
    assert there == [float(look) for look in range(100)]


def test_whoever_has_to_wait_says_for_how_long():
    presence = Presence(0.5)
    presence.at(10.0)
    assert presence.at(40.0, pace_s=30.0) == 40.0
    assert presence.at(101.0, pace_s=30.0) == 70.0
