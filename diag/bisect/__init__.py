"""Which variable, or combination of variables, breaks the output?

    space       factors, their levels, derived factors: what can be set and what follows from it
    expr        the little language of derived factors
    hypotheses  what could be to blame, each a predicate over a configuration
    decision    pure: trials so far in, the next configuration or a verdict out
    plan        the YAML file a person writes
    trial       what one server start showed
    journal     one fsynced line a trial
    run         the shell: starts servers, asks prompts, feeds the search
    report      what a person reads

`decision` is behind a protocol (`decision.Search`): a search that reckons with flakes replaces the one here without
a change to anything else.
"""
