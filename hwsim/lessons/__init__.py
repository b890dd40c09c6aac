"""Lessons: a question, a prediction, runs, what they show and why, and exercises that are graded offline."""
