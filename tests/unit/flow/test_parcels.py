"""A tensor goes from process to process whole, or not at all."""

import errno
import multiprocessing
import os
import resource
import signal

import pytest
import torch

from rota.errors import InputError
from rota.flow import parcels
from rota.flow.layout import Region, Replicated, Split, pieces, shard_shape
from rota.flow.parcels import Spares, arrived, drop, receive, send

TENSORS = {
    "float": torch.randn(3, 4),
    "double": torch.randn(5, dtype=torch.float64),
    "bfloat16": torch.arange(7, dtype=torch.bfloat16),
    "half": torch.arange(7, dtype=torch.float16),
    "float8": torch.arange(7, dtype=torch.float32).to(torch.float8_e4m3fn),
    "flags": torch.tensor([True, False, True]),
    "bytes": torch.arange(255, dtype=torch.uint8),
    "integers": torch.tensor([[-(2**62)], [7]]),
    "complex": torch.tensor([1 + 2j, -3j]),
    "conjugate": torch.tensor([1 + 2j, -3j]).conj(),
    "scalar": torch.tensor(3.5),
    "one": torch.ones(1, 1, 1),
    "nothing": torch.empty(0, dtype=torch.float16),
    "no rows": torch.empty(2, 0, 3),
    "transposed": torch.randn(3, 4).t(),
    "strided": torch.randn(9, 8)[::2, 1::3],
    "expanded": torch.randn(3, 1).expand(3, 5),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "nine dimensions": torch.randn(*(2,) * 9),
    "in training": torch.randn(4, requires_grad=True),
    "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
}


