"""Why: what an id means, what a search considered, and pages and cards about a run."""
