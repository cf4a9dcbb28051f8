//! The SQLite store between real processes; some are killed, stopped, or short of room.
//!
//! Each test starts this binary again as its children; the environment tells them what to do.

#![allow(clippy::unwrap_used)] // what the tests share may also stop

mod contention;
mod kill;
mod machine;
mod places;
mod room;
mod support;

/// The entry point of children. As a test it does nothing.
#[test]
fn child() {
    let Ok(role) = std::env::var("LEASEHOLD_TEST_CHILD") else { return };
    match role.as_str() {
        "load" => kill::load(),
        "contend" => contention::contend(),
        "push" => places::wait_for_push(),
        "wait" => places::wait(),
        "other-clock" => machine::other_clock(),
        "same-clock" => machine::same_clock(),
        "full" => machine::full(),
        "read-only" => machine::read_only(),
        "another-user" => machine::another_user(),
        "mounted-file" => machine::mounted_file(),
        "mounted-directory" => machine::mounted_directory(),
        "room" => room::short_of_room(),
        other => panic!("no such child: {other}"),
    }
}
