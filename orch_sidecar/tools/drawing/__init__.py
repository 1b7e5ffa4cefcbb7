"""Draws charts, and pages of texts, tables and charts: one way for every command.

Knows nothing of measurements, and writes no file. `chart` says what is drawn; `picture`, which
loads matplotlib when something is drawn, makes PNG or SVG of it; `page` puts the same pictures into
one HTML file, and its texts and tables on a terminal; `texts` writes numbers and elements. Pure but
for `picture` and `page`.
"""
