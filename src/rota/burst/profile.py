"""``python -m rota.burst.profile SCRIPT:FUNCTION --batch N``: the layer profile of a torch model.

The file it writes is what ``rota burst plan`` reads.
"""

import argparse
import importlib.util
import inspect
import json
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.errors import InputError, did_you_mean
from rota.model.layer_graph import LayerGraph
from rota.request.values import seconds_of

if TYPE_CHECKING:
    import torch

SHAPE = re.compile(r"(?P<shape>\d+(x\d+)*)(,(?P<type>[a-z]\w*)(,(?P<below>\d+))?)?")
SHAPES = "a shape and type as in 3x224x224,float32 or 128,int64,50257 (values below 50257)"


class Made(NamedTuple):
    """What a user's function made: a model, inputs like those of a step, the loss if any."""

    model: "torch.nn.Module"
    inputs: tuple["torch.Tensor", ...]
    loss: "Callable[[torch.Tensor], torch.Tensor] | None"


def made_by(source: str, inputs: str | None, batch: int) -> Made:
    """The model of ``script.py:function``, and its inputs with ``batch`` samples.

    The function yields a model, or a model, example inputs and a loss function that takes the
    output. ``inputs`` are shapes or the name of a function of the script that takes the batch.
    Raises InputError naming the file, the function or the value.
    """
    path, _, name = source.rpartition(":")
    if not path or not name:
        raise InputError(
            f"model {source!r}: name a script and its function, as train.py:make_model"
        )
    script = _loaded(Path(path))
    found = _called(script, path, name)
    model, example, loss = found, None, None
    if isinstance(found, tuple | list):
        if not 2 <= len(found) <= 3:
            raise InputError(
                f"{name} of {path} yields {len(found)} values; it yields a model, or a model, "
                "example inputs and a loss function"
            )
        model, example, loss = (*found, None)[:3]
    import torch

    if not isinstance(model, torch.nn.Module):
        raise InputError(
            f"{name} of {path} yields a {type(model).__name__} as the model; "
            "it must be a torch.nn.Module"
        )
    if loss is not None and not callable(loss):
        raise InputError(
            f"{name} of {path} yields a {type(loss).__name__} as the loss function; "
            "it takes the model's output and yields one value"
        )
    if inputs is not None:
        if SHAPE.match(inputs):
            example = tuple(_drawn(each, batch) for each in inputs.split(";"))
        else:
            example = _called(script, path, inputs, batch)
    if example is None:
        raise InputError(
            f"{name} of {path} yields no example inputs; yield (model, inputs), or give --inputs "
            f"with {SHAPES}"
        )
    from rota.burst.layers.trace import as_inputs

    return Made(model, as_inputs(example), loss)


def profile(
    made: Made,
    batch: int,
    *,
    name: str,
    blocks: Sequence[str] | None = None,
    at_most: int | None = None,
    threads: int = 1,
    budget_s: float = 60.0,
    ranks: int | None = None,
    backend: str = "gloo",
    tell: Callable[[str], None] = lambda line: None,
) -> LayerGraph:
    """The layers of a model with their measured times, and the links if ``ranks`` are given.

    Raises InputError, UntraceableModelError.
    """
    from rota.burst.layers.measure import measured
    from rota.burst.layers.network import measured_network
    from rota.burst.layers.trace import layered

    split = layered(made.model, made.inputs, blocks=blocks)
    tell(f"{len(split.pieces)} layers")
    graph = measured(
        made.model,
        split,
        made.inputs,
        batch,
        name=name,
        loss=made.loss,
        at_most=at_most,
        threads=threads,
        budget_s=budget_s,
        tell=tell,
    )
    if ranks is not None:
        tell(f"links between {ranks} ranks over {backend}")
        graph.network = measured_network(ranks, backend=backend, threads=threads)
    return graph


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure a model and write its profile."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except InputError as error:
        print(f"rota.burst.profile: {error}", file=sys.stderr)
        sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rota.burst.profile",
        description="Measure the layers of a torch model, for rota burst plan.",
    )
    parser.add_argument(
        "model",
        metavar="SCRIPT:FUNCTION",
        help="function that makes the model, or (model, example inputs, loss function)",
    )
    parser.add_argument("--batch", type=int, required=True, help="samples of a step, on all GPUs")
    parser.add_argument(
        "--inputs", help=f"{SHAPES}, several with ';'; or a function of the script, of the batch"
    )
    parser.add_argument("--blocks", help="names of submodules that stay whole, with commas")
    parser.add_argument("--most", type=int, help="the most samples that a GPU holds")
    parser.add_argument("--threads", type=int, default=1, help="of a rank on a CPU [default: 1]")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N [default: cpu]")
    parser.add_argument("--ranks", type=int, help="measure the links between so many processes")
    parser.add_argument("--budget", default="60s", help="time for the layers [default: 60s]")
    parser.add_argument("--out", type=Path, help="the file to write [default: standard output]")
    return parser


