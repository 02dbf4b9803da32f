"""The three gauges: incoming norm one, least total square, and powers of two that never round; and that of heads."""

from canon.gauge.balanced import balanced
from canon.gauge.exact import exact
from canon.gauge.heads import heads
from canon.gauge.incoming import Gauged, incoming

__all__ = ["Gauged", "balanced", "exact", "heads", "incoming"]
