"""Small linear algebra on one thread: on several, waiting for them costs more than it saves."""

from contextlib import AbstractContextManager
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController


def one_thread() -> AbstractContextManager[object]:
    """Within the block, only the calling thread works on matrices."""
    return _libraries().limit(limits=1, user_api="blas")


@lru_cache(maxsize=1)
def _libraries() -> "ThreadpoolController":
    import scipy.linalg  # noqa: F401  brings libraries of its own, which must be there to be found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
