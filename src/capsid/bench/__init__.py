"""The benchmark: plans of cells, a runner that resumes after a kill, and a store with one line per result."""
