//! Fuel: how much work one call of a plugin may do. A WASM host counts instructions. This host has only native plugins,
//! which say by themselves what they use.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// What is left in the call that this thread makes.
    static TANK: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Makes one call of a plugin with this much fuel. A call that uses more, or panics, is an error.
pub(crate) fn with<T>(budget: u64, call: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let before = TANK.replace(budget);
    let answer = catch_unwind(AssertUnwindSafe(call));
    let left = TANK.replace(before);
    match answer {
        _ if left == 0 => Err(format!("the call used up its fuel of {budget}")),
        Ok(answer) => answer,
        Err(_) => Err("the call panicked".into()),
    }
}

/// Uses fuel. A plugin must stop when none is left.
pub(crate) fn burn(fuel: u64) -> Result<(), String> {
    let left = TANK.get().saturating_sub(fuel);
    TANK.set(left);
    if left == 0 { Err("no fuel is left".into()) } else { Ok(()) }
}
