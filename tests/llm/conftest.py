"""A real language model, which is slow: only where `make test-llm` has said which Python has it."""

import os

collect_ignore_glob = [] if os.environ.get("ALMANAC_TEST_LLM") else ["test_*.py"]
