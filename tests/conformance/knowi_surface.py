"""The fixtures of the conformance suites behind the transport of the Knowi surface.

python -m tests.conformance.knowi_surface PORT HOME
"""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import uvicorn

from almanac.app import SURFACES, create_app
from almanac.bootstrap import load_settings
from almanac.surfaces.dispatcher import ToolDispatcher
from almanac.surfaces.knowi.tools import SURFACE
from almanac.surfaces.sdk_server import SdkServer
from almanac.surfaces.surface import Surface, render_structured, render_text_error
from tests.conformance.fixtures import HANDLERS, TOOLS
from tests.conformance.surface import TokenAdder, adapt, first_token


def open_sdk_server(dispatcher: ToolDispatcher) -> SdkServer:
    """The usual SDK server, with the other protocol methods that the suites test."""
    sdk = SdkServer(dispatcher)
    for method, params, handler in HANDLERS:
        sdk.server.add_request_handler(method, params, handler)
    return sdk


def surface() -> Surface:
    return replace(
        SURFACE,
        name="knowi-conformance",
        path="/conformance",
        operations=tuple(adapt(tool) for tool in TOOLS),
        missing_tools=frozenset(),
        sdk_server=open_sdk_server,
        render_result=render_structured,
        render_error=render_text_error,
    )


def main(port: int, home: Path) -> None:
    os.environ |= {"ALMANAC_HOME": str(home), "ALMANAC_RATE_LIMIT_CALLS": "100000"}
    settings = load_settings().settings
    token = asyncio.run(first_token(settings))
    app = TokenAdder(create_app(settings, (*SURFACES, surface())), token)
    uvicorn.run(app, port=port, loop="uvloop", http="httptools", log_level="warning", access_log=False)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
