//! What is measured: how long kernels take on the GPU. [`marks`] says when launches get a mark; [`work`] when
//! a time at work begins, what has ended in it, and when it is over.

mod marks;
mod work;
