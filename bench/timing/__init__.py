"""How long, how much memory: the engine, meters, roofs, controls, the machine."""
