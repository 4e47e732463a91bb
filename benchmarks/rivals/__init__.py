"""What the search is held against: classical algorithms, written small, and packages in their own code."""
