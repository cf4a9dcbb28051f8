//! Advisory locks on connections of the caller: for the length of a transaction, or of a session.
