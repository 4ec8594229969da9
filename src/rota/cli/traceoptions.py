"""Options that describe jobs: the format of a trace, and jobs drawn at random."""

from __future__ import annotations

import re
from typing import Any

import click

from rota.workload.profiles import PROFILES
from rota.workload.readers import DURATION_UNITS, FORMATS
from rota.workload.trace import MAX_S

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
PROFILE = click.Choice(list(PROFILES))


class Span(click.ParamType):
    """A number of seconds, or of minutes, hours, days or weeks: 600, 90m, 12h, 14d, 2w."""

    name = "span"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """The seconds. Raises click.BadParameter."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", str(value), re.ASCII)
        if match is None:
            self.fail(f"{value!r} is no span such as 600, 90m, 12h, 14d or 2w", param, ctx)
        seconds = float(match[1]) * UNITS[match[2]]
        if seconds > MAX_S:
            self.fail(f"{value!r} is more than {MAX_S:,.0f} seconds", param, ctx)
        return seconds


READING = [
    click.option(
        "--format",
        "format_",
        type=click.Choice(["auto", *FORMATS]),
        default="auto",
        show_default=True,
        help="Whose format the trace has; auto tells by its content.",
    ),
    click.option("--strict", is_flag=True, help="Fail at the first row that can't be read."),
    click.option(
        "--unit",
        type=click.Choice(list(DURATION_UNITS)),
        default="s",
        show_default=True,
        help="What the durations in the file are in; arrivals stay as they are.",
    ),
    click.option(
        "--tz",
        default="",
        metavar="ZONE",
        help="The time zone of times in the file that tell none, such as Europe/Berlin, whose "
        "changes of the clocks then count.  [default: UTC]",
    ),
]
NUM_JOBS = click.option(
    "--num-jobs", type=click.IntRange(1), metavar="N", help="Draw so many jobs."
)
SPAN = click.option(
    "--span", type=Span(), metavar="SPAN", help="Draw the jobs of so long: 600, 12h, 14d."
)
