"""A schema as its file holds it."""

TOML = """
[[columns]]
name = "age"
low = 0
high = 110
decimals = 1

[[columns]]
name = "visits"
low = 0
high = 99
kind = "integer"
scale = "log1p"
"""
