"""Every exception that Rota raises on purpose.

RotaError
├── InputError              something the user wrote; names the field, the value and the fix
│   ├── TraceError          a job trace
│   ├── JobFileError        a job file or a submission
│   ├── ClusterSpecError    a cluster description such as ``15x4``
│   ├── PolicySettingError  an unknown policy, an unknown or malformed setting
│   ├── NeverFitsError      a job that asks for more than the cluster will ever have
│   └── UntraceableModelError  a model that can't be split into layers
├── DataMissingError        data that an experiment needs is not there
├── TransitionError         an event that a job's state does not allow; carries the job's story
├── PlanError               a plan that breaks the policy contract
├── SimulationError         a simulation that lost a job or cannot go on
├── StoreError              the event log can't be read or written
│   ├── StoreFullError      its disk has no room: what was refused can be tried again
│   └── StoreLostError      it was moved, deleted or replaced under a running controller
├── AgentError              a node agent can't do what it was asked
│   ├── AgentAwayError      it is not connected, or does not answer
│   └── NeverStartsError    no try to start a job can succeed; carries the code of the obstacle
├── ArenaError              the state of a suspended job is damaged, or not whole
├── GangError               the ranks of a job can't go on together
├── FlowError               a program that drives workers can't go on
│   ├── OperationError      an operation failed; carries what it raised, and where
│   ├── WorkerLostError     a worker ended, and what it held is lost
│   ├── SliceChangedError   a slice has lost a device; its buffers are intact
│   └── FlowMemoryError     buffers and operations need more memory than the program may have
├── SweepError              a search, or a trial of it, ended without what it was to find
└── ServerError             the controller's answer to a client call
    ├── UnreachableError    no controller answers
    ├── AuthError           the token is missing, wrong or of the wrong kind
    ├── NotOwnerError       it is for the owner of a job, or of the cluster, alone
    ├── NotAllowedError     the caller's role does not allow the action
    ├── NotFoundError       no such job, search or trial; an output that is gone
    ├── CursorError         no event stream goes on from this place; carries where one may begin
    ├── BusyError           too many streams, or too many calls at once; carries when to try again
    └── ShortageError       the controller has no descriptor, process or memory left for the call
"""

import contextlib
import errno
import resource
from collections.abc import Iterable

NO_THREAD = "can't start new thread"  # what Python raises a RuntimeError with


class RotaError(Exception):
    """Base of every error that Rota raises on purpose."""


class InputError(RotaError):
    """Something the user wrote is wrong; the message names the field, the value and the fix."""


class TraceError(InputError):
    """A job trace is malformed."""


class JobFileError(InputError):
    """A job file or a submission is malformed."""


class ClusterSpecError(InputError):
    """A cluster description is malformed."""


class PolicySettingError(InputError):
    """A policy is unknown, or one of its settings is."""


class NeverFitsError(InputError):
    """A job asks for more GPUs than the cluster will ever have."""


class UntraceableModelError(InputError):
    """A model can't be split into layers; the message names the module and the fix."""


class DataMissingError(RotaError):
    """Data that an experiment needs is not there."""


class TransitionError(RotaError):
    """An event that a job's state does not allow. The message carries the job's story."""


