"""The other converters of the ingest bench, which turn the same files into text, each in its own processes."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contestants import ROOT, BenchFailed
from ingest_corpus import File

READERS = ROOT / "bench" / "readers"
MARKITDOWN = ROOT / ".tools" / "markitdown"
WANTED = "markitdown[pdf,docx,pptx,xlsx]>=0.1,<0.2"
REPEATS = 3  # of each PDF when our parser is compared with PDFium
NAMES = ("parsers", "pypdfium2", "kreuzberg", "markitdown")


@dataclass(frozen=True, slots=True)
class Peer:
    """A program to measure: its Python, its script, and whether it reads anything but PDF."""

    name: str
    python: Path
    script: str
    only_pdf: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """The result for one file."""

    kind: str
    characters: int
    error: str
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Lap:
    """One pass of a converter over the files."""

    peer: str
    seconds: float
    peak_bytes: int
    reads: tuple[Read, ...]

    @property
    def cpu_seconds(self) -> float:
        """Of all its processes, while they read."""
        return sum(read.cpu_seconds for read in self.reads)

    @property
    def failed(self) -> int:
        """How many files it could not read."""
        return sum(bool(read.error) for read in self.reads)

    def cpu_of(self, kind: str) -> float:
        """CPU seconds for the files of one kind that it could read."""
        return sum(read.cpu_seconds for read in self.reads if read.kind == kind and not read.error)

    def count(self, kind: str) -> int:
        """How many files of one kind it could read."""
        return sum(read.kind == kind and not read.error for read in self.reads)


def peers(without: Sequence[str]) -> list[Peer]:
    ours = Path(sys.executable)
    every = [
        Peer("parsers", ours, "almanac_reader.py"),
        Peer("pypdfium2", ours, "pypdfium2_reader.py", only_pdf=True),
        Peer("kreuzberg", ours, "kreuzberg_reader.py"),
        Peer("markitdown", MARKITDOWN / "bin" / "python", "markitdown_reader.py"),
    ]
    return [peer for peer in every if peer.name not in without]


def run(peer: Peer, files: Sequence[File], processes: int) -> Lap:
    """Convert the files with a peer, which is warmed up before the measurement."""
    read = [file for file in files if file.kind == "pdf" or not peer.only_pdf]
    kind_of = {str(file.path): file.kind for file in read}
    first = {file.kind: str(file.path) for file in reversed(read)}
    told = json.dumps({"processes": processes, "warm": list(first.values()), "files": list(kind_of)})
    command = [str(peer.python), str(READERS / peer.script)]
    done = subprocess.run(command, input=told, capture_output=True, text=True)
    if done.returncode:
        raise BenchFailed(f"{peer.name} could not be run:\n{done.stderr[-2000:]}")
    said = json.loads(done.stdout)
    reads = [Read(kind_of[f["path"]], f["characters"], f["error"], f["cpu_seconds"]) for f in said["files"]]
    lap = Lap(peer.name, said["seconds"], said["peak_bytes"], tuple(reads))
    if peer.name == "parsers" and lap.failed:
        # A failed file costs almost nothing, so our numbers would be too good.
        which = ", ".join(sorted({f"{read.kind} ({read.error})" for read in lap.reads if read.error}))
        raise BenchFailed(f"our own parsers failed on {lap.failed} files: {which}")
    return lap


def compare_pdf(files: Sequence[File]) -> float:
    """The CPU time of our PDF parser divided by that of pypdfium2 alone, for the same files."""
    told = json.dumps({"repeats": REPEATS, "files": [str(file.path) for file in files if file.kind == "pdf"]})
    command = [sys.executable, str(READERS / "pdf_pair.py")]
    done = subprocess.run(command, input=told, capture_output=True, text=True)
    if done.returncode:
        raise BenchFailed(f"our PDF parser and pypdfium2 could not be compared:\n{done.stderr[-2000:]}")
    pairs = json.loads(done.stdout)
    return sum(ours for ours, _ in pairs) / sum(bare for _, bare in pairs)


def markitdown_version() -> str | None:
    python = MARKITDOWN / "bin" / "python"
    if not python.exists():
        return None
    # Its formats are optional extras.
    ask = (
        "import markitdown, pdfminer, mammoth, pptx, openpyxl, importlib.metadata as m; print(m.version('markitdown'))"
    )
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def install_markitdown() -> str:
    """Create an environment for markitdown; return its version."""
    if installed := markitdown_version():
        return installed
    uv = str(ROOT / "scripts" / "uv")
    subprocess.run([uv, "venv", "-q", "--clear", "--python", sys.executable, MARKITDOWN], check=True)
    install = [uv, "pip", "install", "-q", "--python", str(MARKITDOWN / "bin" / "python"), WANTED]
    if subprocess.run(install).returncode == 0 and (installed := markitdown_version()):
        return installed
    raise BenchFailed("markitdown could not be installed: see above, or add `--without markitdown`")
