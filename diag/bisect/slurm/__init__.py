"""Trials as jobs of a Slurm cluster, from a laptop through SSH to its login node. How it works: docs/slurm.md."""
