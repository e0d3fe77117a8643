"""Models: what turns text into vectors, here or at an endpoint.

What is set here is read by libraries when they are imported, so it has to be there before any file of this slice is.
"""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # else ONNX Runtime reports to its makers from when it is imported
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would compete with ours, and outlive a fork
