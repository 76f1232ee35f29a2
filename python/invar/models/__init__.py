"""Models as PyTorch modules, made of invar.torch: log-probabilities of the engine, gradients of the trainer, to the bit."""
from .causal_lm import CausalLM

__all__ = ["CausalLM"]
