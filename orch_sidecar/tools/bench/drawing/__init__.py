"""Draws tables and charts as one HTML page with SVG. Pure.

Knows nothing of measurements. `elements` writes all text, so that every text is escaped; `scales`
and `chart` make the SVG, `page` the document around it.
"""
