"""Many files at once: fingerprints, duplicates with proof, an index that lasts."""

from canon.zoo.fingerprint import Fingerprint, fingerprint
from canon.zoo.groups import Found, Group, Link, dedup
from canon.zoo.index import Index
from canon.zoo.pool import Cluster, Here, Pool, Processes
from canon.zoo.query import Answer, query
from canon.zoo.scan import Progress, scan

__all__ = [
    "Answer",
    "Cluster",
    "Fingerprint",
    "Found",
    "Group",
    "Here",
    "Index",
    "Link",
    "Pool",
    "Processes",
    "Progress",
    "dedup",
    "fingerprint",
    "query",
    "scan",
]
