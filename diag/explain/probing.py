"""What `diag probe prompts` and `diag probe text` print: false leads, signs in what a server counts, and the rules that
speak against a text."""

from __future__ import annotations

from diag.explain.entry import Entry, Group

_PAGE = ("docs/verdict.md", "docs/garbled-server.md")


def _entry(group: Group, id: str, title: str, what: str, why: str, *do: str) -> Entry:
    return Entry(id=id, group=group, title=title, what=what, why=why, do=do, more=_PAGE)


_LEADS = (
    _entry(
        "lead",
        "chat-template",
        "the chat path renders messages wrongly",
        "Found where only one of raw completion and chat garbles, or the reference counts other tokens.",
        "It looks like a broken model and is a template: no setting of the engine mends it.",
        "Compare the rendered prompts of both servers.",
        "Give the right template, or ask by raw completion.",
    ),
    _entry(
        "lead",
        "detokeniser",
        "right token ids, wrong text",
        "Found where an answer has the reference's token ids and another text.",
        "The model is right; what makes text of tokens is not.",
        "Compare the tokenizer's files with the checkpoint's, and restart the front end.",
    ),
    _entry(
        "lead",
        "sampling",
        "defaults of sampling that nobody asked for",
        "Requests without a temperature may get the model's own; diag asks at temperature 0.",
        "A text drawn by lot is no evidence of a fault.",
        "Repeat the bad request with temperature 0 and neutral penalties.",
    ),
    _entry(
        "lead",
        "dtype",
        "float16 for a model made for bfloat16",
        "Found where the server says that its data type is float16.",
        "Values that bfloat16 holds overflow: NaN, and then runs of token 0 or nothing at all.",
        "Start it with the other data type: cheap, and often right.",
    ),
    _entry(
        "lead",
        "max-tokens",
        "answers that were cut off",
        "Found where answers ended at their number of tokens before they had what the prompt expects.",
        "A text that was cut looks broken and is not.",
        "Ask with more tokens.",
    ),
)

_SIGNS = (
    _entry(
        "sign",
        "never-accepted",
        "no draft was ever accepted",
        "Speculation is on, and every answer has an accept length of one token a step.",
        "Wrong logits, a draft model of another family, or no drafts at all.",
        "Compare draft and target checkpoint; bisect with speculation as a factor.",
    ),
    _entry(
        "sign",
        "always-accepted",
        "every draft was accepted",
        "The accept length is the greatest there can be in every answer.",
        "A target that loops agrees with any draft.",
        "Look whether the texts repeat themselves.",
    ),
    _entry(
        "sign",
        "no-accept-length",
        "speculation is on, and nothing says that it ran",
        "The server reports no accept length with its answers.",
        "A clean answer says nothing of a path that was not taken.",
        "Read the start of the server's log: which algorithm is in force?",
    ),
    _entry(
        "sign",
        "no-cache-hit",
        "no answer used the prefix cache",
        "Prompts were asked again, and no cached tokens are reported.",
        "A fault of the cache could not show in this probe.",
        "Look whether the cache is switched off, or by which setting it is dropped.",
    ),
    _entry(
        "sign",
        "no-graph-replay",
        "graphs are on, and none was replayed",
        "The server counts no replay of a captured graph while it was asked.",
        "A fault of graph replay could not show: padding or sizes may keep every batch out of the graphs.",
        "Ask with batches of a captured size.",
    ),
    _entry(
        "sign",
        "graph-replay",
        "graphs are said to be off, and were replayed",
        "What is in force is not what the configuration tells.",
        "A bisection over this setting would compare the same thing twice.",
        "Look for the setting of prefill and decode graphs apart, and read the server's log.",
    ),
    _entry(
        "sign",
        "nan",
        "the server's log tells of NaN",
        "Lines of the log name numbers that are none.",
        "The arg-max over NaN is token 0 or any other constant: the texts follow from it.",
        "Switch off what makes NaN into a constant, and look for the first layer that has one.",
    ),
    _entry(
        "sign",
        "not-as-asked",
        "a setting is in force with another value than was asked for",
        "The start line says one thing, the running server another.",
        "Engines change settings silently where they do not go together; evidence is about what is in force.",
        "Read the start of the log for the reason, and judge by what is in force.",
    ),
)

