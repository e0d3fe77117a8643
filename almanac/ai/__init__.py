"""Models: embedders, which turn text into vectors, and chat models, in this process or at an endpoint.

Libraries read these variables when they are imported, so they are set before any other module of this package loads.
"""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # otherwise ONNX Runtime sends telemetry from the time of its import
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would compete with ours and survive a fork
