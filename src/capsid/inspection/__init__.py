"""What an item's id means: its neighbours, capsules and merges, as plain values."""
