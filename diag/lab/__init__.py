"""The embedded host: a real SSH server, a real installed engine file and a real small model, on loopback.

It is the "GPU host" of the story for a person without a GPU, and the host that the tests are run against. What
is real and what stands in is listed in `docs/lab.md`.
"""
