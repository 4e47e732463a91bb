"""Names of the lab's faults and what each does, apart from the code, which needs torch."""

FAULTS = {
    "stale-mask": "a replayed verify step reads the mask of the step before",
    "uninitialised-rows": "rows of a decode or verify step are never written",
    "nan-layer": "one layer's attention is no number while decoding",
    "swapped-block": "two requests prefilled together get one KV block of each other",
    "stale-prefix": "the prefix cache gives another prompt's keys and values",
    "early-end": "a punctuation mark is taken for the end of the answer",
    "detokeniser": "right token ids, wrong text",
    "wrong-template": "chat requests are rendered with another model's template",
    "wrong-dtype": "keys and values are kept in an 8-bit float without a scale",
}
