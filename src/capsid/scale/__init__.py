"""Work on whole catalogues, cut into shards that any number of processes or machines can do."""
