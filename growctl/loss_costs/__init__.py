"""What each loss costs, in FLOPs, device time, money and energy."""