def same(one, other):
    """The same type, shape and bits."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    bits = [t.detach().resolve_conj().contiguous().view(-1).view(torch.uint8) for t in (one, other)]
    return torch.equal(*bits)


def files(folder):
    return sorted(os.listdir(folder))


def in_child(function):
    """The exit code of a forked process that calls this; negative for a signal."""
    pid = os.fork()
    if not pid:
        try:
            os._exit(function())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("kind", TENSORS)
def test_a_tensor_arrives_bit_for_bit(tmp_path, kind, copy):
    tensor = TENSORS[kind]
    size = send(tmp_path, "x", tensor)
    assert files(tmp_path) == ["x"]
    assert size == os.path.getsize(tmp_path / "x")
    got = receive(tmp_path, "x", copy=copy)
    assert same(got, tensor)
    assert got.is_contiguous()
    assert not got.requires_grad


@pytest.mark.parametrize("copy", [True, False])
def test_a_tensor_arrives_in_host_memory_whatever_the_default_device(tmp_path, copy):
    send(tmp_path, "x", torch.ones(3))
    with torch.device("meta"):
        got = receive(tmp_path, "x", copy=copy)
    assert same(got, torch.ones(3))


def test_a_parcel_is_there_once_it_is_sent_and_until_it_is_dropped(tmp_path):
    assert not arrived(tmp_path, "x")
    send(tmp_path, "x", torch.ones(3))
    assert arrived(tmp_path, "x")
    drop(tmp_path, "x")
    assert not arrived(tmp_path, "x")
    drop(tmp_path, "x")
    assert files(tmp_path) == []
    with pytest.raises(FileNotFoundError, match="x"):
        receive(tmp_path, "x", copy=True)


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("kind", ["float", "strided", "channels last", "no rows", "flags"])
def test_a_region_is_what_narrow_gives(tmp_path, kind, copy):
    tensor = TENSORS[kind]
    send(tmp_path, "x", tensor)
    for dim, length in enumerate(tensor.shape):
        for start in range(length + 1):
            for stop in range(start, length + 1):
                got = receive(tmp_path, "x", copy=copy, region=Region(dim, start, stop))
                assert same(got, tensor.narrow(dim, start, stop - start))
                assert not copy or got.is_contiguous()


@pytest.mark.parametrize("region", [(2, 0, 1), (-1, 0, 1), (0, 2, 1), (0, -1, 1), (1, 0, 5)])
def test_a_region_outside_the_tensor_is_refused(tmp_path, region):
    send(tmp_path, "x", torch.ones(3, 4))
    with pytest.raises(InputError, match=r"region: .* of parcel x, whose shape is \(3, 4\)"):
        receive(tmp_path, "x", copy=True, region=Region(*region))


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("region", [None, Region(0, 1, 3), Region(1, 1, 3), Region(1, 0, 4)])
def test_what_a_reader_writes_no_other_reader_sees(tmp_path, copy, region):
    send(tmp_path, "x", torch.zeros(3, 4))
    receive(tmp_path, "x", copy=copy, region=region).fill_(7)
    assert same(receive(tmp_path, "x", copy=True), torch.zeros(3, 4))


@pytest.mark.parametrize("region", [None, Region(0, 1, 3), Region(1, 0, 4)])
def test_a_copy_is_in_memory_of_its_own(tmp_path, region):
    send(tmp_path, "x", torch.ones(3, 4))
    copied = receive(tmp_path, "x", copy=True, region=region)
    mapped = receive(tmp_path, "x", copy=False, region=region)
    (tmp_path / "x").write_bytes(bytes(os.path.getsize(tmp_path / "x")))  # what nobody may do
    assert torch.equal(copied, torch.ones_like(copied))
    assert torch.equal(mapped, torch.zeros_like(mapped))


def test_a_mapped_region_takes_only_itself_along_when_it_is_saved(tmp_path):
    send(tmp_path, "x", torch.ones(100, 100))
    part = receive(tmp_path, "x", copy=False, region=Region(0, 5, 6))
    assert part.untyped_storage().nbytes() == part.nbytes


def test_a_mapped_tensor_outlives_its_parcel(tmp_path):
    send(tmp_path, "x", torch.ones(5000))
    mapped = receive(tmp_path, "x", copy=False)
    send(tmp_path, "x", torch.zeros(2))
    assert same(receive(tmp_path, "x", copy=True), torch.zeros(2))
    drop(tmp_path, "x")
    assert same(mapped, torch.ones(5000))


def test_a_parcel_keeps_no_file_open_nor_mapped(tmp_path):
    open_before = len(os.listdir("/proc/self/fd"))
    send(tmp_path, "x", torch.ones(5000))
    tensor = receive(tmp_path, "x", copy=False)
    receive(tmp_path, "x", copy=True)
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert _mappings(tmp_path / "x") == 1
    part = tensor[:3]
    del tensor
    assert _mappings(tmp_path / "x") == 1
    del part
    assert _mappings(tmp_path / "x") == 0


def _mappings(path):
    with open("/proc/self/maps") as maps:
        return sum(str(path) in line for line in maps)


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "-x", "a/b", "../x", "a b", "ä", "x" * 101])
def test_a_name_that_could_be_another_file_is_refused(tmp_path, name):
    for call in (
        lambda: send(tmp_path, name, torch.ones(1)),
        lambda: arrived(tmp_path, name),
        lambda: receive(tmp_path, name, copy=True),
        lambda: drop(tmp_path, name),
    ):
        with pytest.raises(InputError, match=r"parcel: its name is .*give 1 to 100"):
            call()
    assert files(tmp_path) == []


def test_the_longest_name_will_do(tmp_path):
    send(tmp_path, "x" * 100, torch.ones(1))
    assert arrived(tmp_path, "x" * 100)


def test_a_link_is_not_followed(tmp_path):
    send(tmp_path, "x", torch.ones(1))
    os.symlink(tmp_path / "x", tmp_path / "y")
    with pytest.raises(OSError, match="y"):
        receive(tmp_path, "y", copy=True)


def test_a_sparse_tensor_is_refused(tmp_path):
    with pytest.raises(InputError, match="give a dense one"):
        send(tmp_path, "x", torch.eye(3).to_sparse())
    assert files(tmp_path) == []


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("damage", ["cut", "longer", "empty", "magic", "type", "no type", "dims"])
def test_a_file_that_is_no_parcel_is_refused(tmp_path, copy, damage):
    send(tmp_path, "x", torch.ones(3000))
    path = tmp_path / "x"
    whole = path.read_bytes()
    path.write_bytes(
        {
            "cut": whole[:-1],
            "longer": whole + b"\0",
            "empty": b"",
            "magic": b"RFP0" + whole[4:],
            "type": whole[:5] + b"float99".ljust(27, b"\0") + whole[32:],
            "no type": whole[:5] + b"nn".ljust(27, b"\0") + whole[32:],
            "dims": whole[:4] + b"\xff" + whole[5:],
        }[damage]
    )
    with pytest.raises(OSError, match="no whole parcel") as caught:
        receive(tmp_path, "x", copy=copy)
    assert caught.value.errno == errno.EBADMSG


def test_no_room_is_an_error_of_the_sender_that_leaves_nothing(tmp_path):
    """A limit on the size of files refuses room just as a full memory does."""

    tensor = torch.ones(10_000)

    def child():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        send(tmp_path, "before", torch.ones(10))
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        try:
            send(tmp_path, "x", tensor)
        except OSError:
            return 0 if files(tmp_path) == ["before"] else 2
        return 1

    assert in_child(child) == 0
    assert same(receive(tmp_path, "before", copy=True), torch.ones(10))


def test_a_failed_send_leaves_the_parcel_that_was_there(tmp_path, monkeypatch):
    send(tmp_path, "x", torch.ones(3))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(parcels.os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        send(tmp_path, "x", torch.zeros(3))
    assert files(tmp_path) == ["x"]
    assert same(receive(tmp_path, "x", copy=True), torch.ones(3))


def test_nothing_is_seen_of_a_parcel_whose_sender_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(parcels.os, "rename", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    assert in_child(lambda: send(tmp_path, "x", torch.ones(3))) == -signal.SIGKILL
    assert not arrived(tmp_path, "x")
    (draft,) = files(tmp_path)
    assert draft.startswith(".x.")


def test_a_folder_that_is_gone_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        send(tmp_path / "gone", "x", torch.ones(1))
    assert not arrived(tmp_path / "gone", "x")


def test_a_large_tensor_is_written_in_several_calls(tmp_path, monkeypatch):
    """One call to the system writes and reads 2 GiB at most; here 1,000 bytes."""
    tensor = torch.randn(5000)
    write, preadv = os.write, os.preadv
    calls = []

    def some(call):
        def wrapped(descriptor, data, *rest):
            calls.append(call)
            return call(descriptor, data, *rest)

        return wrapped

    monkeypatch.setattr(
        parcels.os, "writev", lambda fd, parts: write(fd, b"".join(map(bytes, parts))[:1000])
    )
    monkeypatch.setattr(parcels.os, "write", lambda fd, data: some(write)(fd, data[:1000]))
    monkeypatch.setattr(
        parcels.os, "preadv", lambda fd, views, at: some(preadv)(fd, [views[0][:1000]], at)
    )
    send(tmp_path, "x", tensor)
    assert same(receive(tmp_path, "x", copy=True), tensor)
    assert calls.count(write) == 20
    assert calls.count(preadv) == 20


def test_the_file_of_a_dropped_parcel_is_written_again(tmp_path):
    spares = Spares(1 << 20)
    send(tmp_path, "x", torch.ones(100), spares)
    file = os.stat(tmp_path / "x").st_ino
    drop(tmp_path, "x", spares)
    assert not arrived(tmp_path, "x")
    send(tmp_path, "other", torch.ones(101), spares)
    assert os.stat(tmp_path / "other").st_ino != file
    send(tmp_path, "y", torch.full((100,), 7), spares)  # of 8 bytes each
    assert os.stat(tmp_path / "y").st_ino != file
    send(tmp_path, "z", torch.full((100,), 7.0), spares)
    assert os.stat(tmp_path / "z").st_ino == file
    assert same(receive(tmp_path, "z", copy=True), torch.full((100,), 7.0))
    assert spares.bytes == 0
    assert files(tmp_path) == ["other", "y", "z"]


def test_a_file_written_again_may_have_another_type_and_shape(tmp_path):
    spares = Spares(1 << 20)
    for tensor in (torch.ones(100), torch.ones(10, 5, dtype=torch.int64)):
        send(tmp_path, "x", tensor, spares)
        assert same(receive(tmp_path, "x", copy=True), tensor)
        drop(tmp_path, "x", spares)
        assert len(files(tmp_path)) == 1


def test_no_more_is_kept_than_was_said(tmp_path):
    size = send(tmp_path, "x", torch.ones(100))
    spares = Spares(2 * size)
    for name in "abc":
        send(tmp_path, name, torch.ones(100), spares)
    for name in "abcx":
        drop(tmp_path, name, spares)
    drop(tmp_path, "gone", spares)
    assert spares.bytes == 2 * size
    assert len(files(tmp_path)) == 2
    spares.clear()
    assert spares.bytes == 0
    assert files(tmp_path) == []
    assert spares.take(size) is None


def test_spares_give_way_where_memory_is_short(tmp_path, monkeypatch):
    spares = Spares(1 << 20)
    send(tmp_path, "x", torch.ones(100), spares)
    drop(tmp_path, "x", spares)
    allocate = os.posix_fallocate

    def short(*call):
        if files(tmp_path) != [os.path.basename(os.readlink(f"/proc/self/fd/{call[0]}"))]:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(*call)

    monkeypatch.setattr(parcels.os, "posix_fallocate", short)
    send(tmp_path, "y", torch.ones(200), spares)
    assert files(tmp_path) == ["y"]
    assert spares.bytes == 0
    with pytest.raises(OSError, match="No space left"):
        send(tmp_path, "z", torch.ones(200), spares)
    assert files(tmp_path) == ["y"]


def test_readers_in_other_processes_see_each_version_whole(tmp_path):
    """A parcel is replaced again and again; whatever a reader finds is one of the versions."""
    versions = 200
    send(tmp_path, "x", torch.zeros(20_000, dtype=torch.int32))

    def reader():
        seen = 0
        while seen < versions - 1:
            for copy in (True, False):
                tensor = receive(tmp_path, "x", copy=copy)
                low, high = tensor.min().item(), tensor.max().item()
                if low != high or low < seen:
                    return 1
                seen = low
        return 0

    context = multiprocessing.get_context("fork")
    readers = [context.Process(target=lambda: os._exit(reader()), daemon=True) for _ in range(2)]
    for process in readers:
        process.start()
    for version in range(versions):
        send(tmp_path, "x", torch.full((20_000,), version, dtype=torch.int32))
    for process in readers:
        process.join()
    assert [process.exitcode for process in readers] == [0, 0]


@pytest.mark.parametrize(
    "source, sources, target, targets",
    [
        (Split(0), 3, Split(1), 2),
        (Split(1), 2, Split(1), 3),
        (Split(2), 2, Replicated(), 2),
        (Replicated(), 2, Split(1), 3),
    ],
)
def test_an_array_gets_from_layout_to_layout_by_parcels(tmp_path, source, sources, target, targets):
    array = torch.randn(5, 6, 7)

    def shards(layout, number):
        if isinstance(layout, Split):
            return torch.tensor_split(array, number, dim=layout.dim)
        return (array,) * number

    for index, shard in enumerate(shards(source, sources)):
        send(tmp_path, f"shard{index}", shard)
    for index, expected in enumerate(shards(target, targets)):
        made = torch.empty(shard_shape(array.shape, target, targets, index))
        for piece in pieces(array.shape, source, sources, target, targets, index):
            part = receive(tmp_path, f"shard{piece.shard}", copy=False, region=piece.region)
            if piece.place is None:
                made = part
            else:
                dim, start, stop = piece.place
                made.narrow(dim, start, stop - start).copy_(part)
        assert same(made, expected)
