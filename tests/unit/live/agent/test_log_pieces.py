"""Pieces of an output of which the middle is left out."""

import os
import random

import pytest

from rota.live.agent.log_pieces import LONGEST_LINE, line_offset, read_piece, tail_offset
from rota.live.agent.output import LEAST_BYTES, cut, left_out

MIB = 1 << 20
LEFT_OUT = 2 * MIB + 16  # with the first line after the gap, of which nobody knows that it is whole


@pytest.fixture
def file(tmp_path):
    """An output of 4 MiB in lines of 16 bytes; its second and third MiB are left out."""
    file = tmp_path / "rank0.log"
    file.write_bytes(b"".join(b"line %010d\n" % number for number in range(MIB // 4)))
    cut(file, LEAST_BYTES)
    return file


def read(file, offset=0, limit=1 << 16, ended=True):
    """All pieces from an offset on, and where they end."""
    pieces = []
    while True:
        piece = read_piece(file, offset, limit, ended=ended)
        assert piece.offset == offset
        pieces.append(piece.text)
        if piece.at_end:
            return pieces, piece.next_offset
        assert piece.next_offset > offset
        offset = piece.next_offset


@pytest.mark.parametrize("limit", [1 << 16, MIB, 12345])
def test_one_line_stands_for_what_is_left_out(file, limit):
    pieces, end = read(file, limit=limit)
    assert end == 4 * MIB
    assert pieces.count(left_out(LEFT_OUT)) == 1
    pieces.remove(left_out(LEFT_OUT))
    text = "".join(pieces)
    assert "\0" not in text
    first, last = text[:MIB], text[MIB:]
    assert first == "".join(f"line {n:010}\n" for n in range(MIB // 16))
    assert last == "".join(f"line {n:010}\n" for n in range(3 * MIB // 16 + 1, MIB // 4))


@pytest.mark.parametrize("limit", [1 << 16, 1000])
def test_lines_around_a_gap_are_whole(tmp_path, limit):
    draw = random.Random(limit)
    lines = {f"{n} {'x' * draw.randrange(200)}" for n in range(MIB // 20)}
    file = tmp_path / "rank0.log"
    file.write_text("".join(f"{line}\n" for line in lines))
    cut(file, LEAST_BYTES)
    text = "".join(read(file, limit=limit)[0])
    others = [line for line in text.split("\n") if line and line not in lines]
    assert len(others) == 1
    told = int(others[0].split()[1])
    assert len(text) - len(left_out(told)) + told == file.stat().st_size


def test_pieces_end_with_lines_so_that_a_cut_behind_them_tears_none(tmp_path):
    file = tmp_path / "rank0.log"
    file.write_text("".join(f"line {n}\n" for n in range(4 * MIB // 8)) + "begun")
    piece = read_piece(file, 0, 1 << 16, ended=False)
    assert piece.text.endswith("\n")
    cut(file, LEAST_BYTES)
    pieces, _ = read(file, piece.next_offset, ended=False)
    lines = "".join([piece.text, *pieces]).split("\n")
    assert lines[-1] == "begun"
    others = [line for line in lines[:-1] if line and not line.startswith("line ")]
    assert len(others) == 1
    numbers = [int(line.split()[1]) for line in lines[:-1] if line and line not in others]
    assert numbers == sorted(set(numbers))


def test_who_follows_and_is_behind_learns_how_much_it_has_missed(file):
    piece = read_piece(file, 2 * MIB + 7, 1 << 16, ended=False)
    assert (piece.text, piece.next_offset) == (left_out(MIB - 7 + 16), 3 * MIB + 16)
    assert not piece.at_end


@pytest.mark.parametrize("lines", [1, 100, MIB // 16 - 1])
def test_the_last_lines_behind_the_gap(file, lines):
    pieces, _ = read(file, tail_offset(file, lines))
    assert "".join(pieces) == file.read_text()[-16 * lines :]


@pytest.mark.parametrize("lines", [MIB // 16, MIB])
def test_with_more_lines_than_there_are_behind_the_gap_it_is_told(file, lines):
    assert tail_offset(file, lines) == MIB
    pieces, _ = read(file, tail_offset(file, lines))
    assert pieces[0] == left_out(LEFT_OUT)
    assert sum(map(len, pieces[1:])) == MIB - 16


def test_the_end_of_a_huge_output_without_lines_is_found_at_once(tmp_path):
    file = tmp_path / "rank0.log"
    with open(file, "wb") as log:
        log.write(b"begin\n")
        log.truncate(1 << 40)
        log.seek(0, 2)
        log.write(b"of a line\nend\n")
    assert tail_offset(file, 1) == (1 << 40) + 10
    assert tail_offset(file, 2) < MIB


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_long_line_counts_as_several(tmp_path, end):
    file = tmp_path / "rank0.log"
    long = "☃" * (LONGEST_LINE // 2)  # 3 bytes each
    file.write_text(f"begin\n{long}\nlast{end}")
    assert "".join(read(file, tail_offset(file, 1))[0]) == f"last{end}"
    tail = "".join(read(file, tail_offset(file, 2))[0])
    assert tail == long[-(LONGEST_LINE // 3) :] + f"\nlast{end}"
    assert "".join(read(file, tail_offset(file, 3))[0]) == f"{long}\nlast{end}"
    assert tail_offset(file, 4) == 0


def test_no_more_is_read_of_a_line_without_end_than_is_asked_for(tmp_path, monkeypatch):
    file = tmp_path / "rank0.log"
    with open(file, "wb") as log:
        log.write(b"begin\n")
        for _ in range(64):
            log.write(b"\r" * MIB)
    sizes = []
    pread = os.pread

    def counted(descriptor, size, offset):
        sizes.append(size)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    assert tail_offset(file, 10) == 64 * MIB + len(b"begin\n") - 10 * LONGEST_LINE
    assert sum(sizes) < 20 * LONGEST_LINE


def test_half_a_character_before_a_gap_waits_for_nothing(tmp_path):
    file = tmp_path / "rank0.log"
    text = "a" + "☃" * (5 * MIB // 3)
    file.write_text(text)
    cut(file, LEAST_BYTES)
    pieces, end = read(file, ended=False)
    assert end == file.stat().st_size
    assert pieces[-1].endswith("☃")
    assert "\ufffd" in "".join(pieces)


def test_an_output_that_is_shorter_than_before_goes_on_at_its_end(tmp_path):
    file = tmp_path / "rank0.log"
    file.write_bytes(b"short\n")
    assert read_piece(file, 1000, 100, ended=False) == ("", 6, 6, True, 6, [])


def test_lines_are_told_by_the_offsets_at_which_they_begin_or_go_on(tmp_path):
    file = tmp_path / "rank0.log"
    file.write_bytes(b"one\n\xff\n\nlast \xe2\x98")
    assert read_piece(file, 1, 100, ended=False).lines == [1, 4, 6, 7]
    assert read_piece(file, 0, 4, ended=False).lines == [0]


@pytest.mark.parametrize(
    ("offset", "begins"), [(0, 0), (1, 4), (4, 4), (5, 8), (8, 8), (9, 9), (None, 12)]
)
def test_the_first_line_at_or_after_an_offset(tmp_path, offset, begins):
    file = tmp_path / "rank0.log"
    file.write_bytes(b"one\ntwo\nlast")
    assert line_offset(file, offset) == begins
