"""Accounts of privacy budgets, charged before anything is drawn. Imports no torch."""
