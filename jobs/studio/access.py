"""Who may see a studio: this machine alone; or whoever knows a password, which is never written down."""

import base64
import getpass
import hmac
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from corrigenda.errors import SettingsError

HERE = ("127.0.0.1", "localhost")
"""Addresses that only this machine reaches."""
VARIABLE = "CORRIGENDA_STUDIO_PASSWORD"
"""The environment variable that holds the password."""

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


def password_for(host: str) -> str | None:
    """The password without which nobody else may see the page; None where only this machine reaches it.

    Raises:
        SettingsError: there is none, and nobody to ask for it.
    """
    given = os.environ.get(VARIABLE, "")
    if given or host in HERE:
        return given or None
    if sys.stdin.isatty():
        given = getpass.getpass(f"A password for the studio at {host}: ")
    if not given:
        raise SettingsError(f"job.host={host}: other machines reach this address; give a password in ${VARIABLE}")
    return given


def require_free(host: str, port: int) -> None:
    """Checks that a port can be listened on, or raises SettingsError."""
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        number = error.errno or 0  # what looks names up has numbers of its own, below 0
        why = os.strerror(number) if number > 0 else error.strerror or error
        said = f"cannot listen on {host}:{port} ({why}); give another port= or host="
        raise SettingsError(f"job.port={port}: {said}") from None


def wait_until_up(host: str, port: int) -> None:
    """Returns when something listens on a port."""
    while True:
        try:
            socket.create_connection((host, port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)


def require_inside(name: str, path: Path) -> Path:
    """A path below the folder where the program was started. Raises SettingsError: it lies elsewhere."""
    if not path.resolve().is_relative_to(Path.cwd().resolve()):
        raise SettingsError(f"job.{name}={path}: it lies outside {Path.cwd()}; start the studio in a folder above it")
    return path


class Password:
    """Asks every browser for a password before anything else (HTTP's basic authentication; any user name will do)."""

    def __init__(self, app: App, password: str) -> None:
        self._app, self._password = app, password.encode()

    async def __call__(self, scope: Scope, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
        """Passes a request on that knows the password."""
        if scope["type"] not in ("http", "websocket") or self._knows(dict(scope["headers"])):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"www-authenticate", b'Basic realm="Corrigenda studio"'), (b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b"The studio asks for its password."})

    def _knows(self, headers: dict[bytes, bytes]) -> bool:
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        try:
            found = base64.b64decode(given, validate=True).partition(b":")[2]
        except ValueError:
            return False
        return kind.lower() == b"basic" and hmac.compare_digest(found, self._password)
