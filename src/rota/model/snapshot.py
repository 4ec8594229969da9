"""The archive of a snapshot: files of a folder as a tar archive, compressed by gzip.

It is known by its digest: SHA-256 of the tar archive before compression, in hexadecimal digits.
"""

import hashlib
import re
import zlib

from rota.errors import InputError

MAX_BYTES = 64 << 20  # of the tar archive
MAX_PACKED_BYTES = MAX_BYTES + (1 << 20)  # of what hardly shrinks
DIGEST = re.compile(r"[0-9a-f]{64}\Z")

_GZIP = 16 + zlib.MAX_WBITS  # of zlib: data with the header and the end of gzip
_STEP_BYTES = 1 << 20


class Check:
    """Holds a compressed archive, piece by piece, against the digest that it should have."""

    def __init__(self, digest: str) -> None:
        self.num_bytes = 0  # of the tar archive
        self._digest = digest
        self._seen = hashlib.sha256()
        self._gzip = zlib.decompressobj(_GZIP)

    def feed(self, piece: bytes) -> None:
        """Take the next piece. Raises InputError if the archive is too large, or is none."""
        while piece:
            if self._gzip.eof:
                raise InputError("snapshot: something follows the end of the archive")
            try:
                data = self._gzip.decompress(piece, _STEP_BYTES)
            except zlib.error as error:
                raise InputError(f"snapshot: it is not compressed by gzip: {error}") from None
            self.num_bytes += len(data)
            if self.num_bytes > MAX_BYTES:
                raise InputError(
                    f"snapshot: the archive has more than {MAX_BYTES >> 20} MiB; leave files out"
                )
            self._seen.update(data)
            piece = self._gzip.unconsumed_tail or self._gzip.unused_data

    def end(self) -> None:
        """Raises InputError unless the archive is whole, and has the digest."""
        if not self._gzip.eof:
            raise InputError("snapshot: the archive ends too early; send it again")
        if self._seen.hexdigest() != self._digest:
            raise InputError(
                f"snapshot: the archive has the digest {self._seen.hexdigest()}, not "
                f"{self._digest}; send it again"
            )
