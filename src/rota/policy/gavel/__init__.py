"""Gavel (OSDI 2020): fair shares of GPU time across GPU types, by rounds."""
