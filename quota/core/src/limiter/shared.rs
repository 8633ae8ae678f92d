//! What is shared: with the container's other processes and with other containers ([`grant`]), and between
//! the threads of a process ([`lock`]).

pub(super) mod grant;
pub(super) mod lock;
