"""What was done about opportunities, and whether it worked: predicted → applied → measured."""
