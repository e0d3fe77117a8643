"""Almanac: one self-hosted server that gives AI agents everything an organisation knows."""

__version__ = "0.1.0"
