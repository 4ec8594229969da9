"""The disk space of a state folder, and the reserve that the controller keeps of it.

On a full disk jobs still end, and that must be written down. So an empty file takes a part of the
disk, and is removed when little else is free. From then on nothing new is begun, until there is
room for the reserve again.
"""

import contextlib
import logging
import os

from rota.errors import StoreFullError
from rota.folder import Folder, disk_of

LEAST_SHARE = 8  # with less free than one part in so many of the reserve, it is given up

log = logging.getLogger("rota.room")


class Room:
    """The reserve of one state folder.

    ``is_tight`` is True from its release until it is held again. Without ``keeps_reserve`` there is
    none to release, and room is tight from one failure to write until the next :meth:`look`.
    """

    def __init__(self, folder: Folder, *, keeps_reserve: bool = True) -> None:
        self.is_tight = False
        self._held = False
        self._folder = folder.path
        self._reserve = folder.reserve
        self._keeps_reserve = keeps_reserve

    def look(self) -> bool:
        """Release the reserve if little is free, or take it if there is room.

        Returns True if that changes ``is_tight``.
        """
        before = self.is_tight
        try:
            disk = disk_of(self._folder)
        except OSError:  # the next write there reports the error
            return False
        least = disk.reserve_bytes // LEAST_SHARE
        if self._keeps_reserve and not self._held:
            enough = disk.free_bytes >= disk.reserve_bytes + 2 * least
            self._held = (enough or self._is_there()) and self._take(disk.reserve_bytes)
        self.is_tight = self._keeps_reserve and not self._held
        if self._held and disk.free_bytes < least:
            self.give_up()
        elif before and not self.is_tight:
            log.info("there is room on the disk of %s again", self._folder)
        elif self.is_tight and not before:
            log.error("%s", self.complaint())
        return before != self.is_tight

    def give_up(self) -> bool:
        """Make room for what must be written. True if there was a reserve to release."""
        held, self._held = self._held, False
        if not self.is_tight:
            self.is_tight = True
            log.error("%s", self.complaint())
        with contextlib.suppress(OSError):
            os.truncate(self._reserve, 0)  # where even removing a file takes room, this may not
        self.remove()
        return held

    def remove(self) -> None:
        """Remove the reserve: the cluster has ended."""
        with contextlib.suppress(OSError):
            self._reserve.unlink()

    def check(self) -> None:
        """Raise StoreFullError, with advice, if there is too little room."""
        if self.is_tight:
            raise StoreFullError(self.complaint())

    def complaint(self) -> str:
        """Describes the problem, and what can be done about it."""
        return (
            f"the disk of {self._folder} is full: {self.shortage()}; until then no job is taken "
            "and none is started, and those that run go on"
        )

    def shortage(self) -> str:
        """Names the free space, and the space that has to be free."""
        try:
            disk = disk_of(self._folder)
        except OSError as error:
            return f"it can't be looked at ({error.strerror})"
        needed = disk.reserve_bytes + 2 * (disk.reserve_bytes // LEAST_SHARE)
        return f"{_mib(disk.free_bytes)} are free; make room for {_mib(needed)} there"

    def _is_there(self) -> bool:
        """True if an earlier controller has kept it."""
        try:
            return self._reserve.stat().st_size > 0
        except OSError:
            return False

    def _take(self, num_bytes: int) -> bool:
        """Take so much of the disk, or nothing. True if that succeeded."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._reserve, flags, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, max(1, num_bytes))
            finally:
                os.close(descriptor)
        except OSError:
            self.remove()
            return False
        return True


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):.1f} MiB"
