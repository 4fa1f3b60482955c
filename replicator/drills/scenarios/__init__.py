"""What happens in a drill: scenarios as lists of steps (pure), and the operator who takes them."""
