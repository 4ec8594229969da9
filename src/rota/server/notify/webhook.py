"""One try to tell a webhook: signed, to an address that was looked at, within a time limit.

The signature is that of the Standard Webhooks specification, version 1.0.
"""

import asyncio
import base64
import hashlib
import hmac
import ssl
import time

import httpx

from rota import __version__
from rota.request.notify import key_of
from rota.server.notify.address import addresses_of, refusal
from rota.server.notify.message import id_of
from rota.server.notify.outcome import Outcome
from rota.store.deliveries import Hook

TIME_LIMIT_S = 10.0  # of a try, from the question for the address to the head of the answer
MAX_ERROR = 200  # characters


class Sender:
    """Sends to webhooks. Of an answer only the status is read; no redirect is followed."""

    def __init__(self, time_limit_s: float) -> None:
        self._time_limit_s = time_limit_s
        self._tls = httpx.create_ssl_context()

    async def send(self, hook: Hook, body: str) -> Outcome:
        """Post ``body`` to the hook. It has arrived if the answer's status is 2xx."""
        try:
            async with asyncio.timeout(self._time_limit_s):
                return await self._send(hook, body)
        except TimeoutError:
            return Outcome(False, f"no answer within {self._time_limit_s:g} s")
        except (httpx.HTTPError, ssl.SSLError, OSError) as error:
            return Outcome(False, _words(error))

    async def _send(self, hook: Hook, body: str) -> Outcome:
        url = httpx.URL(hook.target)
        encrypted = url.scheme == "https"
        found = await addresses_of(url.host, url.port or (443 if encrypted else 80))
        for address in found:
            why = refusal(address, allows_private=hook.private, encrypted=encrypted)
            if why is not None:
                return Outcome(False, f"{url.host}: {why}")
        # Each try has a connection of its own: what was looked at is what is connected to.
        async with httpx.AsyncClient(
            verify=self._tls, trust_env=False, follow_redirects=False, timeout=self._time_limit_s
        ) as client:
            for number, address in enumerate(found, 1):
                try:
                    return await self._post(client, hook, address, body)
                except httpx.ConnectError:
                    if number == len(found):
                        raise
        return Outcome(False, f"{url.host} has no address")

    async def _post(
        self, client: httpx.AsyncClient, hook: Hook, address: str, body: str
    ) -> Outcome:
        url = httpx.URL(hook.target)
        content = body.encode()
        headers = {
            "Host": url.netloc.decode("ascii"),
            "Content-Type": "application/json",
            "User-Agent": f"rota/{__version__}",
            **signed(hook.secret, id_of(body), int(time.time()), content),
        }
        async with client.stream(
            "POST",
            url.copy_with(host=address.partition("%")[0]),
            content=content,
            headers=headers,
            extensions={"sni_hostname": url.host},
        ) as response:
            status = response.status_code
        if response.is_redirect:
            return Outcome(False, f"{status}: redirects are not followed")
        return Outcome(response.is_success, str(status))


def signed(secret: str, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers that prove to whoever has ``secret`` who sent ``body``, and when.

    ``timestamp`` is in seconds since the epoch by this machine's clock.
    """
    text = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.digest(key_of(secret), text, hashlib.sha256)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def _words(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:MAX_ERROR]
