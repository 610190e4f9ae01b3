"""What the planning of Iceberg tables translates: filters to PyIceberg, and filters and scan tasks of the REST specification."""
