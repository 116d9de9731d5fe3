"""The Textual app: screens and widgets that show ready-made values, and compute none of them."""

from __future__ import annotations
