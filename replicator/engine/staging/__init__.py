"""What batch jobs and streams write, kept aside until their commit: the destination's side of the Spark sink."""
