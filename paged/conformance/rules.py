"""The rules of the contract that a verdict may name."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        key: what a case and a message call it: "1" to "14" for the rules of docs/contract.md,
            a word for what a backend promises beside them.
        text: the rule in one sentence.
    """

    key: str
    text: str

    def __str__(self) -> str:
        return f"rule {self.key} ({self.text})"


RULES: dict[str, Rule] = {
    key: Rule(key, text)
    for key, text in {
        "1": "sequences with one query token stand first, and distribution counts them",
        "2": "a query is the last query_len tokens of its sequence: position "
        "seq_len - query_len + i, causal",
        "3": "write first, then attend: a token sees its own keys and values",
        "4": "slot -1 writes nothing, and slots fit int32",
        "5": "block 0 is the null block: never written",
        "6": "memory that a sequence does not own may hold NaN, Inf or invalid ids without "
        "changing a result",
        "7": "a backend writes no slot that slot_mapping does not name",
        "8": "lse is the natural logarithm; a row without keys has out 0 and lse -inf",
        "9": "a window W shows the last W keys, the token's own included",
        "10": "the soft cap acts before the mask, a sink joins the denominator only, the scale "
        "is explicit",
        "11": "k_scale multiplies keys and v_scale values; quantised rows are rounded to nearest "
        "even and clipped",
        "12": "element offsets may pass 2^31",
        "13": "a result depends neither on which physical blocks a sequence got nor on its "
        "neighbours",
        "14": "products, maxima, sums and rescaling are float32 for any storage type",
        "claim": "what a backend claims it serves; what it does not claim it refuses with a "
        "reason before it touches an array",
        "inputs": "inputs are read only: metadata, queries, keys, values, and the cache in attend",
        "copies": "memory is touched only when no copy to or from it is under way, and every copy "
        "is waited for",
        "strides": "arrays may be views of others, with strides of their own",
        "repeat": "the same call gives the same bits",
        "output": "shapes, dtypes and layout of what comes back are those of the contract",
        "layout": "the same cache in another layout gives the same result",
    }.items()
}
"""By key."""
