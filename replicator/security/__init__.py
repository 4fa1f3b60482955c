"""Who somebody is, what they may do, and what this process shows to others."""