_RULES = (
    _entry(
        "rule",
        "empty",
        "an answer without text",
        "The text is empty, or nothing but blanks.",
        "A model that was asked something says something; padding tokens and early ends look like this.",
        "Look at the token ids and at how the answer finished.",
    ),
    _entry(
        "rule",
        "token-0-run",
        "token id 0 again and again",
        "A long run of token id 0, which is often '!' or a padding token.",
        "It is what the arg-max over NaN or zeros gives.",
        "Look for NaN: data types, all-reduce, padded rows of graphs.",
    ),
    _entry(
        "rule",
        "token-run",
        "one token again and again",
        "A long run of any one token id.",
        "Wrong logits or a wrong collective; a healthy small model may do it too, so it is suspect only.",
        "Compare with a reference.",
    ),
    _entry(
        "rule",
        "character-run",
        "one character again and again",
        "One character fills much of the text.",
        "As token-run, seen in the text alone.",
        "Look at the token ids.",
    ),
    _entry(
        "rule",
        "loop",
        "the same words again and again",
        "A phrase repeats, most often to the end of the text.",
        "Caches that are overwritten end in loops; so do small healthy models, and prompts that ask for it.",
        "Compare with a reference, or ask with another prompt.",
    ),
    _entry(
        "rule",
        "salad",
        "words that do not belong together",
        "A window of the text has a score that clean texts of any language do not have.",
        "Masks, positions or KV entries that are wrong give fluent pieces in an order without sense.",
        "Read the window that is named; then bisect.",
    ),
    _entry(
        "rule",
        "replaced",
        "bytes that are no text",
        "Replacement characters (U+FFFD) inside the text.",
        "Tokens that are no UTF-8 together, or a detokeniser that cuts characters in two.",
        "Decode the token ids in one piece and compare.",
    ),
    _entry(
        "rule",
        "lone-surrogate",
        "half a character",
        "A surrogate without its other half.",
        "No tokenizer makes one: the text was cut or joined wrongly on its way.",
        "Look at the front end.",
    ),
    _entry(
        "rule",
        "raw-pieces",
        "pieces of the vocabulary instead of text",
        "Markers such as those for a leading blank are left in the text.",
        "The tokens were joined without being decoded.",
        "Look at the detokeniser and at the tokenizer's class.",
    ),
    _entry(
        "rule",
        "special-token",
        "the template's own tokens in the text",
        "Special tokens of a vocabulary stand in the answer.",
        "The end of the answer was missed, or the template is another model's.",
        "Compare the chat template and the ids that end an answer.",
    ),
    _entry(
        "rule",
        "control",
        "control characters",
        "Characters that no answer has a use for.",
        "Random tokens of a large vocabulary bring them along.",
        "Look at the token ids.",
    ),
    _entry(
        "rule",
        "unassigned",
        "characters without a meaning",
        "Characters of the private areas, or that Unicode has not assigned.",
        "Random tokens of a large vocabulary bring them along.",
        "Look at the token ids.",
    ),
    _entry(
        "rule",
        "expected",
        "what the prompt asks for is not there",
        "The suite says what a right answer contains, and it does not.",
        "Fluent and wrong is a fault too: another request's text, a lost cache entry.",
        "Read prompt and answer; a reference tells whether the model can do it at all.",
    ),
    _entry(
        "rule",
        "unparsed",
        "no JSON where JSON was asked for",
        "The suite wants a whole JSON object or array, and none can be parsed at the answer's first bracket.",
        "One wrong token in brackets and quotes is enough; prose shows the same fault later, or not at all.",
        "Read the answer where it breaks; a reference tells whether the model can do it at all.",
    ),
    _entry(
        "rule",
        "absent",
        "what must not be there is",
        "The suite says what a right answer does not contain, and it does.",
        "Most often it is the mark of another request's text.",
        "Ask the prompts one by one: clean alone and leaking together is a fault of batching.",
    ),
    _entry(
        "rule",
        "reference",
        "not what the reference gives, and not as likely",
        "A token is far below the model's best at its place, by the scores of a server that is known to be good.",
        "The strongest evidence there is: no look of the text is needed.",
        "Bisect between the two configurations.",
    ),
    _entry(
        "rule",
        "own-scores",
        "the server itself would not have said it",
        "A token that it emitted is far below its own best when the same text is scored by its prefill.",
        "Two paths of one server, decoding and prefill, disagree: one of them is wrong.",
        "Bisect over what decoding has and prefill has not: graphs, speculation, the decode backend.",
    ),
)

ENTRIES = (*_LEADS, *_SIGNS, *_RULES)
