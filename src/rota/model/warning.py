"""Warnings of policies, told apart by kind, since their figures may differ at each decision."""

from collections.abc import Iterable

from rota.model.measured.job_signature import pattern_of


def kind_of(warning: str) -> str:
    """The words up to a colon, whatever numbers are in them."""
    return pattern_of(warning.partition(":")[0])


def is_news(warnings: Iterable[str], known: Iterable[str]) -> bool:
    """True if any of these differs from the known ones in more than numbers."""
    return [pattern_of(each) for each in warnings] != [pattern_of(each) for each in known]
