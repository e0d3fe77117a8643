"""Public functions for programs that give their own agent the tool `weknora_search`.

    from almanac.weknora import WeKnoraContext, integrate_weknora

    options = ClaudeAgentOptions(system_prompt="Answer from the handbook.")
    integrate_weknora(options, WeKnoraContext(api_key=key, kb_ids=["12"], weknora_base_url="https://almanac.example.org"))

The timeout, the number of tries and the cache are settings. They are read from the environment
(`WEKNORA_TIMEOUT_SECONDS` and so on).
"""

import os
from typing import Any

from almanac.assist.weknora.weknora_tool import WeKnoraContext as WeKnoraContext
from almanac.core.settings import Settings
from almanac.core.settings_loader import load
from almanac.surfaces.weknora import tools

__all__ = ["WeKnoraContext", "create_weknora_server", "get_weknora_tool_name", "integrate_weknora"]


def create_weknora_server(context: WeKnoraContext, settings: Settings | None = None) -> Any:
    """An MCP server (`mcp.server.lowlevel.Server`) with one tool, a search with the key and bases of a context."""
    return tools.create(context, settings or _settings())


def integrate_weknora(options: Any, context: WeKnoraContext, settings: Settings | None = None) -> Any:
    """Add the tool to the options of the Claude Agent SDK (`ClaudeAgentOptions` or an equal dict), and allow it.

    If the context has no key or no bases, the options are returned unchanged.
    """
    return tools.integrate(options, context, settings or _settings())


def get_weknora_tool_name() -> str:
    """The name of the tool in the Agent SDK, for permissions and logs."""
    return tools.QUALIFIED_TOOL_NAME


def _settings() -> Settings:
    return load(os.environ).settings
