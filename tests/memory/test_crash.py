"""After SIGKILL of a storing process, every acknowledged note is stored, indexed and counted, and nothing else is."""

import signal
import subprocess
import sys

from almanac.quotas import monthly_quotas
from tests.memory.agent_memory import AgentMemory


async def test_after_a_kill_notes_search_and_quota_agree(memory: AgentMemory, database_url: str):
    await memory.store("Before.")
    command = [sys.executable, "-m", "tests.memory.store_until_killed", database_url, "Acme", "ada"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    acknowledged = [process.stdout.readline().strip() for _ in range(60)]
    process.send_signal(signal.SIGKILL)
    acknowledged += [line.strip() for line in process.stdout.read().splitlines() if len(line) == 36]
    process.wait()
    process.stdout.close()
    rows = await memory.db.fetch("SELECT n.id, s.id AS source FROM notes n LEFT JOIN sources s ON s.owner_id = n.id")
    stored = {row["id"] for row in rows}
    assert set(acknowledged) <= stored
    assert all(row["source"] is not None for row in rows)
    assert await monthly_quotas.used(memory.db, memory.town.acme.id) == {"knowledge_stored": len(stored)}
    await memory.store("After.")
    assert await monthly_quotas.used(memory.db, memory.town.acme.id) == {"knowledge_stored": len(stored) + 1}
