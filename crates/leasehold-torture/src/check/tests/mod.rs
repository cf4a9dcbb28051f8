//! Tests of the checker: bad histories written by hand, a search over all orders, and its own speed.

mod agree;
mod bad;
mod faulty;
mod long;
mod notation;
mod random;
mod search;
