"""The training loop, its batches, checkpoints and teams of processes. Knows no method."""
