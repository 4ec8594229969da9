"""Signatures of live jobs: equal for jobs that run the same command on the same model.

Numbers in a command stand for any number, so that the trials of a sweep have one signature. The
sizes of model and batch, which decide the work of a step, are part of it. Both are known once a job
trains; until then the job is expected to have the signature of the last job with its command.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple, TypeVar

from rota.model.job import Program, name_of

MOST_COMMANDS = 4000  # commands whose last signature is kept

_NUMBER = re.compile(r"\d*\.?\d+(?:[eE][+-]?\d+)?")

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(dict[Key, Value]):
    """A mapping that drops the oldest entries when it has more than ``most``."""

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


class StepWork(NamedTuple):
    """The sizes that decide how long a step takes; 0 where the job has not reported them."""

    model_bytes: int = 0
    batch: int = 0  # samples in a step


def pattern_of(text: str) -> str:
    """The text with ``#`` in place of each number."""
    return _NUMBER.sub("#", text)


@lru_cache(maxsize=MOST_COMMANDS)
def signature_of(program: Program, work: StepWork) -> str:
    """The program's name, and eight digits that stand for the rest.

    Commands that run in folders of different names have different signatures.
    """
    from hashlib import blake2b  # here: simulations have no programs

    parts = (pattern_of(program.run), pattern_of(program.workdir), program.processes, *work)
    digest = blake2b(repr(parts).encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{name_of(program.run)[:40]}-{digest}"


class Signatures:
    """The signature that jobs with each command turned out to have."""

    def __init__(self) -> None:
        self._last: Recent[str, str] = Recent(MOST_COMMANDS)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Signatures) and self._last == other._last

    __hash__ = None  # type: ignore[assignment]

    def expected(self, program: Program) -> str:
        """The signature that a job with this program is assumed to have.

        It is that of the last job with the very same command, else of the last one with the same
        command but for its numbers; "" if there was none.
        """
        exact, pattern = _names(program)
        return self._last.get(exact) or self._last.get(pattern, "")

    def settle(self, program: Program, work: StepWork) -> str:
        """Returns the signature of a job, now that its work is known, and remembers it."""
        signature = signature_of(program, work)
        for name in _names(program):
            self._last[name] = signature
        return signature


@lru_cache(maxsize=MOST_COMMANDS)
def _names(program: Program) -> tuple[str, str]:
    """The keys under which a signature is kept: the command, and the pattern of the command."""
    command = f"{program.workdir}\n{program.processes}\n{program.run}"
    return command, "#\n" + pattern_of(command)
