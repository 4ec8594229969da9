import pytest

from rota.errors import AgentError
from rota.live.wire import MAX_LINE_BYTES, decode, encode, is_progress, split


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


GOOD = {"at_s": 1.0, "step": 3, "total": None, "samples": 8, "loss": 0.5, "metrics": {"acc": 1.0}}


def test_a_report_as_the_library_makes_it_is_well_formed():
    assert is_progress(GOOD | {"step_time_s": 0.01, "first_100_s": None})


@pytest.mark.parametrize(
    "bad",
    [
        {"step": None},
        {"step": "3"},
        {"total": 10**400},
        {"at_s": "x"},
        {"loss": float("nan")},
        {"metrics": {"acc\ud800": 1.0}},
        {"metrics": {"acc": {"deep": 1.0}}},
        {"metrics": [1.0]},
        {"metrics": {"x" * 1000: 1.0}},
    ],
    ids=lambda bad: next(iter(bad)),
)
def test_a_report_that_would_hurt_its_readers_is_not(bad):
    assert not is_progress(GOOD | bad)
