//! What is decided: whether a launch goes now ([`gate`]), and how many may be in flight ([`window`]).

mod gate;
mod window;
