"""Predicts service times, output lengths and starts of requests from measurements. Pure."""
