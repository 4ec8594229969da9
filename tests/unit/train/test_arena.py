"""The state of training in a file: whole or not at all, and the same bits when it is read."""

import errno
import os
import random
import shutil
import subprocess

import numpy as np
import pytest
import torch
from torch import nn

from rota.errors import ArenaError
from rota.live.wire import arena_file
from rota.live.wire.arena_file import BLOCK_BYTES, Checksum, read_header, read_table, verify
from rota.train import arena as arena_module
from rota.train.arena import Arena, dense, random_state, set_random_state


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.arena")


def trained(seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 5))
    net = net.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters())
    step(net, optimizer)
    return net, optimizer


def step(net, optimizer):
    optimizer.zero_grad()
    net(torch.ones(2, 3, 8, 8)).square().sum().backward()
    optimizer.step()


def state_of(net, optimizer, **more):
    return {"net": dict(net.named_parameters()), "optimizer": optimizer.state_dict(), **more}


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


ODDITIES = {
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(3.5),
    "half": torch.arange(7, dtype=torch.bfloat16),
    "flags": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j]),
    "transposed": torch.arange(6.0).view(2, 3).t(),
    "slice": torch.arange(20.0)[3:15:2],
    "expanded": torch.ones(1).expand(4),
    "words": ("a", 1, None, [2.5]),
}


@pytest.mark.parametrize("copy", [False, True])
def test_what_is_read_is_what_was_written(path, copy):
    state = state_of(*trained(), **ODDITIES)
    size = Arena(path).write(state)
    assert os.path.getsize(path) == size == read_header(path).total_bytes
    verify(path)
    assert same(Arena(path).read(copy=copy), state)


def test_strides_are_kept_where_elements_lie_side_by_side(path):
    weight = trained()[0][0].weight
    assert not weight.is_contiguous()
    Arena(path).write([weight, torch.arange(6.0).view(2, 3).t()])
    read = Arena(path).read()
    assert read[0].stride() == weight.stride()
    assert read[1].stride() == (1, 3)
    assert dense(torch.arange(20.0)[::2]).stride() == (1,)


def test_a_file_that_is_there_is_written_over_where_it_lies(path):
    net, optimizer = trained()
    arena = Arena(path)
    arena.write(state_of(net, optimizer))
    inode = os.stat(path).st_ino
    step(net, optimizer)
    arena.write(state_of(net, optimizer))
    assert os.stat(path).st_ino == inode
    assert same(Arena(path).read(), state_of(net, optimizer))


def test_an_optimizer_lives_on_in_the_file_and_only_the_rest_is_written(path, monkeypatch):
    net, optimizer = trained()
    Arena(path).write(state_of(net, optimizer))
    other, optimizer2 = trained(1)
    arena = Arena(path)
    state = arena.read()
    for name, parameter in other.named_parameters():
        parameter.data.copy_(state["net"][name])
    optimizer2.load_state_dict(state["optimizer"])
    skipped = []
    write_tensor = arena_module.write_tensor

    def watched(descriptor, tensor, offset, *, skip):
        skipped.append(skip)
        return write_tensor(descriptor, tensor, offset, skip=skip)

    monkeypatch.setattr(arena_module, "write_tensor", watched)
    for both in [(net, optimizer), (other, optimizer2)]:
        step(*both)
    arena.write(state_of(other, optimizer2))
    assert skipped == [False] * 4 + [True] * 12  # the parameters, and the state of each
    verify(path)
    assert same(Arena(path).read(), state_of(net, optimizer))


def test_tensors_that_would_have_to_move_within_the_file_go_to_another_one(path):
    net, optimizer = trained()
    Arena(path).write(state_of(net, optimizer))
    arena = Arena(path)
    state = arena.read()
    expected = state_of(net, optimizer, first=torch.ones(1000))
    inode = os.stat(path).st_ino
    arena.write({"first": torch.ones(1000), **state})
    assert os.stat(path).st_ino != inode
    assert os.listdir(os.path.dirname(path)) == ["a.arena"]
    assert same(Arena(path).read(), expected)
    assert same(state, state_of(net, optimizer)), "those in use are where they were"


def test_each_tensor_has_a_storage_of_its_own(path):
    Arena(path).write([torch.ones(3), torch.zeros(100)])
    one, _ = Arena(path).read()
    assert one.untyped_storage().nbytes() == 12


