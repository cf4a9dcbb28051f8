//! Jobs that run once per tick among all nodes, with the record of the ticks in the name's note.

pub(crate) mod calendar;
pub(crate) mod tick;
