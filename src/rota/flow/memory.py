"""Which program may hold how much memory of each device, where they want more than there is. Pure.

Each program has on each of its devices an *allowance*, which it may use without asking. A program
that needs more asks before its operations are ordered, and waits outside of their order: nothing
that holds a device ever waits for memory. What others were allowed and do not use is taken back
then. Requests are served in their order, each whole: all devices at once or none.

A program that waits holds on to its buffers. Once all who hold what a request lacks wait as well,
nobody would ever go on: the last of those requests is refused, so that its program may let go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class Words(Protocol):
    """What host and programs tell each other of a worker's memory; see :mod:`rota.flow.page`."""

    def counted_bytes(self, slot: int) -> int:
        """What its program counts on."""

    def held_bytes(self, slot: int) -> int:
        """What the worker holds: it may be less, or what the program has let go of already."""

    def taken(self, slot: int) -> int:
        """The last of its granted requests that the program counts on by now."""

    def allow(self, slot: int, allowed_bytes: int) -> None:
        """Tell the program its allowance."""

    def barrier(self) -> None:
        """After this, who uses more than was allowed before it has told so."""


class Request(NamedTuple):
    """Bytes to use, by the slots of workers. A client's requests have growing numbers, from 1."""

    number: int
    bytes: Mapping[int, int]


class Answer(NamedTuple):
    """To a client's request: None if it has the memory now."""

    client: int
    request: int
    error: str | None


class _Share:
    """One worker's part of a device's memory."""

    def __init__(self, client: int, device: int, allowed_bytes: int) -> None:
        self.client, self.device, self.allowed_bytes = client, device, allowed_bytes
        self.given_bytes = 0  # for the last request that was granted,
        self.given = 0  # and which of them that was


class Memory:
    """``device_bytes`` of each device, shared by workers; see the module."""

    def __init__(self, device_bytes: int, words: Words) -> None:
        self._device_bytes, self._words = device_bytes, words
        self._shares: dict[int, _Share] = {}  # by slot
        self._requests: dict[int, Request] = {}  # by client, in the order they came

    @property
    def waits(self) -> bool:
        """True if a request is not answered."""
        return bool(self._requests)

    def needed_bytes(self, slot: int) -> int:
        """Bytes that a worker uses although it has no share."""
        return max(self._words.counted_bytes(slot), self._words.held_bytes(slot))

    def join(self, client: int, slot: int, device: int, most_bytes: int) -> None:
        """A worker of a client may hold so much of a device, if there is as much."""
        allowed_bytes = max(0, min(most_bytes, self._device_bytes - self._allowed(device)))
        self._shares[slot] = _Share(client, device, allowed_bytes)
        self._words.allow(slot, allowed_bytes)

    def free_bytes(self, device: int, client: int) -> int:
        """What a client's worker may hold of a device: others have no more than they use then."""
        others = {
            slot: each
            for slot, each in self._shares.items()
            if each.device == device and each.client != client
        }
        if others:
            self._allow_needed(others)
        return self._device_bytes - sum(each.allowed_bytes for each in others.values())

    def withdraw(self, client: int) -> Request | None:
        """A client leaves its devices and may use no more than now; what it has asked for in vain.

        What it uses counts no more, and is to be joined again.
        """
        shares = {slot: each for slot, each in self._shares.items() if each.client == client}
        self._allow_needed(shares)
        request = self._requests.pop(client, None)
        for slot in shares:
            self.leave(slot)
        return request

    def leave(self, slot: int) -> None:
        """A worker is gone, and its memory free."""
        share = self._shares.pop(slot, None)
        if share is None:
            return
        client = share.client
        if all(each.client != client for each in self._shares.values()):
            self._requests.pop(client, None)
        elif (request := self._requests.get(client)) is not None:
            self.want(client, request)

    def want(self, client: int, request: Request) -> None:
        """A client asks for this instead of what it has asked for; :meth:`settle` answers.

        A worker that has no share is passed over.
        """
        own = {slot: b for slot, b in request.bytes.items() if slot in self._shares}
        self._requests[client] = Request(request.number, own)

    def settle(self) -> list[Answer]:
        """The requests that can be answered now."""
        answers = []
        while self._requests:
            client, (number, wanted) = next(iter(self._requests.items()))
            lacking = self._lacking(wanted)
            if lacking:
                self._take_back(lacking)
                lacking = self._lacking(wanted)
            if lacking:
                if (refused := self._refused(lacking)) is None:
                    break
                # Nobody lets go of anything from now on; but it may have come free after the look.
                self._take_back(lacking)
                if self._lacking(wanted) != lacking:
                    continue
                answers.append(
                    Answer(refused, self._requests.pop(refused).number, self._why(lacking))
                )
                continue
            for slot, wanted_bytes in wanted.items():
                share = self._shares[slot]
                share.given_bytes, share.given = wanted_bytes, number
                if wanted_bytes > share.allowed_bytes:
                    share.allowed_bytes = wanted_bytes
                    self._words.allow(slot, wanted_bytes)
            del self._requests[client]
            answers.append(Answer(client, number, None))
        return answers

    def _allowed(self, device: int) -> int:
        return sum(each.allowed_bytes for each in self._shares.values() if each.device == device)

    def _lacking(self, wanted: Mapping[int, int]) -> set[int]:
        """The devices that have not enough for a request."""
        found = set()
        for slot, wanted_bytes in wanted.items():
            share = self._shares[slot]
            more_bytes = wanted_bytes - share.allowed_bytes
            if more_bytes > self._device_bytes - self._allowed(share.device):
                found.add(share.device)
        return found

    def _take_back(self, devices: set[int]) -> None:
        """Allow on these devices no more than is used."""
        self._allow_needed({s: each for s, each in self._shares.items() if each.device in devices})

    def _allow_needed(self, shares: Mapping[int, _Share]) -> None:
        for slot, share in shares.items():
            self._words.allow(slot, self._needed(slot, share))
        self._words.barrier()
        for slot, share in shares.items():
            share.allowed_bytes = self._needed(slot, share)
            self._words.allow(slot, share.allowed_bytes)

    def _needed(self, slot: int, share: _Share) -> int:
        """The bytes that can't be taken back.

        A program that counts on more than it may use is about to see that it may not.
        """
        given_bytes = share.given_bytes if self._words.taken(slot) < share.given else 0
        return min(share.allowed_bytes, max(self.needed_bytes(slot), given_bytes))

    def _refused(self, lacking: set[int]) -> int | None:
        """The client that is to let go: None while somebody who holds memory there may go on."""
        holders = {
            share.client
            for slot, share in self._shares.items()
            if share.device in lacking and self._needed(slot, share)
        }
        words = self._words
        if any(words.held_bytes(slot) > words.counted_bytes(slot) for slot in self._shares):
            return None  # somebody has let go of something
        if holders - self._requests.keys():
            return None
        last_first = list(reversed(self._requests))
        return next((each for each in last_first if each in holders), last_first[0])

    def _why(self, lacking: set[int]) -> str:
        device = min(lacking)
        return (
            f"the programs that have the memory of device {device} "
            f"({self._device_bytes:,} bytes) all wait for more of it; let go of buffers and call "
            "again, or give each program less by memory_bytes="
        )
