"""Parameters and optimizer state on hosts and on disks, split over ranks; against an optimizer in memory."""
