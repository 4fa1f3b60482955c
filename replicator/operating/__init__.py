"""What an operator's machine does: plan, rollout, status, processes, local `up`."""
