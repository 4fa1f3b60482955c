"""The systems that a drill can be run on, each behind one small interface."""
