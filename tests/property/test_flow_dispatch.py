"""Any clients on any devices in the simulated dispatch: the order is the island's."""

from hypothesis import given
from hypothesis import strategies as st

from rota.flow.island import Island
from rota.flow.order import EarliestDeadline, Fifo, Stride
from rota.sim.dispatch import Chain, Costs, Dispatch

MS = 1e-3
DEVICES = range(4)
seconds = st.sampled_from([0.0, 0.01 * MS, 0.1 * MS, 1 * MS])
gangs = st.sets(st.sampled_from(DEVICES), min_size=1).map(lambda each: tuple(sorted(each)))


@st.composite
def chains(draw):
    """One to four clients with any gangs, calls and weights."""
    return [
        Chain(
            client,
            tuple(draw(st.lists(gangs, min_size=1, max_size=3))),
            draw(st.integers(0, 5)),
            draw(seconds),
            draw(st.integers(1, 4)),
            draw(st.sampled_from([0.5, 1.0, 4.0])),
            draw(st.integers(1, 2)),
        )
        for client in range(1, draw(st.integers(1, 4)) + 1)
    ]


class Recorded(Island):
    """An island that keeps how it was called."""

    def __init__(self, order):
        super().__init__(DEVICES, order)
        self.calls = []

    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        if name not in ("join", "submit", "ready", "done", "issue"):
            return value

        def call(*given):
            self.calls.append((name, given))
            return value(*given)

        return call


@given(
    chains(), st.builds(Costs, *[seconds] * 5), st.sampled_from([Fifo, Stride, EarliestDeadline])
)
def test_devices_run_what_an_island_that_is_told_the_same_gives_out(clients, costs, order):
    island = Recorded(order())
    done = Dispatch(clients, costs, island).run()
    for each in clients:
        assert len(done.ended_s[each.client]) == each.calls * each.length
    again, tickets = Island(DEVICES, order()), []
    for name, told in island.calls:
        tickets += getattr(again, name)(*told) or []
    assert done.tickets == tickets
    for device, ran in done.ran.items():
        turns = {
            seq: (ticket.client, ticket.number)
            for ticket in tickets
            for at, seq in ticket.turns
            if at == device
        }
        assert ran == [turns[seq] for seq in sorted(turns)]
