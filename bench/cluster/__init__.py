"""One sweep on many machines: a job for each case, a journal of their answers, a run file for each type of node."""
