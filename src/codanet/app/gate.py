"""What a browser may ask of the server: the page, its assets and its events, nothing else that Gradio offers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

# Left out on purpose: files by path or address (file=, proxy=), uploads to disk, recordings, links to other sessions'
# states, the API's description. Pictures come in as bytes in an event and go out as data URIs.
GET = re.compile(
    r"/|/config|/theme\.css|/favicon\.ico|/manifest\.json|/robots\.txt|/(assets|static)/[\w./@-]+"
    r"|/gradio_api/(startup-events|queue/data|heartbeat/\w+)"
)
POST = re.compile(r"/gradio_api/(queue/join|cancel|reset)")
ALLOWED = {"GET": GET, "HEAD": GET, "POST": POST}

BODY_SECONDS = 60.0  # that a request may take to arrive

HEADERS = {
    # Gradio's page needs inline scripts and its templates `new Function`; nothing may come from or go to elsewhere
    "content-security-policy": "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class TooLarge(Exception):
    """A request's body goes beyond the limit."""


class TooSlow(Exception):
    """A request's body does not come."""


class Hosts:
    """The names that a server answers to, so that no other site can reach it by a name of its own (DNS rebinding).

    Addresses are always fine: a browser shows what is served there as that address's own.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = {name.lower() for name in names}

    def know(self, host: str) -> bool:
        """Whether it is an address or one of the names, with or without a port."""
        name = host_name(host)
        try:
            ip_address(name)
        except ValueError:
            return self.own(host)
        return True

    def own(self, host: str) -> bool:
        """Whether it is one of the names."""
        name = host_name(host)
        return any(name == known or (known[:1] == "." and name.endswith(known)) for known in self.names)


def host_name(host: str) -> str:
    """Without the port, in lower case; nothing, if it cannot be one."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # brackets around no address
        return ""


class Gate:
    """ASGI middleware: refuses other hosts, routes and methods, larger and slower bodies, and adds the headers."""

    def __init__(
        self,
        application: Application,
        most_bytes: int,
        hosts: Hosts | None = None,
        started: Callable[[], Coroutine[Any, Any, None]] | None = None,
        proxied: bool = False,
    ) -> None:
        self.application, self.most_bytes, self.hosts, self.started = application, most_bytes, hosts, started
        self.proxied = proxied
        self.task: asyncio.Task[None] | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if self.started is not None and self.task is None:
            self.task = asyncio.get_running_loop().create_task(self.started())
        if scope["type"] == "lifespan":
            await self.application(scope, receive, send)
            return
        if scope["type"] != "http":  # no websockets
            return
        if not self._known(scope):
            await refuse(send, 403, "This page is not served by that name.")
            return
        if not self.proxied:  # then it is the visitor who says so
            scope["headers"] = [pair for pair in scope["headers"] if not pair[0].lower().startswith(b"x-forwarded-")]
        allowed = ALLOWED.get(scope["method"])
        path = scope["path"]
        if allowed is None or ".." in path or not allowed.fullmatch(path):
            await refuse(send, 404, "There is nothing here.")
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.most_bytes:
            await refuse(send, 413, "That is larger than what this page takes.")
            return
        started = False

        async def marked(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                names = {name.lower() for name, _ in message["headers"]}
                added = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in names]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        taken, done = 0, False  # after the body, `receive` waits for the visitor to leave
        loop = asyncio.get_running_loop()
        started_at = loop.time()

        async def counted() -> Message:
            nonlocal taken, done
            wait = None if done else max(0.0, started_at + BODY_SECONDS - loop.time())
            try:
                message = await asyncio.wait_for(receive(), wait)
            except asyncio.TimeoutError:
                raise TooSlow from None
            done = done or not message.get("more_body")
            taken += len(message.get("body", b""))
            if taken > self.most_bytes:
                raise TooLarge
            return message

        try:
            await self.application(scope, counted, marked)
        except TooLarge:
            if not started:
                await refuse(send, 413, "That is larger than what this page takes.")
        except TooSlow:
            if not started:
                await refuse(send, 408, "The request did not arrive in time.")

    def _known(self, scope: MutableMapping[str, Any]) -> bool:
        """Whether the request was meant for this server: by the name it was given, and the page it comes from."""
        if self.hosts is None:
            return True
        given = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = given.get(b"host", ""), given.get(b"origin")
        if origin is not None:
            page = origin.partition("://")[2]
            if page.lower() != host.lower() and not self.hosts.own(page):  # a page of another address
                return False
        return self.hosts.know(host)


async def refuse(send: Send, status: int, words: str) -> None:
    body = words.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in HEADERS.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
