"""Options of a section have a heading of their own in the help."""

import click
from click.testing import CliRunner

from rota.cli.optiongroups import SectionedCommand, SectionOption

RARE = {"cls": SectionOption, "section": "With --rare"}


@click.command(cls=SectionedCommand)
@click.option("--first", help="The first.")
@click.option("--inner", help="The inner.", **RARE)
@click.option("--last", help="The last.")
def command(first: str, inner: str, last: str) -> None:
    """Do it."""


def test_help_shows_a_section_after_all_other_options():
    words = CliRunner().invoke(command, ["--help"]).output.split("\n\n")
    _, _, general, rare = words
    assert [line.split()[0] for line in general.splitlines()] == [
        *("Options:", "--first", "--last", "--help"),
    ]
    assert rare.splitlines() == ["With --rare:", "  --inner TEXT  The inner."]
