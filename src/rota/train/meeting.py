"""The meeting place of a gang: its ranks find each other by keys and values, behind a secret.

Torch's own store listens on every interface and answers whoever connects. This one listens at one
address, and both sides prove that they know the gang's secret before either reads anything else:

    place   {"nonce": N}                     a line of JSON, as all that follows
    rank    {"nonce": M, "proof": HMAC(secret, "rank" N M)}
    place   {"proof": HMAC(secret, "place" N M)}
    rank    {"do": "get", "key": K} ...      one answer to each

The secret itself is never sent. No answer waits: a rank that waits for a key asks again.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import DistNetworkError, DistStoreError, Store

PROVE_S = 5.0  # for a connection to prove itself
MOST_UNPROVEN = 64  # connections at once; the oldest makes room
MOST_PROOF_BYTES = 512
MOST_BYTES = 1 << 20  # of a message
ASK_AGAIN_S, ASK_AGAIN_AT_MOST_S = 0.001, 0.02

Message = dict[str, Any]


class _Peer:
    """A connection to the place."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.nonce = secrets.token_hex(16)
        self.until_s = time.monotonic() + PROVE_S
        self.buffer = bytearray()
        self.is_proven = False


class MeetingPlace:
    """The place itself, served by a thread until it is closed."""

    def __init__(self, address: str, port: int, secret: str) -> None:
        """Listen there; port 0 is any. Raises OSError."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, port), family=family, backlog=1024)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._secret = secret
        self._values: dict[str, bytes] = {}
        self._peers: dict[int, _Peer] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._serve, name="rota meeting", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hang up on all. In a process that was forked from the place's, do nothing.

        Such a process has copies of all sockets: nothing ends because they are closed here alone.
        """
        if os.getpid() == self._owner and self._thread.is_alive():
            self._wake.send(b"x")
            self._thread.join()
            self._wake.close()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select(PROVE_S if self._unproven() else None):
                if key.fileobj is self._woken:
                    return self._end()
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fd in self._peers:
                    self._read(self._peers[key.fd])
            now_s = time.monotonic()
            for peer in self._unproven():
                if peer.until_s <= now_s:
                    self._drop(peer)

    def _end(self) -> None:
        for peer in list(self._peers.values()):
            self._drop(peer)
        self._selector.close()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._woken.close()

    def _unproven(self) -> list[_Peer]:
        return [peer for peer in self._peers.values() if not peer.is_proven]

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it is gone already, or there are no descriptors
            time.sleep(ASK_AGAIN_AT_MOST_S)
            return
        if len(unproven := self._unproven()) >= MOST_UNPROVEN:
            self._drop(unproven[0])
        connection.settimeout(PROVE_S)
        peer = self._peers[connection.fileno()] = _Peer(connection)
        self._selector.register(connection, selectors.EVENT_READ)
        self._tell(peer, {"nonce": peer.nonce})

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.connection.recv(1 << 16)
        except OSError:
            data = b""
        peer.buffer += data
        most = MOST_BYTES if peer.is_proven else MOST_PROOF_BYTES
        if not data or len(peer.buffer) > most:
            self._drop(peer)
            return
        while b"\n" in peer.buffer and peer.connection.fileno() in self._peers:
            line, _, rest = bytes(peer.buffer).partition(b"\n")
            peer.buffer = bytearray(rest)
            try:
                answer = self._answer(peer, json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                answer = None
            if answer is None:
                self._drop(peer)
                return
            self._tell(peer, answer)

    def _answer(self, peer: _Peer, message: Message) -> Message | None:
        """The answer; None if the peer has not proved itself."""
        if peer.is_proven:
            return OPERATIONS[message["do"]](self._values, message)
        nonce, proof = str(message["nonce"]), str(message["proof"]).encode("ascii", "replace")
        if not hmac.compare_digest(proof, proof_of(self._secret, "rank", peer.nonce, nonce)):
            return None
        peer.is_proven = True
        return {"proof": proof_of(self._secret, "place", peer.nonce, nonce).decode()}

    def _tell(self, peer: _Peer, message: Message) -> None:
        try:
            peer.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        if self._peers.pop(peer.connection.fileno(), None) is not None:
            self._selector.unregister(peer.connection)
            with contextlib.suppress(OSError):
                peer.connection.shutdown(socket.SHUT_RDWR)
            peer.connection.close()


def proof_of(secret: str, who: str, place_nonce: str, rank_nonce: str) -> bytes:
    """The proof that ``who``, the rank or the place, knows the secret."""
    text = "\0".join(("rota gang", who, place_nonce, rank_nonce)).encode()
    return hmac.digest(secret.encode(), text, "sha256").hex().encode()


def _set(values: dict[str, bytes], told: Message) -> Message:
    values[told["key"]] = _bytes(told["value"])
    return {}


def _get(values: dict[str, bytes], told: Message) -> Message:
    value = values.get(told["key"])
    return {"value": None if value is None else _text(value)}


def _add(values: dict[str, bytes], told: Message) -> Message:
    number = int(values.get(told["key"], b"0")) + int(told["value"])
    values[told["key"]] = str(number).encode()
    return {"value": number}


def _compare_set(values: dict[str, bytes], told: Message) -> Message:
    key, expected = told["key"], _bytes(told["expected"])
    if values.get(key, b"") == expected:
        values[key] = _bytes(told["value"])
    return {"value": _text(values.get(key, expected))}


def _check(values: dict[str, bytes], told: Message) -> Message:
    return {"value": all(key in values for key in told["keys"])}


def _delete(values: dict[str, bytes], told: Message) -> Message:
    return {"value": values.pop(told["key"], None) is not None}


def _count(values: dict[str, bytes], _: Message) -> Message:
    return {"value": len(values)}


OPERATIONS: dict[str, Callable[[dict[str, bytes], Message], Message]] = {
    "set": _set,
    "get": _get,
    "add": _add,
    "compare_set": _compare_set,
    "check": _check,
    "delete": _delete,
    "count": _count,
}


class MeetingStore(Store):
    """The meeting place as torch's process groups use it. Methods have the names that torch calls.

    All raise DistNetworkError, a RuntimeError, if the place is gone; a wait for a key raises
    DistStoreError if the key has no value in time.
    """

    def __init__(self, address: tuple[str, int], secret: str, timeout: timedelta) -> None:
        """Raises OSError if nothing listens there, DistNetworkError if that is another gang's."""
        super().__init__()
        self.set_timeout(timeout)
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self._socket = socket.create_connection(address, timeout=PROVE_S)
        try:
            self._prove(secret)
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(timeout.total_seconds())  # answers wait for nothing

    def _prove(self, secret: str) -> None:
        """Prove to the place that this rank knows the secret, and have the place prove it."""
        try:
            place_nonce, nonce = str(self._receive()["nonce"]), secrets.token_hex(16)
            proof = proof_of(secret, "rank", place_nonce, nonce).decode()
            shown = str(self._ask(nonce=nonce, proof=proof)["proof"]).encode("ascii", "replace")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DistNetworkError("what listens there is no meeting place of a gang") from None
        if not hmac.compare_digest(shown, proof_of(secret, "place", place_nonce, nonce)):
            raise DistNetworkError("what listens there does not know the gang's secret")

    def set(self, key: str, value: str | bytes) -> None:
        """Have a value under a key."""
        self._ask(do="set", key=key, value=_text(value))

    def get(self, key: str) -> bytes:
        """The value of a key, once there is one."""
        found = self._until(lambda: self._ask(do="get", key=key)["value"], self.timeout, key)
        return _bytes(found)

    def add(self, key: str, value: int) -> int:
        """Add to a number, which is 0 at first. Returns the sum."""
        return int(self._ask(do="add", key=key, value=value)["value"])

    def compare_set(self, key: str, expected: str | bytes, value: str | bytes) -> bytes:
        """Set a value if the present one is as expected. Returns the value after that."""
        told = {"expected": _text(expected), "value": _text(value)}
        return _bytes(self._ask(do="compare_set", key=key, **told)["value"])

    def check(self, keys: list[str]) -> bool:
        """True if all keys have values."""
        return bool(self._ask(do="check", keys=list(keys))["value"])

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys have values."""
        self._until(lambda: self.check(keys) or None, timeout or self.timeout, ", ".join(keys))

    def deleteKey(self, key: str) -> bool:
        """Remove a key; True if it had a value."""
        return bool(self._ask(do="delete", key=key)["value"])

    def getNumKeys(self) -> int:
        """Number of keys."""
        return int(self._ask(do="count")["value"])

    def clone(self) -> MeetingStore:
        """This one, which several threads can use."""
        return self

    def _until(self, ask: Callable[[], Any], timeout: timedelta, what: str) -> Any:
        """The answer, once there is one."""
        until_s, pause_s = time.monotonic() + timeout.total_seconds(), ASK_AGAIN_S
        while (answer := ask()) is None:
            if time.monotonic() >= until_s:
                raise DistStoreError(f"no rank has told {what} within {timeout}")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, ASK_AGAIN_AT_MOST_S)
        return answer

    def _ask(self, **message: Any) -> Message:
        data = json.dumps(message).encode() + b"\n"
        if len(data) > MOST_BYTES:
            raise DistNetworkError(f"{len(data)} bytes are too much for a key of a meeting place")
        with self._lock:
            try:
                self._socket.sendall(data)
            except OSError as error:
                raise DistNetworkError(f"the meeting place is gone: {error}") from None
            return self._receive()

    def _receive(self) -> Message:
        while b"\n" not in self._buffer:
            try:
                data = self._socket.recv(1 << 16)
            except OSError as error:
                raise DistNetworkError(f"the meeting place is gone: {error}") from None
            if not data or len(self._buffer) > 2 * MOST_BYTES:
                raise DistNetworkError("the meeting place is gone")
            self._buffer += data
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        message: Message = json.loads(line)
        return message


def _text(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
