"""The commands of datasets."""
