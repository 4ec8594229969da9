"""The API over TLS: whom callers trust, which tokens count there, and how machines join."""

import contextlib
import os
import socket

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from rota.client.client import Client
from rota.client.events import Connected
from rota.client.joining import checked_url, join
from rota.client.trust import authority_at, fingerprint_of, trusting
from rota.errors import AuthError, InputError, UnreachableError
from rota.folder import Folder
from rota.server.door import Door, Limits
from rota.server.tls import listener
from support.served import controller_without_agents, served


def free_place():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("tls") / "home").create()


@pytest.fixture(scope="module")
def outer(folder):
    return listener(folder, free_place())


@pytest.fixture(scope="module")
def cluster(folder, outer):
    with served(folder, controller_without_agents(folder), listener=outer) as it:
        yield it


def token_of(folder):
    return folder.token.read_text().strip()


@pytest.fixture
def invited(cluster, folder):
    with Client(folder=folder) as client:
        yield client.invite()


def upgraded(outer, token, host=None):
    """The status of an agent's handshake over TLS with this token."""
    headers = {"Authorization": f"Bearer {token}"} | ({} if host is None else {"Host": host})
    url = outer.url.replace("https", "wss") + "/agent/v1"
    context = trusting(outer.authority)
    try:
        with connect(url, additional_headers=headers, ssl=context, proxy=None):
            return 101
    except InvalidStatus as error:
        return error.response.status_code


def test_the_keys_are_for_their_owner_alone(folder, outer):
    assert folder.tls.stat().st_mode & 0o777 == 0o700
    for file in folder.tls.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600, file


def test_the_ca_stays_and_the_certificate_is_made_anew(folder, outer):
    pair = (folder.tls / "server.pem").read_text()
    again = listener(folder, "127.0.0.1:7800")
    assert again.authority == outer.authority
    assert (folder.tls / "server.pem").read_text() != pair


def test_users_call_with_a_ca_file_or_its_fingerprint(cluster, folder, outer, monkeypatch):
    for ca in (str(folder.tls / "ca.pem"), fingerprint_of(outer.authority)):
        monkeypatch.setenv("ROTA_CA", ca)
        with Client(outer.url, token_of(folder)) as client:
            assert client.jobs() == []
            assert isinstance(next(iter(client.events(patience_s=0.0))), Connected)


def test_users_trust_nobody_else(cluster, folder, outer, tmp_path, monkeypatch):
    other = listener(Folder(tmp_path / "other").create(), "127.0.0.1:7800")
    (tmp_path / "ca.pem").write_text(other.authority)
    for ca, error in (
        (None, UnreachableError),
        (str(tmp_path / "ca.pem"), UnreachableError),
        (fingerprint_of(other.authority), AuthError),
        (str(tmp_path / "none"), InputError),
    ):
        monkeypatch.delenv("ROTA_CA", raising=False)
        if ca is not None:
            monkeypatch.setenv("ROTA_CA", ca)
        with Client(outer.url, token_of(folder)) as client, pytest.raises(error):
            client.jobs()


def test_a_host_header_names_the_listener_or_loopback(cluster, folder, outer):
    headers = {"Authorization": f"Bearer {token_of(folder)}"}
    with httpx.Client(verify=trusting(outer.authority), trust_env=False, headers=headers) as http:
        assert http.get(f"{outer.url}/version").status_code == 200
        for host in ("evil.example", f"{outer.host}.evil.example", "10.0.0.1"):
            assert http.get(f"{outer.url}/version", headers={"Host": host}).status_code == 421
        for origin, status in ((outer.url, 200), (outer.url.replace("https", "http"), 403)):
            answer = http.get(f"{outer.url}/version", headers={"Origin": origin})
            assert answer.status_code == status


def test_a_join_token_is_exchanged_once_for_a_token_that_opens_the_agents_door(
    cluster, outer, invited, folder
):
    authority = authority_at(invited["url"], fingerprint_of(invited["certificate"]))
    own = join(
        outer.url,
        authority,
        invited["token"],
        "joins-once",
    ).token
    assert upgraded(outer, own) == 101
    with pytest.raises(AuthError, match="was used before, by node joins-once"):
        join(outer.url, authority, invited["token"], "joins-twice")
    with Client(folder=folder) as client:
        client.remove_node("joins-once")
    assert upgraded(outer, own) == 401


def test_no_token_is_good_for_what_it_is_not_for(cluster, outer, invited, folder):
    own = join(outer.url, outer.authority, invited["token"], "honest").token
    agent, user = folder.agent_token.read_text().strip(), token_of(folder)
    for token in (invited["token"], agent, user, "rota-node-guess", own[:-1]):
        assert upgraded(outer, token) == 401, token
    context = trusting(outer.authority)
    with httpx.Client(verify=context, trust_env=False, base_url=outer.url) as http:
        for token in (own, agent, user, "rota-join-guess", "\xff"):
            headers = {"Authorization": f"Bearer {token}".encode("latin-1")}
            answer = http.post("/agent/v1/join", json={"node": "x"}, headers=headers)
            assert answer.status_code == 401, token
        for token in (own, agent):
            headers = {"Authorization": f"Bearer {token}"}
            assert http.get("/api/v1/jobs", headers=headers).status_code == 401


