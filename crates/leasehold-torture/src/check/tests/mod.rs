//! The checker is checked: by bad histories written by hand, by a search over all orders, and by its own speed.

mod agree;
mod bad;
mod faulty;
mod long;
mod notation;
mod random;
mod search;
