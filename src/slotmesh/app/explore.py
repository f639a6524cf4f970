"""``slotmesh explore``: a page in the browser to play with ties, objects and properties."""

import os
import socket
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated

import tyro
from rich.console import Console
from rich.markup import escape

from slotmesh.training.places import place_of

_LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Explore:
    """Play with ties, look into slots and name objects, on a page in the browser."""

    model: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[MODEL]")] = None
    """A run, a checkpoint, an export or the name of weights, to explore besides those that come
    with slotmesh."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 gives other machines access."""
    port: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Port to listen on; by default 7860, or the next free one."""
    open: bool = False
    """Open the page in a browser."""
    device: str = "cpu"
    """cpu, cuda, or auto."""


def run_explore(settings: Explore, console: Console | None = None) -> None:
    """Serve the page until interrupted.

    Raises:
        ValueError: If Gradio is missing, the model cannot be explored, or the port is taken.
    """
    console = Console() if console is None else console
    if find_spec("gradio") is None:
        raise ValueError(
            "slotmesh explore needs Gradio, which is not installed. Install it with "
            "pip install 'gradio>=6.10'"
        )
    if settings.port is not None and not 1 <= settings.port <= 65535:
        raise ValueError(f"--port is {settings.port}, expected 1 to 65535.")
    _check_address(settings)
    # Turns off Gradio's telemetry; read when Gradio is imported.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # Gradio requests the page itself to see if it is up, which must not go through a proxy.
    for name in ("no_proxy", "NO_PROXY"):
        hosts = [os.environ.get(name, ""), *_LOCAL, settings.host]
        os.environ[name] = ",".join(host for host in hosts if host)
    from slotmesh.app.explorer import Explorer

    explorer = Explorer(settings.model, place_of(settings.device))
    from slotmesh.app.page import appearance, build_page
    from slotmesh.app.pictures import MOST_BYTES

    page = build_page(explorer)
    try:
        _, url, _ = page.launch(
            server_name=settings.host,
            server_port=settings.port,
            inbrowser=settings.open,
            share=False,
            quiet=True,
            prevent_thread_lock=True,
            # The page itself reports files that are too large, up to twice the limit.
            max_file_size=2 * MOST_BYTES,
            ssr_mode=False,
            pwa=False,
            footer_links=[],
            **appearance(),
        )
    except OSError as error:
        raise _unreachable(settings) from error
    console.print(f"Explore at [bold]{escape(url)}[/bold] (Ctrl+C to stop)", highlight=False)
    if settings.host not in _LOCAL:
        console.print("Anyone who can reach this machine can use the page.", highlight=False)
    page.block_thread()


def _check_address(settings: Explore) -> None:
    """Raise a ValueError before anything is loaded if the page cannot be served there."""
    kind = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        with socket.socket(kind, socket.SOCK_STREAM) as test:
            # As the server does, so that a port that has just been released counts as free.
            test.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            test.bind((settings.host, settings.port or 0))
    except OSError as error:
        raise _unreachable(settings) from error


def _unreachable(settings: Explore) -> ValueError:
    at = settings.host if settings.port is None else f"{settings.host}:{settings.port}"
    return ValueError(
        f"The page cannot be served at {at}: the port is taken, or the address is not one of this "
        "machine. Pass another --port or --host, or leave them out."
    )
