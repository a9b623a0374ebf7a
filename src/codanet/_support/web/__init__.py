"""What the served page and the one without a server have in common: styles, scripts, the icon, the words on top.

A script is the body of a function of `element`, `trigger`, `props` and `watch`, as Gradio runs it.
"""

from pathlib import Path

HERE = Path(__file__).parent
HEAD = (
    '<header class="head"><h1>codanet</h1><p>A classifier whose every decision is an exact sum of pixel contributions. '
    '<b class="for">Red</b> pixels speak for the class, <b class="against">blue</b> ones against it.</p></header>'
)
ICON = (
    '<link rel="icon" href="data:image/svg+xml,%3Csvg xmlns=%22http://www.w3.org/2000/svg%22 viewBox=%220 0 2 2%22%3E'
    "%3Cpath fill=%22%23b2182b%22 d=%22M0 0h1v1H0zM1 1h1v1H1z%22/%3E"
    "%3Cpath fill=%22%232166ac%22 d=%22M1 0h1v1H1z%22/%3E"
    '%3Cpath fill=%22%23fddbc7%22 d=%22M0 1h1v1H0z%22/%3E%3C/svg%3E">'
)


def script(name: str) -> str:
    return (HERE / f"{name}.js").read_text(encoding="utf-8")


def styles() -> str:
    return (HERE / "page.css").read_text(encoding="utf-8")
