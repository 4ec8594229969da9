"""Lengths of time in sentences."""


def length_text(seconds: float) -> str:
    """A length of time, exactly: ``1h30m``, ``45s``, ``0.5s``."""
    left, words = seconds, ""
    for unit, length_s in (("d", 86400), ("h", 3600), ("m", 60)):
        count, left = divmod(left, length_s)
        words += f"{count:g}{unit}" if count else ""
    return words + f"{left:g}s" if left or not words else words
