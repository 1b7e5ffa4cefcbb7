"""Predicts from measurements how long requests take, when slots come free, and the demand. Pure."""
