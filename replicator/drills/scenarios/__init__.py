"""Scenarios of drills as lists of steps (pure), and the operator who takes them."""
