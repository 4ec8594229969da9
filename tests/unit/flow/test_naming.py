"""Names of functions: a worker finds what the client named, and only that."""

import cmath
import importlib
import json
import linecache
import subprocess
import sys
import textwrap
import types
from functools import partial

import msgspec
import pytest
import torch

from rota.errors import InputError
from rota.flow import naming
from rota.flow.functions import Spec
from rota.flow.naming import Named, by_source, found, named


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Imports a text as a module of its own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def write(text, name="written"):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        made.append(name)
        return importlib.import_module(name)

    yield write
    for name in made:
        sys.modules.pop(name, None)


def carried(function):
    """Returns the function that a worker finds by source, sent as a message."""
    message = msgspec.msgpack.encode(by_source(function))
    return found(msgspec.msgpack.decode(message, type=Named))


def double(x):
    return x * 2


def test_a_function_of_a_module_is_named_by_its_import_path():
    name = named(double)
    assert name == Named("import", f"{__name__}:double")
    assert found(named("torch:relu")) is torch.relu
    assert found(named("torch.nn.functional:relu")) is torch.nn.functional.relu
    assert found(named("rota.flow.functions:Spec.of"))(torch.ones(2)) == Spec((2,))


def test_a_decorated_function_of_a_module_is_named_by_its_import_path(module):
    function = module("import torch\n@torch.no_grad()\ndef f(x):\n    return x * 2\n").f
    assert found(named(function)) is function


@pytest.mark.parametrize("text", ["", "double", "a.b", "a:b c", ":f", "a:", "a/b.py:f", "a:b:c"])
def test_a_text_that_is_no_import_path_is_refused(text):
    with pytest.raises(InputError, match=r"must be written package\.module:function"):
        named(text)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"net\.pt2 is no file: write it with torch\.export\.save"):
        named(tmp_path / "net.pt2")


def test_a_file_that_is_no_export_is_refused_by_the_worker(tmp_path, caplog):
    (tmp_path / "net.pt2").write_bytes(b"not a program")
    with pytest.raises(InputError, match=r"exported function .*net\.pt2 can't be loaded, "):
        found(named(tmp_path / "net.pt2"))


def closure():
    y = 3

    def inner(x):
        return x + y

    return inner


def nested():
    def inner(x):
        return x

    return inner


class Holder:
    def method(self, x):
        return x


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (closure(), "inner is defined within a function.*move it to the top level"),
        (nested(), "inner is defined within a function.*move it to the top level"),
        (lambda x: x, "is a lambda: write a def"),
        (Holder().method, r"Holder\.method \(method\) is no Python function: write a def"),
        (Holder.method, r"Holder\.method is a method: write a def"),
        (partial(double), r"partial \(partial\) is no Python function"),
        (torch.relu, r"relu \(.*\) is no Python function.*'torch:relu'"),
        (torch.nn.Linear(2, 2), r"a Linear has weights.*torch\.export\.save"),
        (3, r"int \(int\) is no Python function"),
    ],
)
def test_what_no_name_leads_to_is_refused(function, message):
    with pytest.raises(InputError, match=message):
        named(function)


def test_a_function_that_its_module_replaced_is_refused(module):
    written = module("def f(x):\n    return x\n")
    first = written.f
    written.f = double
    with pytest.raises(InputError, match="written:f leads to something else"):
        named(first)


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("", "nowhere:f", "function nowhere:f can't be imported, ModuleNotFoundError.*PYTHONPATH"),
        ("1 / 0", "broken:f", "function broken:f can't be imported, ZeroDivisionError"),
        ("raise SystemExit(3)", "broken:f", "function broken:f can't be imported, SystemExit: 3"),
        ("def fit(x): ...", "broken:fitt", r"broken has no 'fitt' \(did you mean 'fit'\?\)"),
        ("f = 3", "broken:f", "broken:f is a int, not a function"),
        ("class f: ...", "broken:f", "broken:f is a type, not a function"),
    ],
)
def test_a_worker_says_why_it_finds_no_function(tmp_path, monkeypatch, text, path, message):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken.py").write_text(text + "\n")
    importlib.invalidate_caches()
    with pytest.raises(InputError, match=message):
        found(named(path))
    sys.modules.pop("broken", None)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import nowhere", "can't be executed, ModuleNotFoundError.*PYTHONPATH"),
        ("def f(x:", "can't be executed, SyntaxError"),
        ("raise SystemExit", "can't be executed, SystemExit"),
        ("g = 1", "defines no function of that name"),
    ],
)
def test_a_worker_says_why_a_source_fails(source, message):
    with pytest.raises(InputError, match=f"the source of function f {message}"):
        found(Named("source", "f", source))


