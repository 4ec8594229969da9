"""Job files in YAML: read, checked, and turned into requests."""

import contextlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rota.errors import JobFileError
from rota.request.jobfile import JobRequest, parse_job, with_inherited
from rota.request.sweepfile import SweepRequest, is_sweep, parse_sweep

MAX_FILE_BYTES = 1 << 20

_TAG = "tag:yaml.org,2002:"
# What a plain word is, by how it looks, and the characters that it may begin with.
_PLAIN = (
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)\Z", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)\Z", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))\Z"
        r"|\.(?:nan|NaN|NAN)\Z",
        "-+.0123456789",
    ),
    ("null", r"(?:~|null|Null|NULL|)\Z", ["~", "n", "N", ""]),
    ("merge", r"<<\Z", "<"),
)


def only_path(paths: Sequence[str]) -> str:
    """The path of the one job file that is given. Raises UsageError if there are several."""
    if len(paths) > 1:
        given = f"{len(paths)} job files are given, {', '.join(paths)}"
        raise click.UsageError(f"{given:.400}; give one, and call it again for the next")
    return paths[0]


def is_job_file(word: str) -> bool:
    """True for a word that stands for a job file where a command could stand as well."""
    return word == "-" or Path(word).suffix in (".yaml", ".yml")


def read_job_file(path: str) -> JobRequest | SweepRequest:
    """The job or search that a file, or standard input for ``-``, asks for. JobFileError."""
    if path == "-":
        data, name = sys.stdin.buffer.read(MAX_FILE_BYTES + 1), "standard input"
        folder = ""  # where it was removed, the file must give an absolute workdir
        with contextlib.suppress(FileNotFoundError):
            folder = os.getcwd()
    else:
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise JobFileError(
                f"job file {path!r} can't be read: {error.strerror}; give the path of a YAML file"
            ) from None
        folder, name = str(Path(path).absolute().parent), path
    if len(data) > MAX_FILE_BYTES:
        raise JobFileError(f"job file {name!r} is larger than {MAX_FILE_BYTES} bytes")
    try:
        fields = with_inherited(_load_yaml(data), os.environ)
        parse = parse_sweep if is_sweep(fields) else parse_job
        return parse(fields, workdir=folder)
    except JobFileError as error:
        raise JobFileError(f"{name}: {error}") from None


def _load_yaml(data: bytes) -> Any:
    """The content of a YAML text; a key that stands twice is refused, not overwritten.

    Plain words are numbers, true, false or null if they look like it, and else text as it is
    written: YAML 1.1 would read 1:30 as 90, 010 as 8, no as false and 2024-05-01 as a date. Values
    of ``env`` are as they are written also where they look like numbers.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    def construct_mapping(loader: Loader, node: yaml.MappingNode) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise JobFileError(
                        f"line {key.start_mark.line + 1}: {key.value!r:.80} stands there twice; "
                        "keep one"
                    )
                seen.add(key.value)
        loader.flatten_mapping(node)
        return loader.construct_mapping(node, deep=True)

    def keep_numbers_of_env(node: yaml.Node | None) -> None:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        for key, env in pairs:
            if key.value == "env" and isinstance(env, yaml.MappingNode):
                for _, value in env.value:
                    if value.tag in (f"{_TAG}int", f"{_TAG}float"):
                        value.tag = f"{_TAG}str"

    Loader.yaml_implicit_resolvers = {}
    for kind, pattern, first in _PLAIN:
        Loader.add_implicit_resolver(_TAG + kind, re.compile(pattern), list(first))
    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, construct_mapping)
    loader = None
    try:
        loader = Loader(data)
        node = loader.get_single_node()
        keep_numbers_of_env(node)
        return None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise JobFileError(f"{where}not YAML: {error.problem or error}") from None
    except (yaml.YAMLError, ValueError, OverflowError, TypeError) as error:
        raise JobFileError(f"not YAML: {' '.join(str(error).split())[:200]}") from None
    except RecursionError:
        raise JobFileError("not a job file: it is nested too deeply") from None
    finally:
        if loader is not None:
            loader.dispose()
