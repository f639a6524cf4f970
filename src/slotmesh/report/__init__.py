"""Figures, pictures and pages."""
