"""diag: find, prove and mend what makes an LLM server write garbage, over SSH.

This package runs where the person types. Code that runs on the host under diagnosis lives in `probes/` and
`kernels/` and never imports this package; see `diag.bundle`.
"""

__version__ = "0.1.0"