@pytest.mark.parametrize("node", ["", "a/b", "..", "x" * 64, "é", "-x", "a b", None, 7, "here"])
def test_a_name_that_no_node_can_have_uses_no_token_up(cluster, outer, invited, node):
    with pytest.raises(InputError, match="node: "):
        join(outer.url, outer.authority, invited["token"], node)
    assert join(outer.url, outer.authority, invited["token"], f"n{id(node)}").token


def test_nothing_is_sent_to_a_controller_with_another_ca(cluster, outer):
    with pytest.raises(AuthError, match="has another CA"):
        authority_at(outer.url, "sha256:" + "0" * 64)


def test_an_address_that_the_certificate_does_not_name_is_not_trusted(cluster, outer):
    elsewhere = outer.url.replace("127.0.0.1", "localhost")
    with pytest.raises(AuthError, match="can't be trusted"):
        join(elsewhere, outer.authority, "rota-join-x", "n")


def test_no_plain_http_is_answered(cluster, outer):
    with httpx.Client(trust_env=False) as http, pytest.raises(httpx.TransportError):
        http.get(outer.url.replace("https", "http"))


def test_handshakes_that_nobody_ends_keep_neither_agents_nor_users_out(tmp_path):
    folder = Folder(tmp_path / "home").create()
    outer = listener(folder, free_place())
    door = Door(Limits(most=100, most_strangers=8, head_timeout_s=1e6))
    context, half_open = trusting(outer.authority), 200
    with (
        served(folder, controller_without_agents(folder), door=door, listener=outer),
        Client(folder=folder) as client,
        contextlib.ExitStack() as stack,
    ):
        token = join(outer.url, outer.authority, client.invite()["token"], "gpu1").token
        headers = {"Authorization": f"Bearer {token}"}
        url = outer.url.replace("https", "wss") + "/agent/v1"
        agent = stack.enter_context(
            connect(url, additional_headers=headers, ssl=context, proxy=None)
        )
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(half_open):
            stranger = socket.create_connection((outer.address, outer.port), timeout=60)
            stack.enter_context(stranger).sendall(b"\x16\x03\x01")  # the beginning of a record
        assert upgraded(outer, token) == 101
        assert [node["name"] for node in client.nodes()] == ["here"]
        agent.send("still here")
        theirs = len(os.listdir("/proc/self/fd")) - before - half_open
        assert theirs < half_open / 4  # the server is in this process, too


def test_a_cluster_that_listens_to_nobody_invites_nobody(tmp_path):
    folder = Folder(tmp_path / "home").create()
    with (
        served(folder, controller_without_agents(folder)),
        Client(folder=folder) as client,
        pytest.raises(InputError, match="rota up --listen"),
    ):
        client.invite()


def test_a_labs_own_certificate_is_known_by_the_last_one_of_its_file(tmp_path):
    theirs = Folder(tmp_path / "lab").create()
    lab = listener(theirs, "127.0.0.1:7800")
    chain = tmp_path / "chain.pem"
    pair = (theirs.tls / "server.pem").read_text()
    chain.write_text(pair[pair.index("-----BEGIN CERTIFICATE") :] + lab.authority)
    folder = Folder(tmp_path / "home").create()
    own = listener(folder, free_place(), str(chain), str(theirs.tls / "server.pem"))
    assert own.authority.split() == lab.authority.split()
    assert not folder.tls.exists()
    with served(folder, listener=own):
        assert authority_at(own.url, fingerprint_of(lab.authority))
        assert upgraded(own, "rota-node-guess") == 401  # and the certificate was trusted


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("127.0.0.1", "is not of the form HOST:PORT"),
        ("127.0.0.1:0", "is not of the form HOST:PORT"),
        ("127.0.0.1:x", "is not of the form HOST:PORT"),
        (":7800", "is not of the form HOST:PORT"),
        ("0.0.0.0:7800", "names no machine that others could call"),
        ("[::]:7800", "names no machine that others could call"),
        ("no-such-host.invalid:7800", "can't be found"),
    ],
)
def test_a_place_that_nobody_could_call_is_refused(tmp_path, place, words):
    folder = Folder(tmp_path / "home").create()
    with pytest.raises(InputError, match=words):
        listener(folder, place)
    assert not folder.tls.exists()


@pytest.mark.parametrize("file", ["certificate", "key"])
def test_a_certificate_and_its_key_are_given_together(tmp_path, file):
    with pytest.raises(InputError, match="give --tls-cert and --tls-key"):
        listener(Folder(tmp_path), "127.0.0.1:7800", **{file: "x"})


def test_a_ca_that_is_damaged_is_named(tmp_path):
    folder = Folder(tmp_path / "home").create()
    listener(folder, "127.0.0.1:7800")
    (folder.tls / "ca.key").write_text("none")
    with pytest.raises(InputError, match="the CA can't be read"):
        listener(folder, "127.0.0.1:7800")


@pytest.mark.parametrize(
    "text", ["gpu0:7800", "http://gpu0:7800", "https://gpu0", "https://gpu0:x", "https://a@b:1"]
)
def test_an_address_to_join_that_is_none_is_named(text):
    with pytest.raises(InputError, match="--join: "):
        checked_url(text, "--join")
    assert checked_url("https://gpu0.lab:7800/", "--join") == "https://gpu0.lab:7800"
