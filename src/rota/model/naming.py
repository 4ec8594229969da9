"""Names of jobs in sentences: all of a few, the first of many."""

from collections.abc import Collection
from itertools import islice

MOST_NAMED = 10  # in a sentence


def jobs_text(ids: Collection[str]) -> str:
    """``job 3``, or ``jobs 3, 4``; of many the first ones."""
    return f"{'job' if len(ids) == 1 else 'jobs'} {few(ids)}"


def few(words: Collection[str], separator: str = ", ", others: int = 0) -> str:
    """Some words, such as ids of jobs; of many the first ones, and the number of the others.

    ``others`` are not among the words, and come after them.
    """
    more = max(0, len(words) - MOST_NAMED) + others
    named = separator.join(islice(words, MOST_NAMED))
    return f"{named} and {more:,} more" if more > 0 else named