class PlanError(RotaError):
    """A plan breaks the policy contract."""

    def __init__(self, message: str, rows: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.rows = tuple(rows)  # the jobs whose part of the plan breaks it, if known


class PolicyError(RotaError):
    """A policy raised an exception where it was to decide."""


class SimulationError(RotaError):
    """A simulation lost a job, or can't go on."""


class StoreError(RotaError):
    """The event log can't be read or written."""


class StoreFullError(StoreError):
    """The disk of the event log has no room. Nothing was written; it can be tried again."""


class StoreLostError(StoreError):
    """The event log was moved, deleted or replaced while a controller had it open."""


class AgentError(RotaError):
    """A node agent can't do what it was asked."""


class AgentAwayError(AgentError):
    """A node agent is not connected, or does not answer: what only it can tell is not known."""


class NeverStartsError(AgentError):
    """No try to start a job can succeed."""

    def __init__(self, message: str, obstacle: str = "") -> None:
        super().__init__(message)
        self.obstacle = obstacle  # one of rota.model.obstacle


class ArenaError(RotaError):
    """A file with the state of a suspended job is damaged, or was never written to its end."""


class GangError(RotaError):
    """The ranks of a job can't go on together."""


class FlowError(RotaError):
    """A program that drives workers can't go on."""


class OperationError(FlowError):
    """An operation failed; the message names it and its device, and says what it raised."""


class WorkerLostError(FlowError):
    """A worker ended; what it held is lost."""


class SliceChangedError(FlowError):
    """A slice has lost a device: it can't work. Its buffers are intact, and may go to another."""


class FlowMemoryError(FlowError):
    """Buffers and operations need more memory of a device than the program may have."""


class SweepError(RotaError):
    """A search, or one of its trials, ended without a value."""


class ServerError(RotaError):
    """The controller refused a call, or failed at it."""


class UnreachableError(ServerError):
    """No controller answers at the address."""


class AuthError(ServerError):
    """The token is missing, wrong or of the wrong kind."""


class NotOwnerError(ServerError):
    """It is for the owner of a job, or of the cluster, alone."""


class NotAllowedError(ServerError):
    """The caller's role does not allow the action."""


class NotFoundError(ServerError):
    """There is no such job, search or trial, or the output of a job is gone."""


class CursorError(ServerError):
    """No event stream goes on from this cursor; one may begin at the cursor ``begin``."""

    def __init__(self, message: str, begin: str = "") -> None:
        super().__init__(message)
        self.begin = begin


class BusyError(ServerError):
    """There are as many streams as there may be; it can be tried after ``retry_after_s``."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ShortageError(ServerError):
    """The controller has no descriptor, process or memory left for a call; try it again later."""


def shortage_of(error: BaseException) -> str | None:
    """The limit of this process or machine that a failure met, with the fix; None for others."""
    if isinstance(error, RuntimeError) and NO_THREAD in str(error):
        number: int | None = errno.EAGAIN
    elif isinstance(error, MemoryError):
        number = errno.ENOMEM
    else:
        number = error.errno if isinstance(error, OSError) else None
    if number == errno.EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"no more file can be opened: a process may have {most} open; raise ulimit -n"
    if number == errno.ENFILE:
        return "no more file can be opened on this machine; close some, or raise sysctl fs.file-max"
    if number == errno.EAGAIN:
        return (
            "no more process can be started here; end some of this user's, or raise its limit "
            "(ulimit -u, or pids.max of its control group)"
        )
    return "this machine has no memory left; free some" if number == errno.ENOMEM else None


def pip_install(extra: str) -> str:
    """The command that installs what an extra of Rota needs, wherever Rota itself came from."""
    import re
    from importlib.metadata import PackageNotFoundError, requires

    needs = []
    with contextlib.suppress(PackageNotFoundError):
        for need in requires("rota") or ():
            package, _, marker = need.partition(";")
            if re.search(f"extra *== *['\"]{extra}['\"]", marker):
                needs.append(f"'{package.strip()}'")
    return " ".join(["pip install", *needs]) if needs else f"install Rota with its extra {extra}"


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant by this one, whatever its case; None if none was.

    It is like it, or one of the two begins with the other.
    """
    from difflib import get_close_matches

    low = word[:80].lower()
    words = {name.lower(): name for name in known}
    close = get_close_matches(low, words, n=1)
    for name in words:
        if min(len(low), len(name)) >= 3 and (low.startswith(name) or name.startswith(low)):
            close.append(name)
    return words[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Part of a message: `` (did you mean 'x'?)`` with the :func:`closest` known word, else ""."""
    close = closest(word, known)
    return f" (did you mean {close!r}?)" if close is not None else ""
