"""Words for the ends of jobs and of their programs."""

import signal

from rota.model.job import JobSpec, JobState
from rota.model.length import length_text


def signal_name(number: int) -> str:
    """Name of a signal; real-time signals have numbers only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def asked_end_text(exit_code: int, grace_s: float) -> str:
    """Tells how a program that was asked to end did so; "" if by itself with 0, or by SIGTERM."""
    if exit_code == -signal.SIGKILL:
        if not grace_s:
            return "it was killed at once"
        return f"it was killed when its grace of {length_text(grace_s)} was over"
    if exit_code in (0, -signal.SIGTERM):
        return ""
    if exit_code < 0:
        return f"it was killed by {signal_name(-exit_code)} after SIGTERM"
    return f"it ended with exit code {exit_code} after SIGTERM"


def end_text(spec: JobSpec, outcome: JobState, message: str) -> str:
    """The message of a job's end; it begins with the time limit if that ended the job."""
    if outcome != JobState.TIMEOUT or spec.time_limit_s is None:
        return message
    over = f"its time limit of {length_text(spec.time_limit_s)} was over"
    return f"{over}; {message}" if message else over
