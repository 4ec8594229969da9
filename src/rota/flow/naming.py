"""Names of functions: how a worker finds a client's function. Code is never pickled.

A function is named by its import path, by its source if it is of ``__main__`` (a script or a
notebook), or by the file of an exported module.
"""

import __future__

import ast
import builtins
import dis
import importlib
import importlib.util
import inspect
import linecache
import math
import os
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from rota.errors import InputError, did_you_mean
from rota.flow.functions import Function

_CONSTANT_BYTES = 64 * 1024


class Named(msgspec.Struct, frozen=True):
    """The name of a function, which a worker finds it by.

    Attributes:
        kind: ``import``: by import path. ``source``: by source text. ``export``: by a file.
        name: ``package.module:function``, the function's own name, or an absolute path.
        source: For ``source``, the text that defines the function and all that it needs.
    """

    kind: Literal["import", "source", "export"]
    name: str
    source: str = ""


def named(function: Function | str | os.PathLike[str]) -> Named:
    """Returns the name of a function.

    Args:
        function: A function of a module; ``"package.module:function"``; or the path of a file that
            ``torch.export.save`` wrote, ending in ``.pt2``. A function of ``__main__`` is named by
            its source (:func:`by_source`), any other by its import path.

    Raises:
        InputError: It is no module-level function, or can't be named; says how it could.
    """
    if isinstance(function, str | os.PathLike):
        return _from_text(os.fspath(function))
    function = _nameable(function)
    if function.__module__ == "__main__":
        return by_source(function)
    module = sys.modules.get(function.__module__)
    if getattr(module, function.__name__, None) is not function:
        raise _leads_elsewhere(function)
    return Named("import", f"{function.__module__}:{function.__name__}")


def found(name: Named) -> Function:
    """Returns the function of a name; imports, executes or loads what that takes.

    Raises:
        InputError: Its module can't be imported, or has no such function; its source raises; its
            file can't be loaded. Names the function and the reason.
    """
    match name.kind:
        case "import":
            return _imported(name.name)
        case "source":
            return _executed(name)
        case "export":
            return _loaded(name.name)


def by_source(function: Function) -> Named:
    """Returns the name of a module-level function that is its source.

    The source has the function's text; the imports, and the functions and constants of its module,
    that it names, and those that these name. Constants (numbers, strings, dtypes, devices, and
    tuples, lists, dicts and sets of them) have the value of this moment. A worker executes it in a
    fresh namespace that also has ``torch``.

    Raises:
        InputError: The function, or one that it names, is a lambda, nested, a method, has no
            source, or names what a worker can't be given: tensors, models, classes of its module.
    """
    function = _nameable(function)
    gathered = _Gathered(function)
    gathered.add(function)
    return Named("source", function.__name__, gathered.text())


