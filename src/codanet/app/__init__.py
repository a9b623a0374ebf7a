"""The web page: a picture, what the model says of it, and why; `codanet demo`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

from ..data import ImageData
from ..models.network import CoDANet
from .gate import Gate

LOCAL = "127.0.0.1"
SESSIONS = 32  # kept in memory; the oldest goes first


def start(
    models: Mapping[str, CoDANet],
    *,
    host: str = LOCAL,
    port: int | None = None,
    share: bool = False,
    data: ImageData | None = None,
) -> Any:
    """Serve the page in the background: `.local_url` is where, `.close()` ends it.

    `data` gives the pictures to begin with, one of each class; without it they are scikit-image's photographs, or
    digits for a model of digits. Without a port the first free one from 7860 is taken.
    """
    if not models:
        raise ValueError("no model was given: give at least one to show")
    for name, model in models.items():
        if model.image_channels not in (1, 3):
            raise ValueError(
                f"{name} takes images of {model.image_channels} channels: the page shows grey or RGB pictures (1 or 3)"
            )
    if port is not None and not 0 < port < 2**16:
        raise ValueError(f"port is {port}: it must lie between 1 and 65535")
    try:
        import gradio as gr
    except ImportError:
        raise ValueError("the web page needs Gradio, which is not installed: pip install 'codanet[demo]'") from None
    from starlette.middleware import Middleware

    from .._support.web import ICON
    from .page import CSS, build
    from .session import MOST_BYTES, Gallery

    page = build(Gallery.of({name: model.eval() for name, model in models.items()}, data))
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
                # an event carries a picture as base64 and little else
                app_kwargs={"middleware": [Middleware(Gate, most_bytes=MOST_BYTES * 4 // 3 + 2**16)]},
            )
    except OSError as error:
        if port is None:
            raise
        raise ValueError(f"port {port} of {host} cannot be taken ({error}): choose another --port") from None
    return page
