"""Wraps texts to a width in inches, as matplotlib draws them in its default font."""

from __future__ import annotations

_POINTS_PER_INCH = 72
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def wrapped(text: str, inches: float, font_points: float) -> list[str]:
    """Breaks a text into lines of at most this width: at spaces, or inside words that are wider.

    Characters that the font does not have are replaced, as each would be a warning.
    """
    lines = [""]
    for word in drawable(text).split():
        joined = f"{lines[-1]} {word}".lstrip()
        if _inches(joined, font_points) <= inches:
            lines[-1] = joined
            continue
        pieces = _pieces(word, inches, font_points)
        lines = [*filter(None, lines), *pieces]
    return lines


def drawable(text: str) -> str:
    """Replaces the characters that the font does not have."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties()))
    return "".join(each if font.get_char_index(ord(each)) else _REPLACEMENT for each in text)


def _pieces(word: str, inches: float, font_points: float) -> list[str]:
    """Breaks a word that is too wide wherever the line ends."""
    pieces = [""]
    for letter in word:
        if pieces[-1] and _inches(pieces[-1] + letter, font_points) > inches:
            pieces.append("")
        pieces[-1] += letter
    return pieces


def _inches(text: str, font_points: float) -> float:
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=font_points)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width) / _POINTS_PER_INCH
