"""What releases need besides the package: versions, the wheel in a fresh environment, checks."""
