import contextlib
import logging
from pathlib import Path

import pytest

from rota.server.logfile import MOST_KNOWN, REPEATED_S, LogFile


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def written(tmp_path, clock):
    """A logger, and how to read what it has written."""
    handler = LogFile(tmp_path / "log", clock=lambda: clock[0])
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = logging.Logger("test", logging.INFO)
    logger.addHandler(handler)

    def lines(*, closed=False):
        if closed:
            handler.close()
        return (tmp_path / "log").read_text().splitlines()

    yield logger, lines
    handler.close()


def fail(logger):
    try:
        raise OSError("no more files")
    except OSError:
        logger.exception("accept: %s", "out of files")


def test_an_error_that_comes_again_and_again_is_written_once_and_then_counted(written, clock):
    logger, lines = written
    for _ in range(1000):
        fail(logger)
    assert sum("accept" in line for line in lines()) == 1
    assert lines()[-1] == "OSError: no more files"
    clock[0] = REPEATED_S
    fail(logger)
    assert "ERROR 999 times more: accept: out of files: OSError('no more files')" in lines()
    assert sum(line == "ERROR accept: out of files" for line in lines()) == 2


def test_what_differs_is_written_each_time_and_information_always(written):
    logger, lines = written
    for number in (1, 2, 1):
        logger.warning("job %d waits", number)
        logger.info("turn")
    assert lines() == [
        *("WARNING job 1 waits", "INFO turn"),
        *("WARNING job 2 waits", "INFO turn"),
        "INFO turn",
    ]


def test_failures_of_other_kinds_are_told_apart_whatever_is_said_of_them(written):
    logger, lines = written
    for error in (ValueError("first"), KeyError("second"), KeyError("second")):
        logger.error("a call failed", exc_info=error)
    assert "ValueError: first" in lines()
    assert "KeyError: 'second'" in lines()
    assert lines(closed=True)[-1] == "ERROR once more: a call failed: KeyError('second')"


def test_what_was_counted_is_told_at_the_next_word_after_the_minute_or_at_the_end(written, clock):
    logger, lines = written
    for _ in range(2):
        logger.warning("first line\nsecond line")
    clock[0] = REPEATED_S + 1
    logger.info("anything")
    assert lines()[2:] == ["WARNING once more: first line", "INFO anything"]
    logger.error("bad")
    logger.error("bad")
    assert lines(closed=True)[4:] == ["ERROR bad", "ERROR once more: bad"]


def test_ever_new_messages_do_not_fill_the_memory(written):
    logger, _ = written
    for number in range(3 * MOST_KNOWN):
        logger.warning("%d", number)
    (handler,) = logger.handlers
    assert len(handler._repeated) <= MOST_KNOWN


def test_on_a_full_disk_a_line_is_left_out_and_nothing_said_on_the_terminal(capsys):
    logger = logging.Logger("test", logging.INFO)
    handler = LogFile(Path("/dev/full"))
    logger.addHandler(handler)
    logger.error("this has no room")
    with contextlib.suppress(OSError):
        handler.close()
    assert capsys.readouterr() == ("", "")
