"""The benchmark: plans of cells, a runner that can be killed, and a store of results as lines."""
