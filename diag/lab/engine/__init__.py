"""The inference server that runs on the embedded host.

Its attention metadata comes from the *installed* `TritonAttnBackend` (see `kernels.installed`), its weights from
a real model; the scheduler, the tree drafter and the HTTP layer are small stand-ins for SGLang's own.
"""
