"""Write docs/reference/cli.md from the program itself: every command, option, exit code and error.

python docs/generate_cli.py           write the file
python docs/generate_cli.py --check   say whether the file is what it should be
"""

import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

import rota.errors
from rota.cli.main import COMMANDS, cli
from rota.cli.main import _code as exit_code_of
from rota.cli.optiongroups import by_section

PAGE = Path(__file__).parent / "reference" / "cli.md"

HEAD = """# Commands

This page is made by `python docs/generate_cli.py`; edit the help texts, not the page.

`rota COMMAND --help` (or `-h`) prints the same. All commands but `up`, `agent` and the simulator's
talk to a running controller: they find it through `ROTA_SERVER`, else through the file
`server.json` of the state folder, and their token through `ROTA_TOKEN`, else in the same folder.
`ROTA_CA` says whom to trust at an address with https. The state folder is `ROTA_HOME`, else
`$XDG_DATA_HOME/rota`, else `~/.local/share/rota`. `NO_COLOR` turns colours off.

## Exit codes

| code | meaning |
| ---: | --- |
| 0 | all went well |
| 1 | something failed; also: time ran out in `rota wait --timeout`, an experiment does not hold |
| 2 | something that the user wrote is wrong |
| 3 | data that is needed is absent; also: a job never fits, with `--dry-run`, `--wait` or `-f` |
| 4 | the job that was waited for or followed did not succeed |
| 5 | the token is missing or wrong |
| 130 | interrupted by Ctrl-C |

Errors are one line on stderr that begins with `error:`. Each is one of these classes of
`rota.errors`; Python code gets the exception, the API its name as `code`.

| error | exit code | meaning |
| --- | ---: | --- |
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD + "\n".join(_errors())]
    for title, section in COMMANDS.items():
        parts.append(f"## {title}")
        for name in section:
            parts += _command(cli, name, "rota")
    return "\n\n".join(parts) + "\n"


def _errors() -> Iterator[str]:
    for name, kind in vars(rota.errors).items():
        if inspect.isclass(kind) and issubclass(kind, rota.errors.RotaError):
            meaning = " ".join((kind.__doc__ or "").split())
            yield f"| `{name}` | {exit_code_of(kind('x'))} | {meaning} |"


def _command(group: click.Group, name: str, prefix: str) -> Iterator[str]:
    path = f"{prefix} {name}"
    context = click.Context(group, info_name=prefix)
    command = group.get_command(context, name)
    assert command is not None
    own = click.Context(command, info_name=path, terminal_width=100)
    yield f"### {path}"
    usage = " ".join([path, *command.collect_usage_pieces(own)])
    yield f"```text\n{usage}\n```"
    for text in (command.help, command.epilog):
        if text:
            yield inspect.cleandoc(text)
    for section, parameters in by_section(command.params).items():
        if section:
            yield f"{section}:"
        if rows := list(_options(parameters, own)):
            yield "\n".join(["| option | meaning |", "| --- | --- |", *rows])
    if isinstance(command, click.Group):
        for each in command.list_commands(own):
            yield from _command(command, each, path)


def _options(parameters: Sequence[click.Parameter], context: click.Context) -> Iterator[str]:
    for parameter in parameters:
        record = parameter.get_help_record(context)
        if record is not None and record[1]:  # arguments may have no help of their own
            names, text = (" ".join(part.split()).replace("|", "\\|") for part in record)
            yield f"| `{names}` | {text} |"


def main() -> None:
    """Write the page, or with --check compare it."""
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() != page():
            sys.exit(f"{PAGE} is out of date: run python docs/generate_cli.py")
        return
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
