"""Kinds of live jobs: those that run the same command on the same model.

A sweep is one kind: numbers in a command stand for any number. What they change in the work of a
step shows in the signature, the size of the model and of the batch, which is known once a job
trains. Until then it is taken for what the last job with its command was.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple, TypeVar

from rota.model.job import Program

MOST_COMMANDS = 4000  # of which the last kind is remembered

_NUMBER = re.compile(r"\d*\.?\d+(?:[eE][+-]?\d+)?")

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(dict[Key, Value]):
    """A mapping that forgets what was set longest ago when it has more than ``most`` entries."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.most,), None, None, iter(self.items())

    def __setitem__(self, key: Key, value: Value) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self.most:
            del self[next(iter(self))]


class Signature(NamedTuple):
    """What of a model and its training decides how long a step takes; 0 where it is not told."""

    model_bytes: int = 0
    batch: int = 0  # samples in a step


def pattern_of(text: str) -> str:
    """The text with ``#`` in place of each number."""
    return _NUMBER.sub("#", text)


@lru_cache(maxsize=MOST_COMMANDS)
def kind_of(program: Program, signature: Signature) -> str:
    """What a kind is called: the program's name, and eight digits that stand for the rest.

    Commands that run in folders of different names are of different kinds.
    """
    from hashlib import blake2b  # here, and below: simulations have no programs

    from rota.model.jobfile import name_of

    parts = (pattern_of(program.run), pattern_of(program.workdir), program.processes, *signature)
    digest = blake2b(repr(parts).encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{name_of(program.run)[:40]}-{digest}"


class Kinds:
    """The kinds that commands turned out to be of."""

    def __init__(self) -> None:
        self._last: Recent[str, str] = Recent(MOST_COMMANDS)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kinds) and self._last == other._last

    __hash__ = None  # type: ignore[assignment]

    def expected(self, program: Program) -> str:
        """What a job with this program is taken for: the last with the very same command, else the
        last with the same but for its numbers; empty if there was none."""
        exact, pattern = _names(program)
        return self._last.get(exact) or self._last.get(pattern, "")

    def settle(self, program: Program, signature: Signature) -> str:
        """The kind of a job, now that its signature is known."""
        kind = kind_of(program, signature)
        for name in _names(program):
            self._last[name] = kind
        return kind


@lru_cache(maxsize=MOST_COMMANDS)
def _names(program: Program) -> tuple[str, str]:
    """By which the kind of a program is remembered: its command, and the pattern of that."""
    command = f"{program.workdir}\n{program.processes}\n{program.run}"
    return command, "#\n" + pattern_of(command)
