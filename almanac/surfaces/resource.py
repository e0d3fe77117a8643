"""Resources and prompts of a surface. Values only, as tools are."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from almanac.core import clock
from almanac.operations.context import RequestContext


@dataclass(frozen=True, slots=True)
class ResourceContent:
    """The text of a resource, and metadata that is sent beside the text."""

    text: str
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class ListedResource:
    """A resource in `resources/list`."""

    key: int  # rises with newer resources; the next page begins below the last one
    id: int | str  # the value of the name in the template
    name: str
    description: str
    modified_at: int


@dataclass(frozen=True, slots=True)
class ResourceTemplate:
    """A kind of resource, read by URI."""

    template: str  # 'almanac://knowledge/{id}'; a name in braces stands for one or more characters other than a slash
    name: str
    title: str
    description: str
    mime_type: str
    tool: str  # that reads the same data: a token limited to tools needs it
    read: Callable[[RequestContext, dict[str, str]], Awaitable[ResourceContent]]
    scopes: frozenset[str] = frozenset()
    # The newest resources with a smaller key than this one that the caller may read, at most so many.
    find: Callable[[RequestContext, int, int], Awaitable[Sequence[ListedResource]]] | None = None

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the values of the names in a URI of this kind; None for any other URI."""
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(self.template))
        match = re.fullmatch(pattern, uri)
        return match.groupdict() if match else None

    def describe(self) -> dict[str, Any]:
        """Return the entry in `resources/templates/list`."""
        return {
            "uriTemplate": self.template,
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "mimeType": self.mime_type,
        }

    def entry(self, resource: ListedResource) -> dict[str, Any]:
        """Return the entry of a resource in `resources/list`."""
        return {
            "uri": re.sub(r"\{\w+\}", str(resource.id), self.template),
            "name": resource.name,
            "description": resource.description,
            "mimeType": self.mime_type,
            "annotations": {"lastModified": clock.format_timestamp(resource.modified_at)},
        }


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text with which a person begins a conversation."""

    name: str
    title: str
    description: str
    arguments: Mapping[str, str]  # name: description; all are optional
    tool: str  # that the text is about: a token limited to tools needs it
    render: Callable[[RequestContext, dict[str, str]], Awaitable[str]]

    def describe(self) -> dict[str, Any]:
        """Return the entry in `prompts/list`."""
        arguments = [{"name": name, "description": text, "required": False} for name, text in self.arguments.items()]
        return {"name": self.name, "title": self.title, "description": self.description, "arguments": arguments}
