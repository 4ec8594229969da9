"""Join tokens are good once and for an hour, and nobody reads a token in the file."""

from contextlib import closing

import pytest

from rota.errors import AuthError, InputError
from rota.store.events import EventStore
from rota.store.members import INVITED_S, Members

NOW_S = 1000.0


@pytest.fixture
def store(tmp_path):
    with closing(EventStore(tmp_path / "rota.db")) as it:
        yield it


def test_a_machine_joins_once_by_a_token_and_is_known_after_a_restart(store):
    members = Members(store)
    token, until_s = members.invite(NOW_S)
    assert until_s == NOW_S + INVITED_S
    own = members.join(token, "gpu1", NOW_S)
    assert token.startswith("rota-join-")
    assert own.startswith("rota-node-")
    for each in (members, Members(store)):
        assert each.names == {"gpu1"}
        assert each.node_of(own) == "gpu1"
        assert each.node_of(token) is None
    with pytest.raises(AuthError, match="was used before, by node gpu1"):
        members.join(token, "gpu2", NOW_S)
    assert members.names == {"gpu1"}


@pytest.mark.parametrize(
    ("late_s", "words"), [(INVITED_S, "has expired"), (INVITED_S + 90_000, "has expired")]
)
def test_a_token_is_good_for_an_hour(store, late_s, words):
    members = Members(store)
    token, _ = members.invite(NOW_S)
    members.check_invitation(token, NOW_S + INVITED_S - 1)
    with pytest.raises(AuthError, match=words):
        members.join(token, "gpu1", NOW_S + late_s)
    assert members.names == set()


def test_a_token_of_another_cluster_is_none_of_this_ones(store, tmp_path):
    with closing(EventStore(tmp_path / "other.db")) as other:
        token, _ = Members(other).invite(NOW_S)
    with pytest.raises(AuthError, match="none of this cluster's"):
        Members(store).join(token, "gpu1", NOW_S)


def test_a_name_that_is_taken_does_not_use_the_token_up(store):
    members = Members(store)
    members.join(members.invite(NOW_S)[0], "gpu1", NOW_S)
    token, _ = members.invite(NOW_S)
    with pytest.raises(InputError, match="node: gpu1 has joined already"):
        members.join(token, "gpu1", NOW_S)
    assert members.node_of(members.join(token, "gpu2", NOW_S)) == "gpu2"


def test_a_node_that_is_removed_has_no_token_any_more_and_may_join_anew(store):
    members = Members(store)
    own = members.join(members.invite(NOW_S)[0], "gpu1", NOW_S)
    assert members.remove("gpu1") is True
    assert members.remove("gpu1") is False
    for each in (members, Members(store)):
        assert each.node_of(own) is None
        assert each.names == set()
    assert members.join(members.invite(NOW_S)[0], "gpu1", NOW_S) != own


def test_the_file_holds_no_token(store):
    members = Members(store)
    token, _ = members.invite(NOW_S)
    own = members.join(token, "gpu1", NOW_S)
    files = [path.read_bytes() for path in store.path.parent.glob("rota.db*")]
    assert any(b"gpu1" in data for data in files)
    for secret in (token, own):
        assert not any(secret[10:].encode() in data for data in files)


def test_invitations_that_nobody_needs_are_forgotten(store):
    members = Members(store)
    old, _ = members.invite(NOW_S)
    members.invite(NOW_S + 100_000)
    with pytest.raises(AuthError, match="none of this cluster's"):
        members.check_invitation(old, NOW_S)
