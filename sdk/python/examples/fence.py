"""A table that refuses a writer which was paused too long."""

import sqlite3

import leasehold


def write(database: sqlite3.Connection, text: str, fence: int) -> bool:
    """Write, unless a newer holder has written already."""
    changed = database.execute(
        "update report set text = ?, fence = ? where id = 1 and fence <= ?", (text, fence, fence)
    )
    return changed.rowcount == 1


database = sqlite3.connect(":memory:")
database.execute("create table report (id integer primary key, text text, fence integer not null)")
database.execute("insert into report values (1, '', 0)")

with leasehold.connect() as locks:
    with locks.mutex("example/fence") as paused:
        pass  # imagine a long pause here: this holder does not know that its lock has passed on
    with locks.mutex("example/fence") as newer:
        print("the newer holder writes:", write(database, "new", newer.fence))
    print("the paused holder writes:", write(database, "old", paused.fence))
