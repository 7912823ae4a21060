"""The version of the package. It stands nowhere else."""

__version__ = "0.1.0"
