"""The bytes of a trace file, plain or gzipped, within bounds."""

from pathlib import Path

from rota.errors import TraceError

MAX_BYTES = 4 << 30
MAX_RATIO = 500  # how far a gzip file of more than PLAIN_BYTES may expand
PLAIN_BYTES = 64 << 20
CHUNK = 1 << 24


def read_bytes(path: Path, what: str = "trace", most: int = MAX_BYTES) -> bytes:
    """The contents of a file, decompressed if it is gzip.

    ``what`` begins the message. Raises TraceError for a file that can't be read, is damaged, or
    holds more than ``most`` bytes.
    """
    return _unpacked(path, what, _content(path, what, most), most)


def most_unpacked(packed_bytes: int) -> int:
    """The most bytes that so many may plausibly become when they are unpacked."""
    return min(MAX_BYTES, max(PLAIN_BYTES, MAX_RATIO * packed_bytes))


def _content(path: Path, what: str, most: int) -> bytes:
    chunks, size = [], 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                chunks.append(chunk)
                size += len(chunk)
                if size > most:
                    raise TraceError(f"{what} {path}: more than {most >> 20:,} MiB; cut it up")
    except OSError as error:
        raise TraceError(f"{what} {path}: {error.strerror or error}; check the path") from None
    except ValueError as error:
        raise TraceError(f"{what} {str(path)!r}: {error}; check the path") from None
    return b"".join(chunks)


def _unpacked(path: Path, what: str, data: bytes, most: int) -> bytes:
    """The bytes, out of their gzip members if they are in any."""
    if data[:2] != b"\x1f\x8b":
        return data
    import zlib

    most = min(most, most_unpacked(len(data)))
    chunks, size, packed = [], 0, data
    try:
        while packed.strip(b"\0"):  # some writers pad with zeros
            member = zlib.decompressobj(wbits=31)
            while not member.eof:
                chunk = member.decompress(packed, CHUNK)
                packed = member.unconsumed_tail
                if not chunk and not packed and not member.eof:
                    raise EOFError
                chunks.append(chunk)
                size += len(chunk)
                if size > most:
                    raise TraceError(
                        f"{what} {path}: {len(data):,} bytes of gzip hold more than {most:,}; "
                        "unpack it first if that is right"
                    )
            packed = member.unused_data
    except (EOFError, zlib.error):
        raise TraceError(f"{what} {path}: the gzip data is cut off or damaged") from None
    return b"".join(chunks)