def test_a_source_has_what_its_function_names_and_no_more(module):
    function = module(
        """
        import json
        import math as m
        import torch
        import torch.nn.functional as F
        from os import path
        from torch import Tensor, float64, nn
        from torch import relu as rectified

        SCALE = 2.5
        SHAPES = {"a": (1, [2, float("inf")], {3}), None: b"x"}
        DTYPE = torch.bfloat16
        UNUSED = open

        def helper(x: Tensor) -> "Missing":
            return F.gelu(x) * SCALE + again(x, 0)

        def again(x, n):
            return x if n else twice(helper(x) * 0)

        def plain(x):
            if x.dim() > 9:
                return helper(x)
            return rectified(x) * SCALE

        twice = plain

        @torch.no_grad()
        def f(x: Missing, power: int = int(m.sqrt(4))) -> Tensor:
            '''Its text stays.'''
            y: Tensor = plain(x) ** power
            assert SHAPES["a"][1][1] == m.inf and SHAPES[None] == b"x"
            z = [nn.functional.relu(twice(y).to(DTYPE)).to(float64) for _ in range(2)]
            return z[0] + torch.nn.utils.parameters_to_vector([x]).sum()
        """.replace("x: Missing", 'x: "Missing"')
    ).f
    source = by_source(function).source
    assert "UNUSED" not in source
    assert "json" not in source
    assert "import path" not in source
    x = torch.randn(3)
    assert torch.equal(carried(function)(x), function(x))


def test_constants_have_the_value_of_the_moment(module):
    written = module("STEP = 1\ndef f(x):\n    return x + STEP\n")
    before = carried(written.f)
    written.STEP = 2
    assert (before(1), carried(written.f)(1)) == (2, 3)


@pytest.mark.parametrize(
    "value",
    [10**10_000, -(10**10_000), complex("nan"), complex("-inf-1j")],
    ids=["large", "small", "nan", "inf"],
)
def test_numbers_of_any_size_are_carried(module, value):
    written = module("STEP = 1\ndef f(x):\n    return STEP\n")
    written.STEP = value
    back = carried(written.f)(0)
    assert back == value or (cmath.isnan(back) and cmath.isnan(value))


def in_lists(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        "x" * 70_000,
        b"x" * 70_000,
        1 << 300_000,
        [0.5] * 40_000,
        {"a": "x" * 70_000},
        in_lists(150),
        in_lists(5_000),
    ],
    ids=["str", "bytes", "int", "list", "dict", "deep", "deeper"],
)
def test_a_constant_that_is_too_long_is_refused_by_name(module, value):
    written = module("TABLE = 1\ndef f(x):\n    return TABLE\n")
    written.TABLE = value
    kind = type(value).__name__
    with pytest.raises(InputError, match=f"f names 'TABLE', a {kind} that is too long or too deep"):
        by_source(written.f)


def test_functions_that_name_each_other_are_carried(module):
    written = module(
        """
        def even(n):
            return n == 0 or odd(n - 1)

        def odd(n):
            return n != 0 and even(n - 1)
        """
    )
    assert carried(written.even)(10)
    assert not carried(written.odd)(10)


def test_decorators_of_the_module_are_carried(module):
    written = module(
        """
        import functools

        def twice(function):
            @functools.wraps(function)
            def wrapper(x):
                return function(function(x))
            return wrapper

        @twice
        def f(x):
            return x + 1
        """
    )
    assert carried(written.f)(0) == 2


