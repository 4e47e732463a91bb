"""Is this text, this request, this server healthy? Texts, tokens and scores in; a verdict with its evidence out."""
