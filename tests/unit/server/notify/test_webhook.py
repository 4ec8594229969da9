"""Where a webhook may lead, and that it leads nowhere else than where was looked."""

import asyncio
import socket
import ssl
import subprocess
from urllib.parse import urlsplit

import pytest

from rota.server.notify import webhook
from rota.server.notify.address import addresses_of, refusal
from rota.server.notify.webhook import Sender
from rota.store.deliveries import Hook
from support.receivers import receiving

BODY = '{"id":"a-1"}'


def hook_to(url, receiver, private):
    return Hook("team", "webhook", url, (), private, receiver.secret, "ann", 1.0)


def send(hook):
    return asyncio.run(Sender(60.0).send(hook, BODY))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.9.1",
        "::1",
        "10.0.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",
        "fe80::1%eth0",
        "fd00::1",
        "100.64.0.1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::169.254.169.254",
        "2002:7f00:1::",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::1",  # an IPv4 address of the local network's choice
        "64:ff9b:1:ffff::1.1.1.1",
        "::127.0.0.1",
        "::ffff:0:127.0.0.1",
        "fec0::1",
        "100::1",
        "5f00::1",
        "2001::1",  # Teredo
        "2001:db8::1",
        "3fff::1",
        "0.0.0.1",
        "192.0.0.8",
        "192.0.0.170",
        "192.88.99.1",
        "198.18.0.1",
        "203.0.113.1",
        "240.0.0.1",
    ],
)
def test_a_private_address_is_refused_unless_it_was_allowed(address):
    assert "--allow-private" in refusal(address, allows_private=False, encrypted=True)
    assert refusal(address, allows_private=True, encrypted=False) is None


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "::ffff:0.0.0.0"])
def test_what_is_no_address_of_one_machine_is_always_refused(address):
    assert "no address of one machine" in refusal(address, allows_private=True, encrypted=True)


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "2606:4700::1111", "64:ff9b::1.1.1.1", "2002:101:101::1"]
)
def test_a_public_address_needs_encryption(address):
    assert refusal(address, allows_private=False, encrypted=True) is None
    assert "not encrypted" in refusal(address, allows_private=True, encrypted=False)


def test_nothing_reaches_a_loopback_address_that_was_not_allowed():
    with receiving() as receiver:
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]"):
            url = f"https://{host}:{receiver.server_port}/"
            arrived, answer = send(hook_to(url, receiver, private=False))
            assert not arrived
            assert "is loopback, private or link-local" in answer
        assert not receiver.calls


def test_a_name_that_leads_to_a_private_address_as_well_is_refused(monkeypatch):
    async def rebinding(host, port):
        return ["1.1.1.1", "127.0.0.1"]

    monkeypatch.setattr(webhook, "addresses_of", rebinding)
    with receiving() as receiver:
        hook = hook_to("https://rebind.example/", receiver, private=False)
        assert "127.0.0.1 is loopback" in send(hook).answer


def test_what_is_connected_to_is_the_address_that_was_looked_at(monkeypatch):
    asked = []

    async def once(host, port):
        asked.append((host, port))
        return ["::1", "127.0.0.1"]  # nobody listens at the first one

    monkeypatch.setattr(webhook, "addresses_of", once)
    with receiving() as receiver:
        port = receiver.server_port
        url = f"http://no-such-name.invalid:{port}/in?key=1"
        assert send(hook_to(url, receiver, private=True)) == (True, "204")
        ((headers, body),) = receiver.calls
    assert asked == [("no-such-name.invalid", port)]
    assert (headers["Host"], body) == (f"no-such-name.invalid:{port}", BODY.encode())


def test_a_name_without_an_address_and_a_closed_port_are_told():
    with receiving() as receiver:
        closed = socket.create_server(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        closed.close()
        url = f"http://127.0.0.1:{port}/s3cret"
        arrived, answer = send(hook_to(url, receiver, private=True))
        assert not arrived
        assert answer
        assert "s3cret" not in answer
        arrived, answer = send(hook_to("http://no-such-name.invalid/", receiver, private=True))
        assert not arrived
        assert answer


def test_the_addresses_of_a_name_come_once_each():
    assert asyncio.run(addresses_of("127.0.0.1", 80)) == ["127.0.0.1"]
    with pytest.raises(OSError, match=r"."):
        asyncio.run(addresses_of("no-such-name.invalid", 80))
    with pytest.raises(OSError, match=r"."):
        asyncio.run(addresses_of("x" * 70 + ".invalid", 80))  # no name can be so long


def test_a_certificate_must_be_the_hosts(tmp_path, monkeypatch):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    name = ["-subj", "/CN=hooks.example", "-addext", "subjectAltName=DNS:hooks.example"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *name, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def here(host, port):
        return ["127.0.0.1"]

    with receiving() as receiver:
        receiver.socket = context.wrap_socket(receiver.socket, server_side=True)
        port = receiver.server_port
        right = hook_to(f"https://hooks.example:{port}/", receiver, private=True)
        monkeypatch.setattr(webhook, "addresses_of", here)
        assert "certificate" in send(right).answer  # nobody vouches for it
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert send(right) == (True, "204")
        wrong = right._replace(target=f"https://other.example:{port}/")
        assert "certificate" in send(wrong).answer
        assert urlsplit(right.target).hostname == "hooks.example"
        assert len(receiver.calls) == 1
