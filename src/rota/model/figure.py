"""Figures in sentences."""


def rounded(value: float, digits: int = 3) -> str:
    """A number to so many digits, without a power of ten: ``190``, ``1800``, ``0.015``."""
    return f"{float(f'{value:.{digits}g}'):.15g}"
