"""The states of a client, and the changes between them."""

from rota.flow.standing import IN_ORDER, MOVES, OFF, TRANSITIONS, Standing, is_allowed


def test_all_states_are_reached_from_the_first_and_each_but_the_last_may_end() -> None:
    reached, last = {Standing.SILENT}, set[Standing]()
    while last != reached:
        last = set(reached)
        reached |= {after for before, after in TRANSITIONS if before in last}
    assert reached | {Standing.GONE} == set(Standing)
    assert {each for each in Standing if not is_allowed(each, Standing.GONE)} == {Standing.GONE}
    assert not any(is_allowed(Standing.GONE, each) for each in Standing)


def test_a_client_is_in_the_order_or_off_its_devices_or_needs_neither() -> None:
    assert not IN_ORDER & OFF
    assert set(Standing) - IN_ORDER - OFF == {Standing.SILENT, Standing.GRANTED, Standing.GONE}
    # A grant is taken back before anything else happens, and an agent hears of each move's end.
    assert {after for before, after in TRANSITIONS if before == Standing.GRANTED} == {
        Standing.ORDERED
    }
    settled = set(Standing) - MOVES
    assert all(any((each, after) in TRANSITIONS for after in settled) for each in MOVES)
