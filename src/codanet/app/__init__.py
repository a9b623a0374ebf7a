"""The web page: a picture, what the model says of it, and why; `codanet demo`."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any, ClassVar

from .._support.extras import optional
from ..data import ImageData
from ..data.examples import check_shown
from ..models.network import CoDANet
from .gate import Gate, Hosts, host_name

LOCAL = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::")
SHARED = ".gradio.live"  # where Gradio's own public addresses are
SESSIONS = 32  # kept in memory; the oldest goes first


def start(
    models: Mapping[str, CoDANet],
    *,
    host: str = LOCAL,
    port: int | None = None,
    share: bool = False,
    name: str | None = None,
    data: ImageData | None = None,
) -> Any:
    """Serve the page in the background: `.local_url` is where, `.close()` ends it.

    `data` gives the pictures to begin with, one of each class; without it they are scikit-image's photographs, or
    digits for a model of digits. Without a port the first free one from 7860 is taken. Requests are answered by address
    and by the name of `host`, not by other names that lead here but `name`, which a proxy in front of it goes by.
    """
    if name is not None and (name[:1] in ("", ".") or name != host_name(name)):
        raise ValueError(f"name is {name!r}: give the host name alone, in lower case, such as demo.example.org")
    check_shown(models, data)
    if port is not None and not 0 < port < 2**16:
        raise ValueError(f"port is {port}: it must lie between 1 and 65535")
    with optional():
        import gradio as gr
        from starlette.middleware import Middleware

    from .._support.allocator import bound_freed
    from .._support.web import ICON
    from .keeper import Keeper
    from .page import CSS, Sessions, build
    from .session import MOST_BYTES, Gallery

    bound_freed()
    page = build(Gallery.of({name: model.eval() for name, model in models.items()}, data))
    keeper = Keeper(page, lambda: getattr(getattr(page, "server", None), "server_state", _NONE).connections)
    # an event carries a picture as base64 and little else
    gate = Middleware(
        Gate,
        most_bytes=MOST_BYTES * 4 // 3 + 2**16,
        hosts=Hosts(own_names(host, share) | ({name} if name else set())),
        started=keeper.go_round,
        proxied=share or name is not None,
    )
    fonts = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
    theme = gr.themes.Base(
        primary_hue="slate", neutral_hue="slate", font=fonts, font_mono=["ui-monospace", "Consolas", "monospace"]
    )
    try:
        with redirect_stdout(sys.stderr):
            page.launch(
                server_name=host,
                server_port=port,
                share=share,
                prevent_thread_lock=True,
                quiet=True,
                show_error=False,
                theme=theme,
                css=CSS,
                head=ICON,
                footer_links=[],
                run_history=False,
                enable_monitoring=False,
                mcp_server=False,
                pwa=False,
                ssr_mode=False,
                allowed_paths=[],
                max_file_size=0,
                max_threads=8,
                state_session_capacity=SESSIONS,
                app_kwargs={"middleware": [gate]},
            )
    except OSError as error:
        if port is None:
            raise
        raise ValueError(f"port {port} of {host} cannot be taken ({error}): choose another --port") from None
    sessions = Sessions(keeper.heard)
    sessions.set_blocks(page)
    page.app.state_holder = sessions
    return page


class _NONE:
    """Before there is a server."""

    connections: ClassVar[set[Any]] = set()


def own_names(host: str, share: bool = False) -> set[str]:
    """What a browser may call a server that was started for `host`, besides its addresses."""
    names = {"localhost", host}
    if host in EVERYWHERE:
        names |= {socket.gethostname(), socket.getfqdn(), f"{socket.gethostname()}.local"}
    return names | ({SHARED} if share else set())
