"""The numbers of workers that a job may have."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from rota.errors import InputError
from rota.model.job import powers_of_two

RULES = ("any", "pow2", "divisors")


def allowed_sizes(
    rule: str | Sequence[int], least: int, most: int, *, shards: int | None = None
) -> tuple[int, ...]:
    """Sizes from ``least`` to ``most`` that the rule allows, ascending.

    ``any``; ``pow2``, the least and the powers of two above it; ``divisors``, numbers that divide
    ``shards`` (the parts of a global batch); or a list of sizes. Raises InputError if none is left,
    or a word or a number makes no sense.
    """
    if not 1 <= least <= most:
        raise InputError(f"sizes: {least} to {most} workers; give 1 <= least <= most")
    if isinstance(rule, str):
        wanted = _by_rule(rule, least, most, shards)
    else:
        wanted = sorted(set(rule))
        if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in wanted):
            raise InputError(f"sizes: {list(rule)!r} must be whole numbers above zero")
    found = tuple(size for size in wanted if least <= size <= most)
    if not found:
        raise InputError(
            f"sizes: {rule!r} allows none from {least} to {most}; widen the range or the rule"
        )
    return found


def _by_rule(rule: str, least: int, most: int, shards: int | None) -> list[int]:
    if rule == "any":
        return list(range(1, most + 1))
    if rule == "pow2":
        return list(powers_of_two(least, most))
    if rule == "divisors":
        if shards is None or shards < 1:
            raise InputError("sizes: divisors needs shards, the number that sizes must divide")
        return [size for size in range(1, min(most, shards) + 1) if shards % size == 0]
    raise InputError(f"sizes: {rule!r} must be one of {', '.join(RULES)}, or a list of numbers")


def sizes_every(spawn: int, least: int, most: int) -> tuple[int, ...]:
    """``least``, ``least + spawn``, up to ``most``: what the published engine may use.

    Raises InputError unless both ends are multiples of ``spawn``, as there.
    """
    if spawn < 1 or least < 1 or most < least or least % spawn or most % spawn:
        raise InputError(
            f"sizes: {least} to {most} in steps of {spawn}; both ends must be multiples of the step"
        )
    return tuple(range(least, most + 1, spawn))


def above(sizes: Sequence[int], size: int) -> int:
    """The next allowed size above, or the largest."""
    return sizes[min(bisect_right(sizes, size), len(sizes) - 1)]


def below(sizes: Sequence[int], size: int) -> int:
    """The next allowed size below, or the smallest."""
    return sizes[max(bisect_left(sizes, size) - 1, 0)]
