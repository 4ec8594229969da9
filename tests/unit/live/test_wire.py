import pytest

from rota.errors import AgentError
from rota.live.wire import MAX_LINE_BYTES, decode, encode, split


def test_messages_come_back_whole_however_the_stream_is_cut():
    messages = [{"type": "at", "step": n, "text": "a\nb"} for n in range(3)]
    stream = b"".join(map(encode, messages))
    for size in (1, 2, 7, len(stream)):
        buffer, got = bytearray(), []
        for start in range(0, len(stream), size):
            buffer += stream[start : start + size]
            got += split(buffer)
        assert got == messages
        assert not buffer


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"{}", b'{"type": 3}', b"\xff"])
def test_what_is_no_message_is_refused(line):
    with pytest.raises(AgentError):
        decode(line)
    with pytest.raises(AgentError):
        split(bytearray(line + b"\n"))


def test_a_line_without_end_is_refused_before_it_fills_the_memory():
    with pytest.raises(AgentError, match="1 MiB"):
        split(bytearray(b"x" * (MAX_LINE_BYTES + 1)))
