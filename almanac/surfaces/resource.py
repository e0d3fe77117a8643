"""Resources and prompts: what a surface offers besides tools. Values only, as tools are."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from almanac.operations.context import RequestContext


@dataclass(frozen=True, slots=True)
class ResourceContent:
    """What is at a URI; `meta` is said beside the text and not in it."""

    text: str
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class ResourceTemplate:
    """A kind of thing that is read by its URI."""

    template: str  # 'almanac://knowledge/{id}'; what is in braces goes up to the next slash or the end
    name: str
    title: str
    description: str
    mime_type: str
    read: Callable[[RequestContext, dict[str, str]], Awaitable[ResourceContent]]
    scopes: frozenset[str] = frozenset()

    def match(self, uri: str) -> dict[str, str] | None:
        """The parts of a URI of this kind; None for any other."""
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(self.template))
        found = re.fullmatch(pattern, uri)
        return found.groupdict() if found else None

    def describe(self) -> dict[str, Any]:
        """Its entry in `resources/templates/list`."""
        return {
            "uriTemplate": self.template,
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "mimeType": self.mime_type,
        }


@dataclass(frozen=True, slots=True)
class Prompt:
    """Something for a person to begin a conversation with."""

    name: str
    title: str
    description: str
    arguments: Mapping[str, str]  # what each means; all may be left out
    render: Callable[[RequestContext, dict[str, str]], Awaitable[str]]

    def describe(self) -> dict[str, Any]:
        """Its entry in `prompts/list`."""
        arguments = [{"name": name, "description": text, "required": False} for name, text in self.arguments.items()]
        return {"name": self.name, "title": self.title, "description": self.description, "arguments": arguments}
