"""Tests of the installation; `make test-install` runs them."""
