"""A mixture of parallel quantisers over two views of an item, after ADA-SID."""
