"""One program that drives many devices, and many programs that share them.

After Pathways (Barham et al., MLSys 2022): a single controller that dispatches gang operations
asynchronously::

    from rota import flow

    with flow.local(2) as c:
        pair = c.slice(2)
        double = pair.function("my_functions:double", out=flow.Split(0))
        x = pair.put(torch.arange(6.0), flow.Split(0))
        print(double(double(x)).result())

The order of operations (``flow.order``, ``flow.island``) is for agents and simulators as well:
importing this package loads none of its parts, and no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rota.flow.client import (
        Client,
        Function,
        Program,
        ShardedBuffer,
        Slice,
        cond,
        repeat,
    )
    from rota.flow.functions import Shard, shard
    from rota.flow.islands import LocalIsland, connect, local
    from rota.flow.layout import Each, Replicated, Split

__all__ = [
    "Client",
    "Each",
    "Function",
    "LocalIsland",
    "Program",
    "Replicated",
    "Shard",
    "ShardedBuffer",
    "Slice",
    "Split",
    "cond",
    "connect",
    "local",
    "repeat",
    "shard",
]
_ELSEWHERE = {
    "Each": "layout",
    "LocalIsland": "islands",
    "Replicated": "layout",
    "Shard": "functions",
    "Split": "layout",
    "connect": "islands",
    "local": "islands",
    "shard": "functions",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'client')}"), name)
