"""Predicts service times, output lengths, starts and the demand from measurements. Pure."""
