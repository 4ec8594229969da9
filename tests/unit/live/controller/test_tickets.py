"""Tickets are told to both ends of a migration, and revoked when it is over."""

from types import SimpleNamespace

import pytest

from rota.folder import Folder
from rota.live.controller.record import Record
from rota.live.controller.tickets import Tickets
from rota.model.job import JobState as S
from rota.store.events import EventStore
from support.driven import cluster_with_a_job_that_is

ABOUT = {"job_id": "the-job", "attempt": 1}
ADMIT, TICKET = {"type": "admit", **ABOUT}, {"type": "ticket", **ABOUT}


class Lab:
    """The job of row 0 is on its way from node0 to node1, which have joined."""

    def __init__(self, record, certify=lambda name: (f"certificate of {name}", "key")):
        self.record, self.members = record, SimpleNamespace(leaving=set())
        self.tickets = Tickets(record, self.members, certify)

    def job_is(self, state):
        self.record.state = cluster_with_a_job_that_is(state).state
        spec = self.record.state.spec
        spec[0] = spec[0]._replace(job_id="the-job")

    def hears(self, node):
        outbox, found = self.record.outboxes.queues[node], []
        while not outbox.empty():
            found.append(outbox.get_nowait())
        return found

    def given(self):
        """The secret of the ticket that both have just been told."""
        self.tickets.give(0)
        (admit,), (ticket,) = self.hears("node0"), self.hears("node1")
        secret = admit["ticket"]
        assert admit == ADMIT | {"ticket": secret}
        place = {"host": "10.0.0.1", "port": 7801, "certificate": "certificate of node0"}
        assert ticket == TICKET | {"ticket": secret} | place
        return secret

    def is_revoked(self):
        self.tickets.look()
        over = {"ticket": None}
        told = self.hears("node0"), self.hears("node1")
        assert told in (([], []), ([ADMIT | over], [TICKET | over]))
        return bool(told[0])


@pytest.fixture
def record(tmp_path):
    store = EventStore(tmp_path / "rota.db")
    made = Record(store, Folder(tmp_path))
    for node in ("node0", "node1"):
        made.outboxes.open(node, None)
    yield made
    store.close()


@pytest.fixture
def lab(record):
    made = Lab(record)
    made.job_is(S.MIGRATING)
    told = made.tickets.came("node0", "10.0.0.1", 7801)
    assert told == {"certificate": "certificate of node0", "key": "key"}
    return made


def test_each_ticket_is_another_one_and_good_while_the_job_moves(lab):
    first = lab.given()
    assert len(first) > 40
    assert lab.given() != first
    assert not lab.is_revoked()
    assert lab.tickets.leaving("node0") == [0]
    assert lab.tickets.leaving("node1") == []


@pytest.mark.parametrize("state", [S.RUNNING, S.SUSPENDED, S.PENDING, S.SUCCEEDED])
def test_a_ticket_is_revoked_once_when_the_job_does_not_move_any_more(lab, state):
    lab.given()
    lab.job_is(state)
    assert lab.is_revoked()
    assert not lab.is_revoked()
    lab.tickets.give(0)
    assert not lab.hears("node1")


def test_a_ticket_is_revoked_when_the_job_moves_again(lab):
    lab.given()
    state = lab.record.state
    command = state.outstanding[0]
    state.outstanding[0] = command._replace(command_id=command.command_id + 1)
    assert lab.is_revoked()


@pytest.mark.parametrize("node", ["node0", "node1"])
def test_a_ticket_is_revoked_when_a_node_of_it_is_removed_and_there_is_no_other(lab, node):
    lab.given()
    lab.members.leaving = {node}
    assert lab.is_revoked()
    lab.tickets.give(0)
    assert not lab.hears("node0")
    assert not lab.hears("node1")


def test_an_agent_that_is_away_or_hands_nothing_out_gives_no_ticket(lab):
    lab.record.outboxes.close("node0", lab.record.outboxes.queues["node0"])
    lab.tickets.give(0)
    assert not lab.hears("node1")
    lab.record.outboxes.open("node0", None)
    for address, port in (("10.0.0.1", None), ("", 7801)):
        assert lab.tickets.came("node0", address, port) == {}
        lab.tickets.give(0)
        assert not lab.hears("node0")
        assert not lab.hears("node1")


def test_without_certificates_there_are_no_tickets(record):
    lab = Lab(record, certify=None)
    lab.job_is(S.MIGRATING)
    assert lab.tickets.came("node0", "10.0.0.1", 7801) == {}
    lab.tickets.give(0)
    assert not lab.hears("node1")
