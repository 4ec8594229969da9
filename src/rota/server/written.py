"""Long answers, written beside the controller's loop."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from rota.server.threads import in_thread

ENCODE = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode


async def written(told: Mapping[str, Any]) -> Response:
    """An answer that may be long: many jobs, sweeps, or trials with long curves.

    That takes a while to write, and the controller decides meanwhile, on this loop.
    """
    text = await in_thread(_as_json, told)
    return Response(text, media_type=JSONResponse.media_type)


def _as_json(told: Mapping[str, Any]) -> str:
    """Lists are written item by item: the encoder lets no other thread run until it is done."""
    pairs = (
        f"{ENCODE(key)}:[{','.join(map(ENCODE, value))}]"
        if isinstance(value, list)
        else f"{ENCODE(key)}:{ENCODE(value)}"
        for key, value in told.items()
    )
    return f"{{{','.join(pairs)}}}"
