"""A message of any size goes in frames that the other side takes, and comes out as it was."""

import json

import pytest

from rota.errors import AgentError
from rota.live.wire import PIECE_BYTES, frames, pack
from rota.live.wire.frames import MOST_FRAME_BYTES, Parts, frames_of


def hello(attempts, name="wörds"):
    about = {"type": "alive", "attempt": 1, "suspension": "boundary", "movable": True}
    return {
        "type": "hello",
        "attempts": [about | {"job_id": f"{name}{n}"} for n in range(attempts)],
    }


@pytest.mark.parametrize("attempts", [0, 1000, 60_000])
def test_a_message_comes_out_as_it_was(attempts):
    message, parts = hello(attempts), Parts()
    sent = frames_of(message)
    assert all(len(frame) <= MOST_FRAME_BYTES for frame in sent)
    assert (len(sent) > 1) == (attempts == 60_000)
    told = [whole for frame in sent if (whole := parts.whole(frame)) is not None]
    assert [json.loads(each) for each in told] == [message]
    assert parts.whole(frames_of(hello(1))[0]) == json.dumps(hello(1))


def test_other_frames_come_between_parts():
    message, parts = hello(60_000), Parts()
    piece = pack({"type": "fetched"}, b"x" * PIECE_BYTES)
    told = []
    for frame in frames_of(message):
        told += [whole for each in (frame, "{}", piece) if (whole := parts.whole(each)) is not None]
    assert [each for each in told if each not in ("{}", piece)] == [json.dumps(message)]


def test_no_more_is_sent_or_kept_than_a_message_may_have(monkeypatch):
    sent, parts = frames_of(hello(60_000)), Parts()
    monkeypatch.setattr(frames, "MOST_WHOLE_BYTES", MOST_FRAME_BYTES)
    with pytest.raises(
        AgentError, match=r"a message of the type hello has [0-9,]+ bytes; 4,194,304"
    ):
        frames_of(hello(60_000))
    with pytest.raises(AgentError, match="a message in parts has more than 4,194,304 bytes"):
        [parts.whole(frame) for frame in sent]


def test_parts_that_are_no_text_are_refused():
    with pytest.raises(AgentError, match="not a message"):
        Parts().whole(pack({"type": "part", "more": False}, b"\xff\xfe"))
