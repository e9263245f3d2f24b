"""Runs looked at: a page of one or several, and a table of all."""
