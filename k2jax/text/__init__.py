"""Text to tokens and back."""

from k2jax.text.tokenizer import Tokenizer, byte_tokenizer, load_tokenizer, train_bpe

__all__ = ["Tokenizer", "byte_tokenizer", "load_tokenizer", "train_bpe"]
