"""Train the same agent with two workers in two ways: without a lock, and by all-reduce.

python examples/compare_strategies.py [STEPS]

For many seeds, with statistics and a report: `manyhands compare`.
"""

import sys

import manyhands as mh

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000

print(f"{'strategy':12} {'updates':>8} {'updates/s':>10} {'staleness':>10} {'mean of 100':>12}")
for strategy in ("hogwild", "allreduce"):
    run = mh.train("cartpole", strategy=strategy, workers=2, steps=steps, threads=1, quiet=True)
    found = run.summary
    print(
        f"{strategy:12} {found['updates']:8} {found['updates_per_s']:10.0f} "
        f"{found['staleness']['mean']:10.2f} {found['return_mean_100']:12.1f}"
    )