def _from_text(text: str) -> Named:
    if text.endswith(".pt2"):
        path = Path(text).absolute()
        if not path.is_file():
            raise InputError(f"{path} is no file: write it with torch.export.save(program, path)")
        return Named("export", str(path))
    module, colon, attributes = text.partition(":")
    parts = [*module.split("."), *attributes.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise InputError(
            f"function {text!r} must be written package.module:function, or be the path of a .pt2 "
            "file of torch.export.save"
        )
    return Named("import", text)


def _nameable(function: Function) -> types.FunctionType:
    """Returns the function; raises InputError if it is not a module-level def."""
    if isinstance(function, torch.nn.Module | torch.export.ExportedProgram):
        raise InputError(
            f"a {type(function).__name__} has weights, which a name can't give to a worker: write "
            "torch.export.save(torch.export.export(module, inputs), 'module.pt2'), and give "
            "'module.pt2'; or take the weights as arguments"
        )
    name = getattr(function, "__qualname__", type(function).__name__)
    if not isinstance(function, types.FunctionType):
        raise InputError(
            f"{name} ({type(function).__name__}) is no Python function: write a def at the top "
            "level of a module, or give an import path such as 'torch:relu'"
        )
    if function.__name__ == "<lambda>":
        raise InputError(f"{name} is a lambda: write a def at the top level of its module")
    if "<locals>" in name or inspect.unwrap(function).__code__.co_freevars:
        raise InputError(
            f"{name} is defined within a function, whose variables no worker has: move it to the "
            "top level of its module, and give it what it needs as arguments"
        )
    if "." in name:
        raise InputError(f"{name} is a method: write a def at the top level of its module")
    return function


def _leads_elsewhere(function: types.FunctionType) -> InputError:
    return InputError(
        f"{function.__module__}:{function.__name__} leads to something else than the function that "
        "was given or named: use the function that its module has under its own name"
    )


class _Gathered:
    """The source that defines one function: what it names comes before it."""

    def __init__(self, function: types.FunctionType) -> None:
        self._globals = inspect.unwrap(function).__globals__
        self._imports: list[str] = []
        self._definitions: list[str] = []
        self._provided: set[str] = set()

    def text(self) -> str:
        imports = dict.fromkeys(["import torch", *self._imports])
        return "\n".join(
            ["from __future__ import annotations", "", *imports, "", *self._definitions]
        )

    def add(self, function: types.FunctionType) -> None:
        """Adds a function of the module and what it names."""
        name = _nameable(function).__name__
        if self._globals.get(name) is not function:
            raise _leads_elsewhere(function)
        self._provided.add(name)
        text = _text_of(function)
        tree = ast.parse(text)
        for needed in _global_names(name, text):
            if needed not in self._provided:
                self._provided.add(needed)
                self._provide(name, needed)
        self._import_submodules(tree)
        self._definitions.append(text)

    def _provide(self, function: str, name: str) -> None:
        if name not in self._globals:
            if hasattr(builtins, name):
                return
            raise InputError(
                f"{function} names {name!r}, which its module does not define: define it before "
                "the function is compiled"
            )
        value = self._globals[name]
        if isinstance(value, types.FunctionType) and (
            inspect.unwrap(value).__globals__ is self._globals
        ):
            self.add(value)
            if value.__name__ != name:
                self._definitions.append(f"{name} = {value.__name__}\n")
            return
        statement = _import_of(name, value, self._globals)
        if statement is not None:
            self._imports.append(statement)
            return
        try:
            constant = _constant(value)
            ast.parse(constant or "None", mode="eval")
        except (_TooLongError, RecursionError, MemoryError, SyntaxError):
            raise InputError(
                f"{function} names {name!r}, a {type(value).__name__} that is too long or too deep "
                f"for a constant, whose text has up to {_CONSTANT_BYTES:,} characters: make it a "
                "tensor that the function takes, or put it into a module and import it"
            ) from None
        if constant is None:
            raise InputError(
                f"{function} names {name!r}, a {type(value).__name__} that no source can give to a "
                f"worker: {_remedy(value)}"
            )
        self._definitions.append(f"{name} = {constant}\n")

    def _import_submodules(self, tree: ast.AST) -> None:
        """Adds imports of modules that are named as attributes of others, as in ``a.b.f()``."""
        for node in ast.walk(tree):
            path: list[str] = []
            while isinstance(node, ast.Attribute):
                path.append(node.attr)
                node = node.value
            base = self._globals.get(node.id) if isinstance(node, ast.Name) else None
            if not isinstance(base, types.ModuleType):
                continue
            module = base.__name__
            for part in reversed(path):
                module = f"{module}.{part}"
                statement = f"import {module}"
                if module in sys.modules:
                    self._imports.insert(0, statement)


def _text_of(function: types.FunctionType) -> str:
    """Returns the source of a function, and checks that it is what the function was made of."""
    name = function.__name__
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise InputError(
            f"{name} has no source that can be read ({error}): put it into a module, and import it"
        ) from error
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise InputError(
            f"the source of {name} is no whole definition ({error}): put it into a module"
        ) from error
    plain = inspect.unwrap(function)
    if not _is_made_of_its_source(plain.__code__):
        raise InputError(
            f"the source of {name} has changed since it was defined: define it anew, or start anew"
        )
    decorated = isinstance(tree.body[0], ast.FunctionDef) and tree.body[0].decorator_list
    if plain is not function and not decorated:
        raise InputError(
            f"{name} was wrapped after its definition, which its source does not show: write the "
            "wrapper as a decorator"
        )
    return text


def _is_made_of_its_source(code: types.CodeType) -> bool:
    """Returns True if the file or cell of a function, compiled anew, has that very code in it.

    A script is compiled whole, a notebook's cell statement by statement; the code may differ.
    """
    flags = code.co_flags & __future__.annotations.compiler_flag
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except SyntaxError:
        return False
    for part in [tree, *(ast.Module([statement], []) for statement in tree.body)]:
        compiled = compile(part, code.co_filename, "exec", flags=flags, dont_inherit=True)
        if any(each == code for each in _codes(compiled)):
            return True
    return False


def _global_names(function: str, text: str) -> list[str]:
    """Returns the global names that a definition loads, annotations apart, in order."""
    flag = __future__.annotations.compiler_flag
    names: dict[str, None] = {}
    for code in _codes(compile(text, "<source>", "exec", flags=flag, dont_inherit=True)):
        own = set()
        for step in dis.get_instructions(code):
            if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                raise InputError(
                    f"{function} writes to the global {step.argval!r}, and functions keep no "
                    "state: take it as an argument, and return the new value"
                )
            if step.opname == "STORE_NAME":
                own.add(step.argval)
            elif step.opname in ("LOAD_NAME", "LOAD_GLOBAL") and step.argval not in own:
                names[step.argval] = None
    # A class body within a function loads these two, which every body has.
    return [name for name in names if name not in ("__name__", "__annotations__")]


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _import_of(name: str, value: Any, scope: dict[str, Any]) -> str | None:
    """Returns the statement that imports a value under a name; None if no module has it."""
    if isinstance(value, types.ModuleType):
        module = value.__name__
        if module == "__main__" or sys.modules.get(module) is not value:
            return None
        return f"import {module}" if module == name else f"import {module} as {name}"
    own = (getattr(value, "__module__", None), getattr(value, "__qualname__", None))
    for source, attribute in [own, *_imports_at_top(scope, name)]:
        if not isinstance(source, str) or source in ("__main__", scope.get("__name__")):
            continue
        if attribute and getattr(sys.modules.get(source), attribute, None) is value:
            alias = "" if attribute == name else f" as {name}"
            return f"from {source} import {attribute}{alias}"
    return None


def _imports_at_top(scope: dict[str, Any], name: str) -> list[tuple[str, str]]:
    """Returns module and attribute of the ``from`` imports that may have bound a name."""
    origins = []
    for text in _top_level_texts(scope):
        try:
            pending: list[ast.AST] = [ast.parse(text)]
        except SyntaxError:  # a cell that is not all Python
            continue
        while pending:
            node = pending.pop()
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                if node.level:
                    relative = "." * node.level + module
                    module = importlib.util.resolve_name(relative, scope.get("__package__") or "")
                for alias in node.names:
                    if alias.name == "*" or (alias.asname or alias.name) == name:
                        origins.append((module, name if alias.name == "*" else alias.name))
            elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                pending += ast.iter_child_nodes(node)
    return origins


def _top_level_texts(scope: dict[str, Any]) -> list[str]:
    """Returns the source of a module, or of a notebook's cells without their magics."""
    file = scope.get("__file__")
    if file:
        return ["".join(linecache.getlines(file))]
    cells = scope.get("In")
    if not isinstance(cells, list):
        return []
    return [
        "\n".join(line for line in str(cell).splitlines() if not line.startswith(("%", "!")))
        for cell in cells
    ]


class _TooLongError(Exception):
    """The text of a constant is too long."""


def _constant(value: Any) -> str | None:
    """Returns an expression for a constant; None if it has none. Raises _TooLongError."""
    text = _text_of_constant(value)
    if text is not None and len(text) > _CONSTANT_BYTES:
        raise _TooLongError
    return text


def _text_of_constant(value: Any) -> str | None:
    if isinstance(value, torch.dtype):
        return repr(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if type(value) is complex:
        return f"complex({_constant(value.real)}, {_constant(value.imag)})"
    if type(value) is int and abs(value) >= 1 << 64:
        return hex(value)  # Python limits decimal numbers to some thousands of digits
    if type(value) in (str, bytes) and len(value) > _CONSTANT_BYTES:
        raise _TooLongError
    if type(value) in (int, bool, str, bytes, type(None), type(...)):
        return repr(value)
    if type(value) is dict:
        pairs = [(_constant(key), _constant(item)) for key, item in value.items()]
        if any(None in pair for pair in pairs):
            return None
        return "{" + ", ".join(f"{key}: {item}" for key, item in pairs) + "}"
    if type(value) in (tuple, list, set, frozenset):
        items = [_constant(item) or "" for item in value]
        if "" in items:
            return None
        return f"{type(value).__name__}([{', '.join(items)}])"
    return None


def _remedy(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "take it as an argument"
    if isinstance(value, torch.nn.Module):
        return "take its weights as arguments (torch.func.functional_call), or export it"
    if isinstance(value, type):
        return "put it into a module, and import it from there"
    if isinstance(value, types.ModuleType):
        return "import it under the name that it has in sys.modules"
    return "make it inside the function, or put it into a module and import it"


def _imported(path: str) -> Function:
    module_name, _, attributes = path.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise InputError(
            f"function {path} can't be imported, {_said(error)}: a worker needs its module on "
            "sys.path (install it, or set PYTHONPATH)"
        ) from error
    for part in attributes.split("."):
        if not hasattr(value, part):
            raise InputError(
                f"function {path} can't be imported: {module_name} has no {attributes!r}"
                f"{did_you_mean(part, dir(value))}"
            )
        value = getattr(value, part)
    if not callable(value) or isinstance(value, type):
        raise InputError(f"{path} is a {type(value).__name__}, not a function: name a function")
    function: Function = value
    return function


def _executed(name: Named) -> Function:
    filename = f"<flow function {name.name}>"
    lines = name.source.splitlines(keepends=True)
    # Tracebacks show the lines of a function, and torch.compile reads them.
    linecache.cache[filename] = (len(name.source), None, lines, filename)
    namespace: dict[str, Any] = {"__name__": "rota_flow_source", "__builtins__": builtins}
    try:
        exec(compile(name.source, filename, "exec", dont_inherit=True), namespace)  # noqa: S102
    except (Exception, SystemExit) as error:
        raise InputError(
            f"the source of function {name.name} can't be executed, {_said(error)}: a worker needs "
            "the modules that it imports on sys.path (install them, or set PYTHONPATH)"
        ) from error
    if not callable(namespace.get(name.name)):
        raise InputError(f"the source of function {name.name} defines no function of that name")
    function: Function = namespace[name.name]
    return function


def _loaded(path: str) -> Function:
    try:
        module = torch.export.load(path).module()
    except Exception as error:
        raise InputError(
            f"exported function {path} can't be loaded, {_said(error)}: write it with "
            "torch.export.save, by the same version of torch, where workers can read it"
        ) from error
    module.__name__ = Path(path).name
    function: Function = module
    return function


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
