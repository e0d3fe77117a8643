"""What a program imports to give an agent of its own the tool `weknora_search`.

    from almanac.weknora import WeKnoraContext, integrate_weknora

    options = ClaudeAgentOptions(system_prompt="Answer from the handbook.")
    integrate_weknora(options, WeKnoraContext(api_key=key, kb_ids=["12"], weknora_base_url="https://almanac.example.org"))

Timeouts, tries and the cache are settings, read from the environment (`WEKNORA_TIMEOUT_SECONDS` and so on).
"""

import os
from typing import Any

from almanac.assist.weknora.weknora_tool import WeKnoraContext as WeKnoraContext
from almanac.core.settings import Settings, load
from almanac.surfaces.weknora import tools

__all__ = ["WeKnoraContext", "create_weknora_server", "get_weknora_tool_name", "integrate_weknora"]


def create_weknora_server(context: WeKnoraContext, settings: Settings | None = None) -> Any:
    """An MCP server (`mcp.server.lowlevel.Server`) whose one tool searches with the key and bases of a context."""
    return tools.create(context, settings or _settings())


def integrate_weknora(options: Any, context: WeKnoraContext, settings: Settings | None = None) -> Any:
    """Add the tool to the options of the Claude Agent SDK (`ClaudeAgentOptions`, or a dict of the same), and allow it.

    Where the context has no key or no bases there is nothing to search, and the options stay as they are.
    """
    return tools.integrate(options, context, settings or _settings())


def get_weknora_tool_name() -> str:
    """What the Agent SDK calls the tool: to be allowed, or looked for in what an agent did."""
    return tools.ALLOWED


def _settings() -> Settings:
    return load(os.environ).settings
