"""Long outputs lose their middle; offsets stay what they were."""

import errno
import os

import pytest

from rota.live.agent import output
from rota.live.agent.output import (
    LEAST_BYTES,
    cut,
    gap_at,
    give_back,
    keep_last_lines,
    left_out,
    next_gap,
    take_ahead,
)

MIB = 1 << 20


@pytest.fixture
def file(tmp_path):
    return tmp_path / "rank0.log"


def lines(file, first, last):
    """Write numbered lines of 16 bytes at the end."""
    with open(file, "ab") as log:
        log.write(b"".join(b"line %010d\n" % number for number in range(first, last)))


def held(file):
    return file.stat().st_blocks * 512


def gap(file):
    with open(file, "rb") as log:
        begin = next_gap(log.fileno(), 0)
        return begin, gap_at(log.fileno(), begin)


def test_the_beginning_and_the_end_are_kept_where_they_are(file):
    lines(file, 0, MIB)  # 16 MiB
    whole = file.read_bytes()
    cut(file, 8 * MIB)
    begin, end = gap(file)
    assert (begin, end) == (2 * MIB, 10 * MIB)
    assert held(file) <= 8 * MIB + 4096
    now = file.read_bytes()
    assert len(now) == len(whole)
    assert (now[:begin], now[end:]) == (whole[:begin], whole[end:])


def test_a_gap_grows_and_the_beginning_stays(file):
    lines(file, 0, MIB)
    cut(file, 8 * MIB)
    lines(file, MIB, 2 * MIB)
    cut(file, 8 * MIB)
    assert gap(file) == (2 * MIB, 26 * MIB)
    assert held(file) <= 8 * MIB + 4096
    cut(file, 4 * MIB)
    assert gap(file) == (MIB, 29 * MIB)


def test_who_writes_at_the_end_goes_on_there(file):
    with open(file, "ab", buffering=0) as log:
        log.write(b"a" * 5 * MIB)
        cut(file, LEAST_BYTES)
        log.write(b"end\n")
    assert file.stat().st_size == 5 * MIB + 4
    assert file.read_bytes()[-5:] == b"aend\n"


def test_what_is_short_is_left_alone(file):
    lines(file, 0, LEAST_BYTES // 16 + 100)
    whole = file.read_bytes()
    cut(file, 0)
    assert file.read_bytes() == whole


def test_what_a_job_put_in_its_place_is_left_alone(file, tmp_path):
    other = tmp_path / "other"
    lines(other, 0, MIB)
    size = held(other)
    file.symlink_to(other)
    cut(file, LEAST_BYTES)
    assert take_ahead(file, MIB) == 0
    file.unlink()
    file.hardlink_to(other)
    cut(file, LEAST_BYTES)
    give_back(file)
    file.unlink()
    os.mkfifo(file)
    cut(file, LEAST_BYTES)
    file.unlink()
    cut(file, LEAST_BYTES)
    file.mkdir()
    cut(file, LEAST_BYTES)
    assert held(other) == size


def test_where_files_have_no_gaps_the_beginning_is_left_and_what_follows(file, monkeypatch):
    def refuses(*_):
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(output, "_allocate", refuses)
    with open(file, "ab", buffering=0) as log:
        log.write(b"a" * 5 * MIB)
        cut(file, LEAST_BYTES)
        log.write(b"end\n")
    assert file.read_bytes() == b"a" * MIB + left_out(4 * MIB).encode() + b"end\n"
    with pytest.raises(OSError, match="not here"):
        take_ahead(file, MIB)


def test_room_is_taken_behind_the_end_and_given_back(file):
    lines(file, 0, 100)
    size, before = file.stat().st_size, held(file)
    assert take_ahead(file, MIB) == size
    assert file.stat().st_size == size
    assert held(file) >= before + MIB - 4096
    assert gap(file) == (size, size)
    lines(file, 100, 200)
    give_back(file)
    assert held(file) <= before + 4096
    assert file.read_bytes().count(b"\n") == 200


def test_of_lines_the_last_whole_ones_are_kept(file):
    lines(file, 0, 1000)
    keep_last_lines(file, 16 * 10 + 3)
    assert file.read_text() == "".join(f"line {number:010}\n" for number in range(990, 1000))
    lines(file, 1000, 1001)
    assert file.read_text().splitlines()[-1] == "line 0000001000"


def test_what_is_printed_while_its_end_is_looked_at_is_no_gap(file, monkeypatch):
    lines(file, 0, 2)
    lseek, size = os.lseek, file.stat().st_size

    def looks_just_before_more_is_printed(*arguments):
        try:
            return lseek(*arguments)
        finally:
            lines(file, 2, 3)

    monkeypatch.setattr(output.os, "lseek", looks_just_before_more_is_printed)
    with open(file, "rb") as log:
        assert gap_at(log.fileno(), size) == size
