"""How processes have ended that were asked to, in words."""

import signal

from rota.model.length import length_text


def signal_name(number: int) -> str:
    """Name of a signal; real-time signals have numbers only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def asked_end_text(exit_code: int, grace_s: float) -> str:
    """How a program ended that was asked to; "" if it did as it was asked."""
    if exit_code == -signal.SIGKILL:
        if not grace_s:
            return "it was killed at once"
        return f"it was killed when its grace of {length_text(grace_s)} was over"
    if exit_code in (0, -signal.SIGTERM):
        return ""
    if exit_code < 0:
        return f"it was killed by {signal_name(-exit_code)} after SIGTERM"
    return f"it ended with exit code {exit_code} after SIGTERM"
