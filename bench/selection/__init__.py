"""Which cells the command line asks for."""
