"""Launchers: programs that start the processes of a training themselves, one for each GPU."""

import os
import re
import shlex
from typing import NamedTuple

from rota.model.job import FLOW

_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
_COUNT = {  # the option that says how many processes there are
    "torchrun": "--nproc_per_node",
    "accelerate launch": "--num_processes",
    "deepspeed": "--num_gpus",
}
_PORT = {  # the option that says which port they meet at: 29500 for all jobs of a node without it
    "accelerate launch": ("--main_process_port", "--main_process_port 0"),
    "deepspeed": ("--master_port", "--master_port and a port of its own"),
}
_LIMIT_S = 30.0  # that each of them gives its ranks to end
_PROGRAM = re.compile(r"python[0-9.]*\Z|.*\.(py|sh)\Z")  # the words after it are its arguments


class Launcher(NamedTuple):
    """A launcher in a command, and the words after it."""

    name: str
    words: tuple[str, ...]

    def value_of(self, option: str) -> str | None:
        """Value of an option in the command: ``--a_b 1``, ``--a_b=1``, or with dashes within."""
        for at, word in enumerate(self.words):
            name, equals, value = word.partition("=")
            if name.replace("-", "_").lstrip("_") == option.lstrip("-"):
                return value if equals else "".join(self.words[at + 1 : at + 2])
        return None


def launcher_of(run: str) -> Launcher | None:
    """The first launcher in a command; None if there is none, or if it is no shell command."""
    lexer = shlex.shlex(run, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:
        return None
    start = 0
    for at in range(len(words) + 1):
        if at == len(words) or set(words[at]) <= set("();<>|&"):
            if found := _launcher_in(words[start:at]):
                return found
            start = at + 1
    return None


def _launcher_in(words: list[str]) -> Launcher | None:
    for at, word in enumerate(words):
        name, rest = os.path.basename(word), tuple(words[at + 1 :])
        if name in ("torchrun", "deepspeed"):
            return Launcher(name, rest)
        if name == "accelerate" and rest[:1] == ("launch",):
            return Launcher("accelerate launch", rest[1:])
        if name == "accelerate-launch":
            return Launcher("accelerate launch", rest)
        if _PROGRAM.match(name):
            if rest[:3] == ("-m", "accelerate.commands.accelerate_cli", "launch"):
                return Launcher("accelerate launch", rest[3:])
            module = rest[1] if len(rest) > 1 and rest[0] == "-m" else ""
            return Launcher(_MODULES[module], rest[2:]) if module in _MODULES else None
    return None


def advice(run: str, num_gpus: int, processes: str, grace_s: float = 0.0) -> list[str]:
    """Advice on a command with a launcher: how often it is started, and what it lacks.

    ``grace_s`` is the time that the job has asked for to save, 0.0 if for none.
    """
    launcher = launcher_of(run)
    if launcher is None:
        return []
    name, lines = launcher.name, []
    if processes == FLOW:
        return [
            f"{name} starts a process per GPU itself, and a {FLOW} job has one process without a "
            "GPU: run the script itself"
        ]
    if processes == "gpu" and num_gpus > 1:
        return [
            f"{name} starts a process per GPU itself, and processes: gpu starts it {num_gpus} "
            "times: leave processes out"
        ]
    if num_gpus > 1:
        lines.append(f"{name} starts the processes: it is started once, with {num_gpus} GPUs")
    told = launcher.value_of(_COUNT[name])
    if told is not None and told.isdigit() and int(told) != num_gpus:
        many = "1 GPU" if num_gpus == 1 else f"{num_gpus} GPUs"
        lines.append(f"{_COUNT[name]} is {told}, and the job has {many}")
    if num_gpus > 1 and name in _PORT and launcher.value_of(_PORT[name][0]) is None:
        lines.append(
            f"{name} takes port 29500, which no two jobs of a machine can: add {_PORT[name][1]}"
        )
    if grace_s > _LIMIT_S:
        lines.append(
            f"{name} kills all ranks {_LIMIT_S:g} s after one ends with an error, whatever the "
            f"grace ({grace_s:g} s): a rank that has saved on SIGTERM should exit with 0"
        )
    return lines
