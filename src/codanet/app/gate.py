"""What a browser may ask of the server: the page, its assets and its events, nothing else that Gradio offers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

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

HEADERS = {
    # Gradio's page needs inline scripts and its templates `new Function`; nothing may come from or go to elsewhere
    "content-security-policy": "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class TooLarge(Exception):
    """A request's body goes beyond the limit."""


class Gate:
    """ASGI middleware: refuses other routes, other methods and larger bodies, and adds the headers."""

    def __init__(self, application: Application, most_bytes: int) -> None:
        self.application, self.most_bytes = application, most_bytes

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.application(scope, receive, send)
            return
        if scope["type"] != "http":  # no websockets
            return
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

        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self.most_bytes:
                raise TooLarge
            return message

        try:
            await self.application(scope, counted, marked)
        except TooLarge:
            if not started:
                await refuse(send, 413, "That is larger than what this page takes.")


async def refuse(send: Send, status: int, words: str) -> None:
    body = words.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in HEADERS.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
