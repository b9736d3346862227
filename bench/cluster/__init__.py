"""One sweep on many machines: jobs on the nodes of a cluster, a journal of their answers, a run file for each type of node."""
