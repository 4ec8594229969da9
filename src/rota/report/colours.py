"""Colours, dashes and hatching of lines, bars and jobs, for all figures."""

# Okabe and Ito's colours can be told apart with any kind of colour vision; their yellow is left
# out, which is hard to see on white, and their black, on black.
COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#999999",
)
DASHES = ("solid", "dash", "dot", "dashdot")
HATCHES = ("", "/", "x", "\\")


def colour_of(index: int) -> str:
    """The colour of the line, bar or job with this index; colours repeat."""
    return COLOURS[index % len(COLOURS)]


def dash_of(index: int) -> str:
    """The dash of the line with this index, which changes when the colours begin again."""
    return DASHES[index // len(COLOURS) % len(DASHES)]


def hatch_of(index: int) -> str:
    """The hatching of the bar with this index, which changes when the colours begin again."""
    return HATCHES[index // len(COLOURS) % len(HATCHES)]
