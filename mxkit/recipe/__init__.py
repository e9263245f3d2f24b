"""Recipes: a whole run as one YAML file."""
