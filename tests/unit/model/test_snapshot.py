"""Archives of snapshots, held against their digest."""

import gzip
import hashlib

import pytest

from rota.errors import InputError
from rota.model.snapshot import MAX_BYTES, Check

DATA = bytes(range(256)) * 4096
DIGEST = hashlib.sha256(DATA).hexdigest()


def check(archive, digest=DIGEST, step=None):
    it = Check(digest)
    for start in range(0, len(archive), step or len(archive)):
        it.feed(archive[start : start + (step or len(archive))])
    it.end()
    return it.num_bytes


@pytest.mark.parametrize("step", [1000, 65536, None])
def test_an_archive_is_whole_in_any_pieces(step):
    assert check(gzip.compress(DATA), step=step) == len(DATA)


@pytest.mark.parametrize(
    ("archive", "words"),
    [
        (b"no archive", "not compressed by gzip"),
        (gzip.compress(DATA)[:-1], "ends too early"),
        (gzip.compress(DATA) + b"x", "something follows"),
        (gzip.compress(DATA) + gzip.compress(b"x"), "something follows"),
        (gzip.compress(DATA[1:]), "has the digest"),
        (gzip.compress(bytes(MAX_BYTES + 1)), "more than 64 MiB"),
    ],
)
def test_anything_else_is_refused(archive, words):
    with pytest.raises(InputError, match=words):
        check(archive)


def test_an_archive_that_is_empty_is_not_whole():
    with pytest.raises(InputError, match="ends too early"):
        Check(DIGEST).end()
