"""A page, written by one process and read by another."""

import multiprocessing
import os
import signal
import struct
import time

import pytest

from rota.share.marks import (
    ALIVE,
    BACKWARD,
    FORWARD,
    GONE,
    IDLE,
    LOAD,
    NOBODY,
    OTHER,
    STOPPED,
    Seen,
)
from rota.share.page import (
    BODY,
    SIZE,
    MarkWriter,
    PageReader,
    decode,
    is_told,
    process_state,
    tell_mute,
)
from rota.share.watch import is_plausible


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "page"
    writer, reader = MarkWriter(str(path)), PageReader(path)
    writer.enter(LOAD)
    before = reader.read(time.monotonic())
    writer.enter(FORWARD)
    writer.end_step(LOAD)
    after = reader.read(time.monotonic())
    assert before.mark.segment == after.mark.segment == LOAD
    assert (before.mark.steps, after.mark.steps) == (0, 1)
    assert after.mark.pid == os.getpid()
    assert after.process == ALIVE
    assert after.mark.done_s == after.mark.sums_s
    passed_s = after.mark.since_s - before.mark.since_s
    assert after.mark.sums_s[LOAD] + after.mark.sums_s[FORWARD] == pytest.approx(passed_s)


def test_a_new_epoch_counts_anew(tmp_path):
    path = tmp_path / "page"
    writer, reader = MarkWriter(str(path)), PageReader(path)
    writer.enter(LOAD)
    writer.end_step(LOAD)
    writer.renew()
    mark = reader.read(0.0).mark
    assert (mark.epoch, mark.steps, set(mark.sums_s)) == (1, 0, {0.0})


def test_outside_of_steps_what_a_model_does_is_no_segment(tmp_path):
    path = tmp_path / "page"
    writer, reader = MarkWriter(str(path)), PageReader(path)
    for outside in (IDLE, OTHER):
        writer.enter(outside)
        writer.enter_step(FORWARD)
        assert reader.read(0.0).mark.segment == outside
    writer.enter(LOAD)
    writer.enter_step(FORWARD)
    assert reader.read(0.0).mark.segment == FORWARD


def test_without_a_path_nothing_is_written_and_no_page_is_nobody(tmp_path):
    writer = MarkWriter(None)
    writer.enter(LOAD)
    writer.end_step(LOAD)
    writer.renew()
    writer.close()
    assert not writer.on
    assert PageReader(tmp_path / "none").read(0.0) == NOBODY


def test_a_page_that_can_not_be_made_is_done_without(tmp_path):
    writer = MarkWriter(str(tmp_path / "absent" / "page"))
    writer.enter(LOAD)
    assert not writer.on


def test_a_page_tells_the_limit_of_its_writer(tmp_path):
    writer = MarkWriter(str(tmp_path / "page"), 1.3)
    writer.enter(LOAD)
    assert PageReader(tmp_path / "page").read(0.0).mark.limit == 1.3


def test_a_process_is_told_mute_where_nobody_alive_has_left_a_mark(tmp_path):
    path = tmp_path / "page"
    assert not is_told(path)
    tell_mute(path, os.getpid(), 1.2)
    mark = PageReader(path).read(0.0).mark
    assert (mark.segment, mark.pid, mark.limit) == (OTHER, os.getpid(), 1.2)
    assert is_plausible(mark, time.monotonic())
    assert is_told(path)
    writer = MarkWriter(str(path))  # its session begins
    writer.enter(LOAD)
    assert PageReader(path).read(0.0).mark.segment == LOAD
    assert is_told(path)
    writer.close()
    assert not is_told(path)
    writer = MarkWriter(str(path))
    writer._started_s = 0.25  # as of a process of the same number in the past
    writer.enter(LOAD)
    assert not is_told(path)


def test_a_page_that_another_one_has_by_now_is_left_alone(tmp_path):
    path = tmp_path / "page"
    former, present = MarkWriter(str(path)), MarkWriter(str(path))
    present._pid = os.getppid()
    present.enter(LOAD)
    former.close()
    assert PageReader(path).read(0.0).mark.pid == os.getppid()


def test_a_page_is_torn_wherever_a_byte_is_another_one(tmp_path):
    path = tmp_path / "page"
    writer = MarkWriter(str(path))
    writer.enter(BACKWARD)
    good = path.read_bytes()
    assert len(good) == SIZE
    assert decode(good) is not None
    for place in range(SIZE):
        torn = bytearray(good)
        torn[place] ^= 0x10
        assert decode(bytes(torn)) is None, place
    assert decode(good[:-1]) is None


def test_a_page_cut_off_or_of_another_layout_is_torn(tmp_path):
    path = tmp_path / "page"
    path.write_bytes(b"x" * 10)
    assert PageReader(path).read(0.0) == Seen(torn=True)
    path.write_bytes(struct.pack("=I", 7) + bytes(BODY.size))
    assert PageReader(path).read(0.0) == Seen(torn=True)
    path.write_bytes(b"")
    assert PageReader(path).read(0.0) == NOBODY


def test_a_page_comes_and_goes(tmp_path):
    path = tmp_path / "page"
    reader = PageReader(path)
    assert reader.read(0.0) == NOBODY
    MarkWriter(str(path)).enter(LOAD)
    assert reader.read(1.0).mark.segment == LOAD
    path.unlink()
    assert reader.read(2.0) == NOBODY


def _write_and_wait(path, told):
    MarkWriter(path).enter(FORWARD)
    told.set()
    signal.pause()


def test_a_writer_is_alive_or_stopped_or_gone(tmp_path):
    path = tmp_path / "page"
    context = multiprocessing.get_context("fork")
    told = context.Event()
    child = context.Process(target=_write_and_wait, args=(str(path), told))
    child.start()
    try:
        assert told.wait(60)
        reader = PageReader(path)
        assert reader.read(0.0).process == ALIVE
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        assert reader.read(1.0).process == STOPPED
    finally:
        child.kill()
        child.join()
    seen = reader.read(2.0)
    assert seen.process == GONE
    assert process_state(os.getpid(), 0.25) == GONE  # the same number, and another process
    torn = bytearray(path.read_bytes())
    torn[20] ^= 1
    path.write_bytes(bytes(torn))
    assert reader.read(3.0) == Seen(torn=True, process=GONE)
    child.close()
