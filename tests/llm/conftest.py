"""Tests with a real language model. They are slow, and run only with the Python environment of `make test-llm`."""

import os

collect_ignore_glob = [] if os.environ.get("ALMANAC_TEST_LLM") else ["test_*.py"]
