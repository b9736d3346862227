"""Time and memory: the schedule, meters, rooflines, the reference workload, the machine."""
