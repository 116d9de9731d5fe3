"""Speed and accuracy as commands that print tables; BENCHMARKS.md keeps the figures of the last run."""
