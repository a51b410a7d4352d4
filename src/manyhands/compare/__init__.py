"""Runs many trainings, one at a time, and reports which way of sharing the work pays."""
