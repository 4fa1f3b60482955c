"""The command line: one module a command group; nothing but arguments and printing."""
