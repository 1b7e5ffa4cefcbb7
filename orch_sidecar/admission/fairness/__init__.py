"""Shares the slots of one class between API keys, by weight and in tokens. Pure."""
