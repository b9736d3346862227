"""Is it right: questions with their answers, the gate, and what is everybody's."""
