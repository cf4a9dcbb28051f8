//! What a program holds: a client of one store, its locks, and guards. Everything here calls the store through
//! [`engine`](crate::engine).

pub(crate) mod acquire;
pub(crate) mod diagnostics;
pub(crate) mod guard;
pub(crate) mod home;
pub(crate) mod leasing;
pub(crate) mod lock;
pub(crate) mod locks;
pub(crate) mod mutex;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
