"""The frame of all pages: the head with the way to the others, the banner, and the foot."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nicegui import background_tasks, ui
from nicegui.client import Client as Page
from starlette.requests import Request

from rota.client.client import Client
from rota.errors import RotaError
from rota.ui.door import Door, session_of
from rota.ui.parts import tag, write
from rota.ui.reader import Reader
from rota.ui.text import plain

PAGES = {
    "/": "Cluster",
    "/queue": "Queue",
    "/timeline": "Timeline",
    "/decisions": "Decisions",
    "/searches": "Searches",
    "/people": "People",
}
PACE_S = 0.1  # between two updates of a page
LOOK = "rota-ui-look"  # the cookie that keeps dark or light

log = logging.getLogger("rota.ui")


class Deck:
    """The things that every page is made with: the reader, and the door that knows who may act."""

    def __init__(self, reader: Reader, door: Door, cookie: str) -> None:
        self.reader, self.door, self.cookie = reader, door, cookie


class Frame:
    """One open page. ``update`` is called, in the page, after each change of the cluster."""

    def __init__(self, deck: Deck, request: Request) -> None:
        self.deck, self.reader = deck, deck.reader
        self.page: Page = ui.context.client
        self._session = session_of(request.headers, deck.cookie)
        self._updates: list[Callable[[], Any]] = []
        self._changed = asyncio.Event()
        self._again_s = 0.0  # when the last update that was asked for is due
        self._banner = self._load = self._toast = tag("div")

    def on_change(self, update: Callable[[], Any]) -> None:
        """Have ``update`` called once the page is open, and after each change."""
        self._updates.append(update)

    def again(self, at_s: float) -> None:
        """Have the page updated at a time of the event loop too, though nothing changes."""
        if at_s > self._again_s:
            self._again_s = at_s
            asyncio.get_running_loop().call_at(at_s, self._changed.set)

    @property
    def may_act(self) -> bool:
        """True while the session of whoever has this page open lasts."""
        return self.deck.door.is_signed_in(self._session)

    def may(self, action: str) -> bool:
        """True if whoever has this page open may take an action now."""
        return self.may_act and action in self.reader.may

    async def act(self, what: str, ask: Callable[[Client], Any]) -> Any:
        """Carry out what a button is for, and tell how it went; None if it was refused."""
        if not self.may_act:
            self.say("Your session has ended: run rota ui for a new link.")
            return None
        try:
            done = await self.reader.call(ask)
        except RotaError as error:
            self.reader.refresh()
            self.say(plain(error, 400))
            return None
        self.reader.refresh()
        self.say(what)
        return done

    async def read(self, ask: Callable[[Client], Any]) -> Any:
        """The cluster's answer; None, told on the page, if it refuses."""
        try:
            return await self.reader.call(ask)
        except RotaError as error:
            log.info("a page could not read: %s", error)
            return None

    def say(self, text: str) -> None:
        """Show a sentence for a moment."""
        write(self._toast, text)
        with self.page.content:
            ui.timer(6.0, lambda: write(self._toast, ""), once=True)

    def confirm(self, question: str, verb: str, then: Callable[[], Awaitable[Any]]) -> None:
        """Ask one question; what can't be undone happens only on a yes."""
        with self.page.content:
            dialog = tag("dialog", classes="ask", aria_label=question)
            with dialog:
                tag("p", question)
                with tag("div", classes="row"):
                    no = tag("button", "Keep it", classes="act", type="button", autofocus=True)
                    yes = tag("button", verb, classes="act danger", type="button")

        async def agreed() -> None:
            dialog.delete()
            await then()

        no.on("click", dialog.delete)
        yes.on("click", agreed)
        dialog.on("close", dialog.delete)
        ui.run_javascript(f"getElement({dialog.id}).showModal()")

    def _draw(self) -> None:
        reader = self.reader
        self._banner.set_visibility(reader.away is not None)
        if reader.away is not None:
            write(
                self._banner,
                f"The controller does not answer: {plain(reader.away)}. What you see is the last "
                "that it told; the page goes on by itself when it is back.",
            )
        there = sum(node["num_gpus"] for node in reader.nodes.values() if node["alive"])
        used = sum(bool(job) for node in reader.nodes.values() for job in node["holders"])
        write(self._load, f"{used} of {there} GPUs in use")

    async def follow(self) -> None:
        """Keep the page current until it is closed."""
        await self.page.connected()
        stop = self.reader.listen(self._changed.set)
        try:
            self._changed.set()
            while not self.page.is_deleted:
                await self._changed.wait()
                self._changed.clear()
                with self.page.content:
                    ui.run_javascript(f"rota.setNow({self.reader.now_s():.3f})")
                    for update in (self._draw, *self._updates):
                        done = update()
                        if isinstance(done, Awaitable):
                            await done
                    ui.run_javascript("setTimeout(rota.tick, 50)")
                await asyncio.sleep(PACE_S)
        finally:
            stop()

    @contextmanager
    def shown(self, path: str, title: str, command: str) -> Iterator[None]:
        """Make the page around what is made inside; ``command`` prints the like in a terminal."""
        ui.page_title(f"{title} · Rota")
        ui.add_head_html('<link rel="stylesheet" href="/static/rota.css">')
        ui.add_head_html('<script src="/static/rota.js"></script>')
        look = self.page.request.cookies.get(LOOK)
        dark = ui.dark_mode({"dark": True, "light": False}.get(look or ""))
        tag("a", "Skip to the content", classes="skip", href="#content")
        with tag("header", classes="top"):
            tag("a", "Rota", classes="brand", href="/")
            with tag("nav", aria_label="Pages"):
                for target, name in PAGES.items():
                    here = {"aria_current": "page"} if target == path else {}
                    tag("a", name, href=target, **here)
            with tag("div", classes="end"):
                self._load = tag("span", "", data_command="rota nodes")
                self._look_button(dark)
        self._banner = tag("div", classes="banner", role="alert")
        self._banner.set_visibility(False)
        with tag("div", classes="content", id_="content", tabindex="-1"):
            yield
        with tag("footer", classes="foot"):
            tag("span", "In a terminal:")
            tag("code", command, id_="command")
        self._toast = tag("div", "", classes="toast", role="status")
        background_tasks.create(self.follow(), name=f"rota page {path}")

    def _look_button(self, dark: ui.dark_mode) -> None:
        button = tag("button", "Dark or light", classes="plain", type="button")
        button._props["aria-label"] = "Change between dark and light"
        write(button, "◐")

        async def change() -> None:
            is_dark = await ui.run_javascript("document.body.classList.contains('body--dark')")
            dark.set_value(not is_dark)
            value = "light" if is_dark else "dark"
            ui.run_javascript(
                f"document.cookie='{LOOK}={value};path=/;samesite=strict;max-age=31536000'"
            )

        button.on("click", change)
