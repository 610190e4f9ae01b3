"""What runs on Spark. Importing this package starts nothing and loads no Spark."""
