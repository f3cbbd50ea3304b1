"""Fits recipes: ids first, then the phases of the schedule, stage by stage and resumable."""
