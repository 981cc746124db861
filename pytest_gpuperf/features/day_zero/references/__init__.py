"""What healthy machines of a kind do: records that the package brings, for machines without a record of their own."""
