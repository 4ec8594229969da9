"""The state that must be equal on all ranks, and its transfer to ranks that lack it."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from rota.burst.runtime.groups import dtype_of, name_of
from rota.train import values

PACK_BYTES = 1 << 20  # smaller tensors travel together


class Stateful(Protocol):
    """The common interface of torch's optimisers, schedulers and scalers."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take over a state."""
        ...


class Slot(NamedTuple):
    """Facts about a tensor that a receiver needs to make room for it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    on_device: bool


class Replica:
    """Models, optimisers, schedulers and whatever else makes up the state of training."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.models: list[torch.nn.Module] = []
        self.others: list[Stateful] = []  # optimisers, schedulers, scalers
        self.plain: Callable[[], dict[str, Any]] = dict  # the session's values: see `load_plain`
        self.load_plain: Callable[[dict[str, Any]], None] = lambda _: None

    def add(self, *parts: Any) -> None:
        """Include modules, and anything else that has a ``state_dict``; each once."""
        for part in parts:
            known = self.models if isinstance(part, torch.nn.Module) else self.others
            if part is not None and not any(part is each for each in known):
                known.append(part)

    def state(self) -> dict[str, Any]:
        """The whole state. Tensors are the very ones in use."""
        return {
            "models": [dict(_tensors(model)) for model in self.models],
            "others": [part.state_dict() for part in self.others],
            "plain": self.plain(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state` gave; tensors already in their place are left alone."""
        for model, tensors in zip(self.models, state["models"], strict=True):
            for name, own in _tensors(model):
                if tensors[name] is not own:
                    own.data.copy_(tensors[name])
        for part, other in zip(self.others, state["others"], strict=True):
            part.load_state_dict(other)
        self.load_plain(state["plain"])

    def send(self, receivers: Sequence[int], share: int, shares: int) -> None:
        """Send one of ``shares`` equal parts of the tensors, and with the first part the rest.

        Raises RuntimeError if the process group fails, TypeError for what can't be handed over.
        """
        text, tensors = values.encode(self.state())
        if share == 0:
            forms = [[list(s.shape), name_of(s.dtype), s.on_device] for s in _slots(tensors)]
            head = json.dumps([forms, text]).encode()
            for receiver in receivers:
                _send_bytes(head, receiver, self.device)
        for bundle in _bundles(tensors, share, shares):
            packed = _pack([tensors[i].to(self.device) for i in bundle])
            for receiver in receivers:
                dist.send(packed, receiver)

    def receive(self, senders: Sequence[int]) -> None:
        """Receive the state from the senders, a part from each. Raises RuntimeError."""
        own = values.encode(self.state())[1]
        forms, text = json.loads(_receive_bytes(senders[0], self.device))
        slots = [Slot(tuple(shape), dtype_of(name), on_device) for shape, name, on_device in forms]
        if slots == _slots(own):
            tensors = own  # all of it has a place already
        else:
            tensors = [
                torch.empty(s.shape, dtype=s.dtype, device=self.device if s.on_device else "cpu")
                for s in slots
            ]
        for share, sender in enumerate(senders):
            for bundle in _bundles(tensors, share, len(senders)):
                members = [tensors[i] for i in bundle]
                if len(members) == 1 and _can_receive(members[0], self.device):
                    dist.recv(members[0].data.flatten().view(torch.uint8), sender)
                    continue
                size = sum(each.nbytes for each in members)
                packed = torch.empty(size, dtype=torch.uint8, device=self.device)
                dist.recv(packed, sender)
                _unpack(packed, members)
        self.load(values.decode(text, tensors))

    def save(self, path: str, draft: str = ".new") -> None:
        """Write everything to a file, completely or not at all; makes its folder if needed.

        ``draft`` ends the file's name until it is complete: each process that may write needs
        another. Raises OSError with advice; if the disk has too little room, before writing
        anything, so that it is not filled up.
        """
        draft, handled = path + draft, sys.exception()
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)  # left by a killed process
            state = self.state()
            status = os.statvfs(os.path.dirname(path))
            free_bytes = status.f_bavail * status.f_frsize
            if status.f_blocks and _stored_bytes(state) > free_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with open(draft, "wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(draft)  # most needed on a full disk
            cause = _cause(error, handled)
            if cause is not None:
                raise _with_advice(cause, path) from None
            raise

    def open(self, path: str) -> None:
        """Load what :meth:`save` wrote."""
        with open(path, "rb") as file:
            self.load(torch.load(io.BytesIO(file.read()), map_location="cpu", weights_only=False))


def _cause(error: BaseException, handled: BaseException | None) -> OSError | None:
    """The OSError behind torch's failure to write; None if the cause was something else.

    An error ``handled`` by the caller before is not the cause.
    """
    if isinstance(error, RuntimeError):  # torch complains that its file is not whole
        cause = error.__context__
        return cause if isinstance(cause, OSError) and cause is not handled else None
    return error if isinstance(error, OSError) else None


def _stored_bytes(state: Any) -> int:
    """Bytes that the tensors of a state take in a file, each storage once."""
    storages: dict[int, int] = {}
    values = [state]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list | tuple):
            values += value
        elif isinstance(value, torch.Tensor) and value.layout == torch.strided:
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _with_advice(error: OSError, path: str) -> OSError:
    """The same kind of error, with advice on making ``path`` writable."""
    number = error.errno or errno.EIO
    advice = {
        errno.ENOSPC: "make room on its disk",
        errno.EDQUOT: "make room within your quota",
        errno.EEXIST: "its folder must be a folder, or a link to one: move away what is there",
        errno.ENOTDIR: "its folder must be a folder, or a link to one: move away what is there",
        errno.EISDIR: "move away the folder of that name",
        errno.EACCES: "make its folder writable for the job",
        errno.EROFS: "have its disk mounted for writing",
    }.get(number, "check its folder and its disk")
    what = error.strerror or str(error)
    return OSError(number, f"the checkpoint can't be written: {what}; {advice}", path)


def take_apart(state: Any) -> tuple[bytes, list[torch.Tensor]]:
    """``state`` without its tensors, pickled; and the tensors, in order."""
    tensors: list[torch.Tensor] = []

    class Taker(pickle.Pickler):
        def persistent_id(self, value: Any) -> int | None:
            if not isinstance(value, torch.Tensor):
                return None
            tensors.append(value.detach())
            return len(tensors) - 1

    skeleton = io.BytesIO()
    Taker(skeleton, pickle.HIGHEST_PROTOCOL).dump(state)
    return skeleton.getvalue(), tensors


def put_together(skeleton: bytes, tensors: Sequence[torch.Tensor]) -> Any:
    """The inverse of :func:`take_apart`, with the original types."""

    class Giver(pickle.Unpickler):
        def persistent_load(self, pid: int) -> torch.Tensor:
            return tensors[pid]

    return Giver(io.BytesIO(skeleton)).load()


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _slots(tensors: Iterable[torch.Tensor]) -> list[Slot]:
    return [Slot(tuple(each.shape), each.dtype, each.is_cuda) for each in tensors]


def _bundles(tensors: Sequence[torch.Tensor], share: int, shares: int) -> Iterator[list[int]]:
    """The positions of those tensors that belong to one share, in bundles to be sent as one."""
    total, before = sum(each.nbytes for each in tensors) or 1, 0
    bundle: list[int] = []
    for index, tensor in enumerate(tensors):
        middle = before + tensor.nbytes / 2
        before += tensor.nbytes
        if min(int(middle * shares / total), shares - 1) != share or not tensor.numel():
            continue
        if tensor.nbytes >= PACK_BYTES:  # sent directly from place to place
            yield [index]
            continue
        bundle.append(index)
        if sum(tensors[i].nbytes for i in bundle) >= PACK_BYTES:
            yield bundle
            bundle = []
    if bundle:
        yield bundle


def _can_receive(tensor: torch.Tensor, device: torch.device) -> bool:
    """True if a large tensor can be received directly into its place."""
    return tensor.is_contiguous() and tensor.device.type == device.type


def _pack(members: Sequence[torch.Tensor]) -> torch.Tensor:
    flat = [m.contiguous().flatten().view(torch.uint8) for m in members]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


def _unpack(packed: torch.Tensor, members: Sequence[torch.Tensor]) -> None:
    for member, piece in zip(members, packed.split([m.nbytes for m in members]), strict=True):
        # A copy of the piece begins where any type may begin.
        member.data.copy_(piece.clone().view(member.dtype).view(member.shape))


def _send_bytes(data: bytes, receiver: int, device: torch.device) -> None:
    dist.send(torch.tensor([len(data)], device=device), receiver)
    dist.send(torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device), receiver)


def _receive_bytes(sender: int, device: torch.device) -> bytearray:
    length = torch.zeros(1, dtype=torch.int64, device=device)
    dist.recv(length, sender)
    received = torch.empty(int(length.item()), dtype=torch.uint8, device=device)
    dist.recv(received, sender)
    data = bytearray(len(received))
    torch.frombuffer(data, dtype=torch.uint8).copy_(received)
    return data
