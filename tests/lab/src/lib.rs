//! See tests/lab/README.md.
