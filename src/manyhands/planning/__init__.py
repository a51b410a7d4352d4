"""What a run would give with more workers, cores or nodes: measured costs, then a simulation."""