def _run(options: argparse.Namespace) -> None:
    for field, least in (("batch", 1), ("most", 1), ("threads", 1), ("ranks", 2)):
        value = getattr(options, field)
        if value is not None and value < least:
            raise InputError(f"--{field} is {value}; it is {least} or more")
    budget_s = seconds_of("--budget", options.budget)
    if options.out is not None and not options.out.parent.is_dir():
        raise InputError(f"--out {options.out}: there is no folder {options.out.parent}; make it")
    most = min(options.batch, options.most or options.batch)
    made = _on_device(made_by(options.model, options.inputs, most), options.device)
    path, _, name = options.model.rpartition(":")
    graph = profile(
        made,
        options.batch,
        name=f"{Path(path).stem}:{name}",
        blocks=[each.strip() for each in options.blocks.split(",")] if options.blocks else None,
        at_most=options.most,
        threads=options.threads,
        budget_s=budget_s,
        ranks=options.ranks,
        backend="nccl" if options.device.startswith("cuda") else "gloo",
        tell=lambda line: print(f"rota.burst.profile: {line}", file=sys.stderr, flush=True),
    )
    text = json.dumps(graph.as_json(), indent=1) + "\n"
    if options.out is None:
        sys.stdout.write(text)
        return
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=options.out.parent, prefix=".rota-profile-", delete=False
        ) as file:
            file.write(text)
        Path(file.name).replace(options.out)
    except OSError as error:
        raise InputError(f"--out {options.out}: {error.strerror}") from None


def _on_device(made: Made, device: str) -> Made:
    try:
        return made._replace(
            model=made.model.to(device), inputs=tuple(each.to(device) for each in made.inputs)
        )
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {device}: {str(error).splitlines()[0]}") from None


def _loaded(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"model: there is no file {path}; name a Python script")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"model: {path} is no Python script; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(f"model: {path} can't be run: {_said(error)}") from error
    return module


def _called(script: Any, path: str, name: str, *arguments: Any) -> Any:
    function = getattr(script, name, None)
    if not callable(function):
        known = [name for name, each in vars(script).items() if inspect.isfunction(each)]
        raise InputError(f"{path} has no function {name!r}{did_you_mean(name, known)}")
    try:
        return function(*arguments)
    except Exception as error:
        raise InputError(f"{name} of {path} failed: {_said(error)}") from error


def _drawn(text: str, batch: int) -> "torch.Tensor":
    """Random samples of a shape and type such as ``3x224x224,float32``."""
    import torch

    found = SHAPE.fullmatch(text.strip())
    kind = getattr(torch, (found and found["type"]) or "float32", None)
    if found is None or not isinstance(kind, torch.dtype):
        raise InputError(f"--inputs {text}: give {SHAPES}")
    shape = (batch, *map(int, found["shape"].split("x")))
    if kind.is_floating_point:
        return torch.randn(shape, dtype=kind)
    return torch.randint(0, int(found["below"] or 2), shape).to(kind)


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


if __name__ == "__main__":
    main()