def test_submodules_named_as_attributes_are_imported(module, tmp_path):
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer" / "__init__.py").write_text("")
    (tmp_path / "outer" / "inner.py").write_text("def g(x):\n    return x + 5\n")
    function = module("import outer.inner\ndef f(x):\n    return outer.inner.g(x)\n").f
    name = by_source(function)
    for each in ("outer", "outer.inner"):
        sys.modules.pop(each)
    try:
        assert found(name)(1) == 6
    finally:
        for each in ("outer", "outer.inner"):
            sys.modules.pop(each)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(x): return x + WEIGHT", "f names 'WEIGHT', a Tensor .*: take it as an argument"),
        ("def f(x): return MODEL(x)", "f names 'MODEL', a Linear .*functional_call"),
        ("def f(x): return Local()", "f names 'Local', a type .*: put it into a module"),
        ("def f(x): return LOG.write(x)", "f names 'LOG', a TextIOWrapper .*: make it inside"),
        ("def f(x): return x + LONG", "f names 'LONG', a str that is too long"),
        ("def f(x): return [t for t in HELD]", "f names 'HELD', a list that no source can give"),
        ("def f(x): return BY[x]", "f names 'BY', a dict that no source can give"),
        ("def f(x): return later(x)", "f names 'later', which its module does not define"),
        ("def f(x): return g(x)", "<lambda> is a lambda: write a def"),
        ("def f(x): return bound(x)", "Local.method is a method"),
        ("def f(x): return made(x)", "inner is defined within a function"),
        ("def f(x):\n    global N\n    N = x", "f writes to the global 'N'.*keep no state"),
        ("def h(x): return later(x)\ndef f(x): return h(x)", "h names 'later'"),
        ("def f(x): return x\nf = torch.no_grad()(f)", "f was wrapped after its definition"),
        ("def h(x): return x\nf = torch.no_grad()(h)", "written:h leads to something else"),
        (
            "def h(x): return x\nold = h\ndef h(x): return 2 * x\ndef f(x): return old(h(x))",
            "written:h leads to something else",
        ),
    ],
)
def test_a_source_without_what_its_function_needs_is_refused(module, text, message):
    head = """
        import sys
        import torch
        WEIGHT = torch.ones(3)
        MODEL = torch.nn.Linear(1, 1)
        LOG = sys.__stdout__
        LONG = "x" * 100_000
        HELD = [1, (WEIGHT,)]
        BY = {1: WEIGHT}
        class Local:
            def method(self): ...
        g = lambda x: x
        bound = Local.method
        def make():
            def inner(x): ...
            return inner
        made = make()
        """
    written = module(textwrap.dedent(head) + text + "\n")
    with pytest.raises(InputError, match=message):
        by_source(written.f)


def test_a_source_that_changed_since_is_refused(module, tmp_path):
    function = module("def f(x):\n    return x + 1\n").f
    (tmp_path / "written.py").write_text("def f(x):\n    return x + 20000\n")
    with pytest.raises(InputError, match="the source of f has changed since it was defined"):
        by_source(function)


def test_a_function_without_source_is_refused():
    scope = {"__name__": "typed"}
    exec("def f(x):\n    return x", scope)
    with pytest.raises(
        InputError, match=r"f has no source that can be read .*put it into a module"
    ):
        by_source(scope["f"])


def test_a_function_of_a_notebook_is_carried_with_the_imports_of_other_cells(monkeypatch):
    cells = [
        "from torch import float64, relu\n%matplotlib inline\n!ls",
        "this is no Python",
        "FACTOR = 3\ndef scaled(x):\n    return x * FACTOR",
        "def f(x):\n    return relu(scaled(x)).to(float64)",
    ]
    notebook = types.ModuleType("__main__")
    notebook.In = ["", *cells]
    scope = notebook.__dict__
    exec("from torch import float64, relu", scope)
    for number in (2, 3):
        file = f"<cell {number}>"
        lines = cells[number].splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, file, (len(cells[number]), None, lines, file))
        exec(compile(cells[number], file, "exec"), scope)
    name = named(scope["f"])
    assert name.kind == "source"
    assert found(name)(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 6.0]


def test_the_traceback_of_a_source_shows_its_lines(module):
    function = carried(module("def f(x):\n    return x / 0\n").f)
    with pytest.raises(ZeroDivisionError) as caught:
        function(1)
    assert str(caught.traceback[-1].statement).strip() == "return x / 0"


@pytest.mark.process
def test_a_function_of_a_script_is_found_by_another_process(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            import msgspec
            import torch
            from rota.flow.naming import named

            RATE = 0.5

            def decayed(x):
                return x * RATE

            def f(x):
                return decayed(x) + torch.ones(1)

            sys.stdout.buffer.write(msgspec.json.encode(named(f)))
            """
        )
    )
    answer = subprocess.run([sys.executable, script], capture_output=True, check=True)
    name = msgspec.json.decode(answer.stdout, type=Named)
    assert (name.kind, name.name) == ("source", "f")
    assert "__main__" not in json.loads(answer.stdout)["source"]
    assert found(name)(torch.tensor([4.0])).tolist() == [3.0]


def test_no_code_is_pickled():
    assert not {"pickle", "marshal"} & set(vars(naming))
