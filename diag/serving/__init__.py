"""Start, stop and talk to an inference server on a host.

sglang   what is particular to SGLang: paths, and the names its configuration is read back under
client   requests and answers, over a channel of the SSH connection
server   one server for the time of a `with`: started, healthy, and gone afterwards whatever happens
"""