@pytest.mark.parametrize("where", ["first", "tensor", "last"])
def test_a_full_disk_leaves_no_file(path, monkeypatch, where):
    pwrite, calls = os.pwrite, []
    fails_at = {"first": 1, "tensor": 4, "last": 7}[where]

    def full(descriptor, data, offset):
        calls.append(offset)
        if len(calls) == fails_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        Arena(path).write([torch.ones(3) * i for i in range(4)])
    assert not os.path.exists(path)


def test_a_file_that_is_being_written_is_no_arena(path, monkeypatch):
    arena = Arena(path)
    arena.write([torch.ones(3)])
    seen = []

    def pack(header):
        with pytest.raises(ArenaError, match="not written to its end"):
            read_header(path)
        seen.append(1)
        return original(header)

    original = arena_file.ArenaHeader.pack
    monkeypatch.setattr(arena_file.ArenaHeader, "pack", pack)
    arena.write([torch.zeros(3)])
    assert seen == [1]
    read_header(path)


def test_a_state_that_is_out_of_date_is_none(path):
    arena = Arena(path)
    arena.write([torch.ones(3)])
    arena.forget()
    with pytest.raises(ArenaError, match="not written to its end"):
        Arena(path).read()
    os.unlink(path)
    arena.forget()


@pytest.mark.parametrize(
    ("at", "data", "says"),
    [
        (0, b"X", "not written to its end"),
        (12, b"X", "header is damaged"),
        (4096 + 5, b"X", "tensor 0 is damaged"),
        (-1, b"X", "table is damaged"),
    ],
)
def test_damage_is_found_and_named(path, at, data, says):
    Arena(path).write([torch.ones(3 * BLOCK_BYTES // 4 + 1), "end"])
    verify(path)
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        file.write(data)
    with pytest.raises(ArenaError, match=says):
        verify(path)
    with pytest.raises(ArenaError, match=says):
        Arena(path).read(copy=True)


def test_a_file_that_was_cut_short_or_is_gone_is_told(path):
    Arena(path).write([torch.ones(300)])
    os.truncate(path, 4200)
    with pytest.raises(ArenaError, match="4200 bytes are left of"):
        verify(path)
    os.unlink(path)
    with pytest.raises(ArenaError, match="No such file"):
        read_header(path)


def test_without_room_for_all_of_it_nothing_is_written_and_no_room_is_taken(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(arena_module, "write_tensor", lambda *_, **__: written.append(1))
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a file system")
    try:
        with pytest.raises(OSError) as raised:
            Arena(str(tmp_path / "a.arena")).write([torch.ones(1 << 18)])
        assert raised.value.errno == errno.ENOSPC
        assert not written
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_an_arena_under_another_name_is_not_its_own(path):
    Arena(path).write([torch.ones(300)])
    other = path.replace("a.arena", "b.arena")
    shutil.copyfile(path, other)
    shutil.copyfile(path, f"{path}.part")
    verify(f"{path}.part")
    for read in (verify, read_table):
        with pytest.raises(ArenaError, match="or another job's"):
            read(other)


def test_a_header_that_promises_too_much_is_damaged(path):
    Arena(path).write([torch.ones(300)])
    header = read_header(path)
    with open(path, "r+b") as file:
        file.write(header._replace(skeleton_bytes=1 << 60).pack())
    with pytest.raises(ArenaError, match="its header is damaged"):
        verify(path)


def test_an_arena_is_not_written_over_what_a_link_leads_to(tmp_path, path):
    (tmp_path / "precious").write_text("precious")
    os.symlink(tmp_path / "precious", path)
    with pytest.raises(OSError):
        Arena(path).write([torch.ones(3)])
    assert (tmp_path / "precious").read_text() == "precious"


def test_an_arena_of_another_version_is_refused(path, monkeypatch):
    monkeypatch.setattr(arena_file, "VERSION", 3)
    Arena(path).write([])
    monkeypatch.undo()
    with pytest.raises(ArenaError, match="version 3, and this Rota reads 2"):
        read_header(path)


def test_a_checksum_depends_on_every_byte_and_on_the_order_of_blocks():
    data = bytearray(os.urandom(BLOCK_BYTES * 2 + 13))
    first = Checksum()
    first.add(data)
    swapped = Checksum()
    swapped.add(data[BLOCK_BYTES : 2 * BLOCK_BYTES] + data[:BLOCK_BYTES] + data[-13:])
    data[-1] ^= 1
    changed = Checksum()
    changed.add(data)
    assert len({first.value, swapped.value, changed.value}) == 3


def test_random_generators_go_on_where_they_were():
    state = random_state()

    def draw():
        return random.random(), float(np.random.rand()), torch.rand(1).item()

    expected = draw()
    draw()
    set_random_state(state)
    assert draw() == expected
