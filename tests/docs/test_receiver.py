"""What the documentation gives receivers of webhooks to check a signature with."""

import time
from pathlib import Path

from rota.client.client import new_secret
from rota.server.notify.webhook import signed

from .test_examples import ROOT, blocks_of

BODY = b'{"id":"a-1"}'


def is_genuine(*arguments: object) -> bool:
    """The function of the documentation."""
    page = ROOT / "docs" / "reference" / "notify.md"
    (block,) = [each for each in blocks_of(Path(page)) if each.value == "receiver.py"]
    names: dict[str, object] = {}
    exec(block.text, names)
    found: bool = names["is_genuine"](*arguments)  # type: ignore[operator]
    return found


def test_a_request_of_now_is_taken_and_any_other_refused() -> None:
    secret, now_s = new_secret(), int(time.time())
    headers = signed(secret, "a-1", now_s, BODY)
    assert is_genuine(headers, BODY, secret)
    assert is_genuine(signed(secret, "a-1", now_s - 200, BODY), BODY, secret)
    assert not is_genuine(headers, BODY + b" ", secret)
    assert not is_genuine(headers, BODY, new_secret())
    assert not is_genuine(headers | {"webhook-id": "a-2"}, BODY, secret)
    assert not is_genuine(headers | {"webhook-timestamp": str(now_s - 1)}, BODY, secret)
    assert not is_genuine(headers | {"webhook-timestamp": "soon"}, BODY, secret)
    assert not is_genuine(headers | {"webhook-signature": ""}, BODY, secret)
    for off_s in (-400, 400):
        assert not is_genuine(signed(secret, "a-1", now_s + off_s, BODY), BODY, secret)
