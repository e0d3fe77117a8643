"""Almanac: one self-hosted server that gives AI agents an organisation's knowledge."""

__version__ = "0.1.0"
