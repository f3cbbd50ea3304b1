"""The tokenizer of TIGER: an autoencoder whose latent is quantized residually."""
