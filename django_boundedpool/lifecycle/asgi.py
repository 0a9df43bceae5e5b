"""An ASGI wrapper that lets the pools take part in the server's lifespan."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

# Loose on purpose: Django, Starlette and the servers each type the three arguments in their own way.
Application = Callable[[Any, Any, Any], Awaitable[None]]


def lifespan(application: Application) -> Application:
    """Return `application` with the lifespan protocol answered, which Django's own does not do.

    At startup the signal handler is chained to the server's, so that admission closes at the first signal; at shutdown
    the server waits for the drain. One line in ``asgi.py``::

        application = lifespan(get_asgi_application())
    """
    # Here, not at the top: asgi.py imports this module before the apps are loaded, and the runtime needs models.
    from . import os_signals, runtime

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await application(scope, receive, send)
            return
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                current = runtime.current()
                if current.options.handle_signals:
                    os_signals.arm(runtime.peek)
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                running = runtime.peek()
                if running is not None:
                    running.close_admission()
                    await asyncio.to_thread(running.drain, "lifespan shutdown")
                await send({"type": "lifespan.shutdown.complete"})
                return

    return wrapped
