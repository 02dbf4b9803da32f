"""canon compares trained networks modulo their symmetries."""

__version__ = "0.1.0"
