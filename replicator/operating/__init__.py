"""Work on an operator's machine: plan, rollout, status, processes, local `up`."""
