"""What an admission could reach that knew all arrivals and lengths: a bound to measure against.

It obeys the rules of the real one: no request is preempted, bulk requests get their guaranteed
share of the slots' time, and the engine makes at least 97 % of the tokens that it makes without
admission. Computing the true optimum is NP-hard; the result is the best of several schedules, so a
lower bound of it, and the optimum for a handful of requests.

Pure. Imports `compare` and below.
"""
