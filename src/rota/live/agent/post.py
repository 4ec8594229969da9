"""Words between the agents of a gang, passed on by the controller: each arrives once, in order.

A connection of either agent may break, and the controller may be away for a while. So words are
numbered, for each attempt and other node, and are sent again until the other agent has confirmed
them. An agent that has started anew, or had forgotten the attempt, knows nothing of earlier words:
its channel has another ``life``, and both begin to count again.
"""

import secrets
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from rota.errors import AgentError
from rota.live.wire import Message

MOST_AGAIN = 100  # words that are sent again at once

Key = tuple[str, int]  # job id and attempt


class Word(NamedTuple):
    """What has come from another node. ``anew``: it counts from the beginning again."""

    node: str
    key: Key
    body: Message | None  # None: nothing but a confirmation
    anew: bool


class Channel:
    """Words between two agents about one attempt."""

    def __init__(self, about: Message) -> None:
        self.about = about
        self.out: deque[Message] = deque()  # not confirmed
        self.first = 1  # the number of the first of these
        self.expected = 1
        self.life, self.their_life = secrets.token_hex(4), ""


class Post:
    """The channels of an agent. ``send`` gives the controller a message."""

    def __init__(self, send: Callable[[Message], object]) -> None:
        self._send = send
        self._channels: dict[tuple[str, Key], Channel] = {}

    def tell(self, node: str, about: Message, body: Message) -> None:
        """Tell the agent of another node something ``about`` an attempt."""
        channel = self._channel(node, about)
        channel.out.append(body)
        self._send(self._message(node, channel, len(channel.out) - 1))

    def is_awaited(self, node: str, key: Key) -> bool:
        """True if something that another node was told is not confirmed yet."""
        channel = self._channels.get((node, key))
        return channel is not None and bool(channel.out)

    def again(self) -> None:
        """Send again what has not been confirmed."""
        for (node, _), channel in self._channels.items():
            for at in range(min(len(channel.out), MOST_AGAIN)):
                self._send(self._message(node, channel, at))

    def receive(self, message: Message) -> Word | None:
        """What a message from another agent says; None if nothing new. Raises AgentError."""
        try:
            about = {"job_id": message["job_id"], "attempt": message["attempt"]}
            if message.get("launch") is not None:
                about["launch"] = message["launch"]
            node, life, number = message["node"], str(message["life"]), int(message["number"])
            body, theirs, confirmed = message["body"], message["their"], int(message["confirmed"])
        except (KeyError, TypeError, ValueError) as error:
            raise AgentError(f"relay: {error!r} of a message between agents") from None
        channel = self._channel(node, about)
        anew = channel.their_life not in ("", life)
        if life != channel.their_life:
            channel.their_life, channel.expected, channel.first = life, 1, 1
        if theirs == channel.life:
            while channel.out and channel.first <= confirmed:
                channel.out.popleft()
                channel.first += 1
        # What is numbered for an agent before this one comes again, numbered anew.
        is_next = number == channel.expected and theirs in ("", channel.life)
        channel.expected += is_next
        if number:
            self._send(self._message(node, channel, None))
        if not (is_next or anew):
            return None
        key = (about["job_id"], about["attempt"])
        return Word(node, key, body if is_next else None, anew)

    def keep(self, key: Key, nodes: Collection[str]) -> None:
        """Forget the words about an attempt for and from all but these nodes."""
        for each in [each for each in self._channels if each[1] == key and each[0] not in nodes]:
            del self._channels[each]

    def _channel(self, node: str, about: Message) -> Channel:
        key = (node, (about["job_id"], about["attempt"]))
        if key not in self._channels:
            self._channels[key] = Channel(about)
        return self._channels[key]

    def _message(self, node: str, channel: Channel, at: int | None) -> Message:
        message: dict[str, Any] = {"type": "relay", "node": node, **channel.about}
        message |= {"life": channel.life, "number": 0, "body": None}
        message |= {"their": channel.their_life, "confirmed": channel.expected - 1}
        if at is not None:
            message |= {"number": channel.first + at, "body": channel.out[at]}
        return message
