"""Lengths of time in sentences."""

from rota.model.job import JobSpec, JobState


def length_text(seconds: float) -> str:
    """A length of time, exactly: ``1h30m``, ``45s``, ``0.5s``."""
    left, words = seconds, ""
    for unit, length_s in (("d", 86400), ("h", 3600), ("m", 60)):
        count, left = divmod(left, length_s)
        words += f"{count:g}{unit}" if count else ""
    return words + f"{left:g}s" if left or not words else words


def end_text(spec: JobSpec, outcome: JobState, message: str) -> str:
    """The message of a job's end; it begins with the time limit if that ended the job."""
    if outcome != JobState.TIMEOUT or spec.time_limit_s is None:
        return message
    over = f"its time limit of {length_text(spec.time_limit_s)} was over"
    return f"{over}; {message}" if message else over
