"""Many trainings, one at a time, and what they say together: which way of sharing pays."""
