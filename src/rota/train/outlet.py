"""The pipe that a rank's processes print to, and the thread that appends what comes to the log.

A process may open its output anew, as ``echo oops > /dev/stderr`` does: that empties a file, and
does nothing to a pipe. The shim has the pipe, so that it outlives agent and controller, and is
emptied while the job is suspended.
"""

import contextlib
import errno
import fcntl
import os
import select
import signal
import sys
import termios
import threading
import time

PIPE_BYTES = 1 << 18  # what the pipe holds: writes are whole as long as they find room there
BUFFER_BYTES = 1 << 20  # what is kept in memory while the log takes nothing
PAUSE_S = 0.002  # for writes to gather in the pipe, where one comes after another
AGAIN_S = 1.0  # between tries to write to a log that takes nothing
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Outlet:
    """The output of one rank. It is made before the worker is forked.

    Printing never waits for a full disk: the first BUFFER_BYTES are kept until there is room, and a
    line in the log tells how many bytes after these were left out.
    """

    def __init__(self, log: str) -> None:
        """Open the log and the pipe. Raises OSError."""
        self._path, self._log = log, _open(log)
        self._source, self._end = os.pipe()
        with contextlib.suppress(OSError):  # the user has many pipes
            fcntl.fcntl(self._source, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def connect(self) -> None:
        """In the worker: print to the pipe, and read from nothing."""
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        for stream in (1, 2):
            os.dup2(self._end, stream)
        for descriptor in (nothing, self._end, self._source, self._log):
            os.close(descriptor)

    def start(self) -> None:
        """In the shim: append the output of the pipe to the log, and the shim's own words.

        Raises OSError, RuntimeError without room for a thread.
        """
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._begin = self._filled = 0  # this part of the buffer is yet to be written
        self._lost = 0  # bytes that came after those in the buffer
        self._bell = os.eventfd(0)
        os.set_blocking(self._source, False)
        self._thread = threading.Thread(target=self._run, daemon=True)
        # Signals are for the thread that waits for children.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._thread.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # Opened anew, because a job may have its own end of the pipe refuse to wait.
        own = os.open(f"/proc/self/fd/{self._end}", os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(own, stream)
        os.close(own)
        os.close(self._end)

    def finish(self) -> None:
        """Take what the pipe has now, and nothing that comes later.

        Processes of another user may have the pipe open for ever.
        """
        os.eventfd_write(self._bell, 1)
        self._thread.join()

    def flush(self) -> None:
        """Once finished: write what could not be written. Raises OSError if there is no room."""
        try:
            self._write()
        except OSError as error:
            if error.errno in NO_ROOM:
                raise

    def _run(self) -> None:
        poll, bell = select.poll(), select.poll()
        for descriptor in (self._source, self._bell):
            poll.register(descriptor, select.POLLIN)
        bell.register(self._bell, select.POLLIN)
        is_over, woken_s = False, 0.0
        while not is_over:
            ready = dict(poll.poll(AGAIN_S * 1000 if self._filled else None))
            before_s, woken_s = woken_s, time.monotonic()
            num_bytes = self._read() if self._source in ready else 0
            self._write_if_there_is_room()
            is_over = self._bell in ready
            if num_bytes < PIPE_BYTES // 4 and woken_s - before_s < PAUSE_S:
                bell.poll(PAUSE_S * 1000)  # many small writes are taken together
        left = int.from_bytes(fcntl.ioctl(self._source, termios.FIONREAD, bytes(4)), sys.byteorder)
        while left > 0:
            left -= self._read()
            self._write_if_there_is_room()

    def _read(self) -> int:
        """Take from the pipe what fits into the buffer. Returns the number of bytes taken."""
        if self._lost or self._filled == BUFFER_BYTES:
            num_bytes = len(os.read(self._source, PIPE_BYTES))
            self._lost += num_bytes
        else:
            num_bytes = os.readv(self._source, [self._buffer[self._filled :]])
            self._filled += num_bytes
        return num_bytes

    def _write_if_there_is_room(self) -> None:
        with contextlib.suppress(OSError):
            self._write()

    def _write(self) -> None:
        """Write what the buffer has, and then how much was lost after it. Raises OSError."""
        if not os.fstat(self._log).st_nlink:  # somebody has removed the log
            anew = _open(self._path)
            os.dup2(anew, self._log, inheritable=False)
            os.close(anew)
        while self._begin < self._filled:
            self._begin += os.write(self._log, self._buffer[self._begin : self._filled])
        self._begin = self._filled = 0
        if self._lost:
            os.write(self._log, left_out(self._lost).encode())
            self._lost = 0


def _open(log: str) -> int:
    return os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def left_out(num_bytes: int) -> str:
    """The line that stands for output that had no room."""
    return f"\nrota: {num_bytes} bytes are left out here; there was no room for them on the disk\n"
