"""The command of a trial: the search's ``run``, with its parameters as words of a shell."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rota.errors import did_you_mean
from rota.model.sweep import Value
from rota.request.searchspace import Choice, Space
from rota.request.values import refuse

# {{x}}, ${x} and {x}, of which the last alone is a parameter.
_BRACES = re.compile(
    r"\{\{([A-Za-z_][A-Za-z0-9_]*)\}\}|\$\{[A-Za-z_][A-Za-z0-9_]*\}|\{([A-Za-z_][A-Za-z0-9_]*)\}"
)
# What decides where quotes of ours would be quotes: a backslash with what it takes, <<<, <<, $',
# $(, a backtick, quotes, the beginning of a comment, the end of a line.
_MARKS = re.compile(r"\\[\s\S]?|<<<|<<|\$'|\$\(|`|'|\"|(?:^|(?<=[\s;&|()<>]))#|\n")


# Where we are (see _places) after which mark, if that changes anything.
_CHANGES = {
    "": {"'": "'", '"': '"', "#": "#", "<<": "?", "$'": "?", "`": "?"},
    '"': {'"': "", "$(": "?", "`": "?"},
}
_ENDS = {"'": "'", "#": "\n"}  # a backslash before these is nothing there


class Place(NamedTuple):
    """A parameter in a command; ``bare`` if a quoted value there is one word, whatever it has."""

    start: int
    end: int
    name: str
    bare: bool


def check_command(run: str, space: Space) -> None:
    """Refuse braces around other names than parameters, and values that can't stand there.

    Without a space any name may be a parameter. Raises JobFileError.
    """
    dimensions = dict(space)
    for place in _places(run):
        if not dimensions:
            continue
        if place.name not in dimensions:
            hint = did_you_mean(place.name, dimensions)
            fix = f"sweep.space has no parameter {place.name}{hint}; for braces in a command write"
            refuse("run", f"{{{place.name}}}", f"{fix} {{{{{place.name}}}}}")
        dimension = dimensions[place.name]
        for value in dimension.values if isinstance(dimension, Choice) else ():
            _word(place, value, f"sweep.space.{place.name}.choice")


def trial_command(run: str, params: Mapping[str, Value]) -> str:
    """The command with its parameters. Raises JobFileError if one is missing or can't stand there.

    Doubled braces around a name stay as single ones; ``${NAME}`` and all other braces stay.
    """
    parts, end = [], 0
    for place in _places(run):
        if place.name not in params:
            fix = f"{place.name} is missing, which run has as {{{place.name}}}"
            refuse("params", dict(params), fix)
        word = _word(place, params[place.name], f"params.{place.name}")
        parts += [_literal(run[end : place.start]), word]
        end = place.end
    return "".join([*parts, _literal(run[end:])])


def _literal(text: str) -> str:
    return _BRACES.sub(lambda match: f"{{{match[1]}}}" if match[1] else match[0], text)


def _word(place: Place, value: Value, field: str) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    quoted = shlex.quote(text)
    if quoted != text and not place.bare:
        refuse(
            field,
            value,
            f"in run {{{place.name}}} stands within quotes, a comment, backticks or a "
            "here-document, where only letters, digits and @%+=:,./-_ are sure to stay as they "
            "are; write it outside of them, or read the value from ROTA_PARAMS",
        )
    return quoted


def _places(run: str) -> Iterator[Place]:
    """The parameters in a command, as bash reads it.

    Where quotes are within a substitution within quotes, or in a here-document, nothing that
    follows counts as bare: this is no parser of bash, and must not be wrong.
    """
    at, within = 0, ""  # "" is bare, else what began: ' " # or ? for what is not known
    for match in _BRACES.finditer(run):
        name = match[2]
        if name is None:
            continue
        for mark in _MARKS.finditer(run, at, match.start()):
            within = _after(mark[0], within)
        before = run[at : match.start()]
        escaped = (len(before) - len(before.rstrip("\\"))) % 2 == 1
        at = match.end()
        yield Place(match.start(), at, name, not within and not escaped)


def _after(mark: str, within: str) -> str:
    """Position after a mark."""
    if within in _ENDS:
        return "" if mark.endswith(_ENDS[within]) else within
    return _CHANGES.get(within, {}).get(mark, within)
