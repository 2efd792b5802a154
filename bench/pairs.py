"""What can be said of ratios that were measured in pairs: medians, and how sure they are. Standard library only."""

import math
import statistics


def interval(ratios):
    """Median of the ratios, between the ends of its 95 % confidence interval (by the ranks of a sign test)."""
    ratios = sorted(ratios)
    count = len(ratios)
    rank = 0
    while sum(math.comb(count, k) for k in range(rank + 1)) / 2**count <= 0.025:
        rank += 1
    low = max(0, rank - 1)
    return ratios[low], statistics.median(ratios), ratios[count - 1 - low]


def text(found):
    return f"{found[1]:.3f} ({found[0]:.3f} to {found[2]:.3f})"
