"""Groups of options: those that several commands share, and those that a help page shows apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click


def options(*groups: Sequence[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that gives a command the options of all ``groups``, in that order."""

    def give(command: Callable[..., Any]) -> Callable[..., Any]:
        for group in reversed(groups):
            for option in reversed(group):
                command = option(command)
        return command

    return give


class SectionOption(click.Option):
    """An option that the help shows below a heading, in words such as ``With --on slurm``."""

    def __init__(self, *names: Any, section: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.section = section


def by_section(parameters: Iterable[click.Parameter]) -> dict[str, list[click.Parameter]]:
    """The parameters of each section in the order of the first ones, those of none under ""."""
    found: dict[str, list[click.Parameter]] = {"": []}
    for each in parameters:
        section = each.section if isinstance(each, SectionOption) else ""
        found.setdefault(section, []).append(each)
    return found


class SectionedCommand(click.Command):
    """A command whose help shows each section after the options that have none."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options below the headings of their sections."""
        for section, parameters in by_section(self.get_params(ctx)).items():
            records = [each.get_help_record(ctx) for each in parameters]
            with formatter.section(section or "Options"):
                formatter.write_dl([record for record in records if record is not None])
