"""A ladder compared with its controls: equal loss, equal FLOPs, fairness, and what to conclude."""
