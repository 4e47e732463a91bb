"""Layer 2: what the look of a text says, without a model, a reference or a tokenizer. Text in, evidence out."""
