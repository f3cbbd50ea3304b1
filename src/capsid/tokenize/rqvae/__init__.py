"""The tokenizer of TIGER: an autoencoder with residual quantization of its latent."""
