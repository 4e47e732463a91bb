"""Start, stop and talk to an inference server on a host.

engine     what diag has to know of an engine, and those it knows
sglang     what is particular to SGLang: paths, and the names its configuration is read back under
vllm       the same for vLLM, and its client
client     requests and answers, over a channel of the SSH connection; SGLang's own
suspects   which settings of a start line to suspect, as a plan (engines/*.toml, by version)
startline  the start line of a running server
flags      the flags that a release knows, read from its source
server     one server for the time of a `with`: started, healthy, and gone afterwards whatever happens
"""
