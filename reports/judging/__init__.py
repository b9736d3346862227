"""What numbers mean: frames, verdicts, findings."""
