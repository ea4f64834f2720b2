"""Policies: small objects chosen by name that decide order, admission, work budget and victims."""
