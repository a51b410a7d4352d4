"""Kill a worker with SIGKILL, and watch another one replace it.

python examples/kill_a_worker.py [STEPS]
"""

import json
import os
import signal
import sys

import manyhands as mh

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000

run = mh.Run("cartpole", recipe="hogwild", workers=2, steps=steps)
killed = 0
for metrics in run:  # about once a second
    workers = json.loads((run.path / "status.json").read_text())["workers"]
    print(
        f"{metrics['agent_steps']:>8} agent steps", [(w["pid"], w["incarnation"]) for w in workers]
    )
    if not killed and workers and all(w["pid"] and w["agent_steps"] for w in workers):
        killed = workers[0]["pid"]
        os.kill(killed, signal.SIGKILL)
        print(f"killed process {killed}")
    elif killed and any(w["incarnation"] and w["pid"] != killed for w in workers):
        print("another process has replaced it")
        break  # stops the run, with a checkpoint

print((run.path / "faults.jsonl").read_text())
