"""Tools of a2e, in Python."""
from a2e_plugin import serve, tool


@tool
def word_count(text: str) -> dict:
    """Count the words of a text.

    Args:
        text: Any text.
    """
    return {"words": len(text.split())}


serve()
