"""A workspace with documents, whose files the store keeps."""

from tests.knowledge.conftest import workspace

__all__ = ["workspace"]
