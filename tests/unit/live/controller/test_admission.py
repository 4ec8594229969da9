import json

from rota.live.controller.admission import Admission
from rota.live.controller.leases import Leases
from rota.live.wire import clock
from rota.store.events import EventStore
from rota.store.members import Members


def admission(members, leases=None):
    def is_own(name):
        return name.startswith("lab-")

    return Admission(members, leases or Leases(60.0), "https://here:7800", "a CA", is_own)


def test_a_node_is_let_in_by_the_last_token_that_was_made_for_it(tmp_path):
    store = EventStore(tmp_path / "rota.db")
    members = Members(store)
    first = json.loads(admission(members).admit("lab-1"))
    second = json.loads(admission(members).admit("lab-1"))
    assert (second["url"], second["ca"]) == ("https://here:7800", "a CA")
    for known in (members, Members(store)):
        assert known.node_of(second["token"]) == "lab-1"
        assert known.node_of(first["token"]) is None
    store.close()


def test_nodes_that_are_gone_are_let_in_no_more_and_machines_that_have_joined_stay(tmp_path):
    store = EventStore(tmp_path / "rota.db")
    members = Members(store)
    token, _ = members.invite(1.0)
    members.join(token, "afar", 2.0)
    admitting = admission(members)
    told = [json.loads(admitting.admit(name)) for name in ("lab-1", "lab-2")]
    admitting.outboxes.open("lab-1", None)
    assert admitting.is_connected("lab-1")
    admitting.keep(["lab-2"])
    assert members.names == {"afar", "lab-2"}
    assert members.node_of(told[0]["token"]) is None
    assert not admitting.is_connected("lab-1")
    assert admitting.others == {"afar"}
    store.close()


def test_processes_may_run_until_the_lease_is_over(tmp_path):
    store = EventStore(tmp_path / "rota.db")
    leases = Leases(60.0)
    admitting = admission(Members(store), leases)
    assert not admitting.may_run("lab-1")
    leases.renew("lab-1", clock.boottime_s())
    assert admitting.may_run("lab-1")
    leases.renew("lab-1", clock.boottime_s() - 100)
    assert not admitting.may_run("lab-1")
    store.close()
