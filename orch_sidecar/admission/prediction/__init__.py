"""Predicts from measurements how long requests take, when slots come free, and the demand; and from
all of these, behind the queues and `constraints`, when requests start. Pure.
"""
