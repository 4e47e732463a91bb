"""The step kinds, a module for each family; the registry is diag/playbook/kinds.py."""
