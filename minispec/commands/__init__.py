"""The commands of `minispec`, a file each. They import what is heavy when they run, not before."""
